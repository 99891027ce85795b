"""Jobs whose predictor is code or a program that a test writes; and what they score."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from lazily import lazily
from modeljobs import model_job
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import load_scorer
from nightjar.inference.scoring.assignment import BatchSize, LoadedModel
from nightjar.inference.scoring.broken_batches import Cuts
from nightjar.inference.scoring.microbatches import Ahead, score_models
from nightjar.inference.scoring.neighbours import NOISE, Sample, Unfit, dependences
from nightjar.inference.scoring.prepared_batches import Batch, Preparer, ScoreRows
from nightjar.inference.scoring.scored_rows import ScoredRows

torch = lazily("torch")

F32 = pa.float32()

T = TypeVar("T")


MakeJob = Callable[..., Job]


def score_table(
    table: pa.Table,
    scorer: ScoreRows,
    size: BatchSize,
    types: Mapping[str, pa.DataType],
    *,
    cuts: Cuts | None = None,
    preparer: Preparer | None = None,
    singly: range = range(0),
    shipped: Sequence[Batch] = (),
    name: str = "",
    **options: Any,
) -> Generator[Ahead, None, ScoredRows]:
    """`score_models` with one model that takes all columns of the table. options: others of it."""
    model = LoadedModel(name, "", tuple(table.column_names), types, scorer, size, preparer)
    return score_models(
        table, [model], cuts=lambda: cuts or Cuts(), singly={name: singly}, shipped={name: shipped}, **options
    )


@contextlib.contextmanager
def jobs_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeJob]:
    """Make a job in this folder with this code in `mine.py`; keywords change the model section or the job.

    Modules that are imported meanwhile are forgotten at the end: each test's are its own.
    """
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file written twice in a second looks unchanged

    def make(code: str = "", *, job: dict[str, Any] | None = None, **model: Any) -> Job:
        if code:
            (folder / "mine.py").write_text(code)
            sys.modules.pop("mine", None)
        content = {
            "name": "t",
            "input": {"uri": "in/"},
            "model": {"uses": "mine:Predictor", "outputs": {"score": "float32"}, **model},
            "output": {"uri": "out"},
            **(job or {}),
        }
        return parse_job(content, folder / "job.yaml")

    path, modules, threads = list(sys.path), set(sys.modules), torch.get_num_threads()
    yield make
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and "pytest" in str(sys.modules[name].__file__):
            del sys.modules[name]
    torch.set_num_threads(threads)


def scored(job: Job, table: pa.Table, path: str | None = None) -> dict[str, list[Any]]:
    return {name: values.to_pylist() for name, values in load_scorer(model_job(job), path)(table).items()}


TABLE = pa.table({"a": pa.array([1.0, 2.0, 3.0], F32), "b": pa.array([10, 20, 30], pa.int64())})


def export(
    path: Path, forward: Callable[..., Any], *examples: torch.Tensor, dynamic: bool = True, layer: bool = False
) -> str:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if layer:
                self.layer = torch.nn.Linear(examples[0].shape[1], 2)

        def forward(self, *inputs: torch.Tensor) -> Any:
            return forward(*([self.layer(inputs[0])] if layer else inputs))

    shapes = (tuple({0: torch.export.Dim("n")} for _ in examples),) if dynamic else None
    torch.export.save(torch.export.export(Model(), examples, dynamic_shapes=shapes), path)
    return str(path)


_LOOKS = """
import subprocess
import sys
from nightjar.inference.job.file import load_job
from nightjar.inference.job.modeljob import model_jobs
from nightjar.inference.predictors import check_keys, warm
from nightjar.inference.predictors.adapter import adapter_of, is_device_lost
from nightjar.inference.predictors.adapter import is_memory

jobs = [load_job(path) for path in sys.argv[1:]]
for job in jobs:
    (its,) = model_jobs(job)
    adapter = adapter_of(its)
    check_keys(job)
    adapter.fingerprint(its)
    adapter.inspect(its, its.model.path)
    assert adapter.device_errors() == ()
assert is_memory(MemoryError()) and not is_memory(ValueError()) and not is_device_lost(ValueError())
print(*{name.partition(".")[0] for name in sys.modules})
for job in jobs:
    warm(job)
    print(*{name.partition(".")[0] for name in sys.modules})
"""


def loaded_by_looking(*jobs: Path) -> tuple[set[str], list[set[str]]]:
    """In a process of its own, look at these jobs and their models, as commands do that score nothing, and then warm
    for each one. Returns what is loaded after looking at all, and after each warming.
    """
    command = [sys.executable, "-c", _LOOKS, *map(str, jobs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    looked, *warmed = (set(line.split()) for line in done.stdout.splitlines())
    return looked, warmed


def dependence(job: Job, table: pa.Table) -> str:
    """What preflight says of a job's model, with this table as one batch; '' if no row depends on another one."""
    scorer = load_scorer(model_job(job), job.models[0].path)

    def score(rows: pa.Table) -> pa.Table:
        return pa.table(scorer(rows))

    sample = Sample(table, [("data.parquet", row) for row in range(table.num_rows)])
    noise = NOISE if job.models[0].framework.inexact else 0.0
    return "".join(told(dependences(sample, score(table), score, job.rescore.tolerance, noise))[-1:])


def told(steps: Iterable[T | None]) -> list[T | str]:
    """What preflight's steps yield, and at last what is wrong with the model, if something is."""
    found: list[T | str] = []
    try:
        found.extend(step for step in steps if step is not None)
    except Unfit as unfit:
        found.append(str(unfit))
    return found
