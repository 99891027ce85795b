"""The user's own accumulators, each in processes of its own: their code may end the process, hang in it, or change its
state. Whatever goes wrong with one costs its figures, and no row and no shard.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from nightjar.inference.errors import JobError, NightjarError, raised
from nightjar.inference.job.finding import find
from nightjar.inference.job.model import Job
from nightjar.inference.messages import clip
from nightjar.inference.metrics.accumulators import Broken, Kind, try_on
from nightjar.inference.metrics.figures import AccumulatorFigures
from nightjar.inference.output import outcomes
from nightjar.inference.output.parts import read_data
from nightjar.inference.scoring.assignment import OfRun, WorkerSpec, aside_folder, enter
from nightjar.inference.scoring.child import Child, WorkLost

R = TypeVar("R")


def _result(job: Job, name: str, work: Callable[[], R]) -> R | str:
    """The result of work with an accumulator, or in a sentence why there is none."""
    key, uses = f"accumulators.{name}", job.accumulators[name]
    try:
        return work()
    except Broken as broken:
        return f"{key}: {uses} {broken}"
    except JobError as error:
        return clip(str(error))
    except BaseException as error:  # noqa: BLE001 (also sys.exit and Ctrl-C of the class's own)
        return f"{key}: {uses} failed with {clip(raised(error, installed=True))}"


def _imported(job: Job, name: str, folder: Path) -> Kind | str:
    """An accumulator, imported from this folder, or in a sentence why it cannot be used."""
    uses = job.accumulators[name]

    def find_class() -> Kind:
        made = find(f"accumulators.{name}", uses, folder)
        if not isinstance(made, type):
            raise Broken(f"is a {type(made).__name__}, not a class")
        return Kind(name, uses, made)

    return _result(job, name, find_class)


def check_classes(run: OfRun, job: Job) -> None:
    """Check that the accumulators can be imported and have their methods. job: in this process's copy of the folder.

    Raises:
        JobError: One cannot. Names the key.
    """
    folder = aside_folder(run, job) if run.job.accumulators else Path()
    for name in run.job.accumulators:
        if isinstance(found := _imported(run.job, name, folder), str):
            raise JobError(found)


Work = Callable[[WorkerSpec, Kind, Any], Iterator[Any]]
"""Work with an accumulator: yields None before each call of its code, and at last the answer; a text says why there is
none."""


def _answer(spec: WorkerSpec, work: Work, name: str, given: Any, share: float = 1.0) -> Any:
    """The answer of work with an accumulator in a process of its own, or in a sentence why there is none.

    share: of `retry.stall_s`, which each step of it may take.
    """
    stall_s = spec.job.retry.stall_s
    try:
        with Child(_work, spec, work, name, given) as child:
            *_, answer = child.answers(stall_s * share)
        return answer
    except TimeoutError:
        within = f"{stall_s * share:g} s, a part of " if share < 1 else ""
        how = f"gave no answer within {within}retry.stall_s = {stall_s:g} s"
    except WorkLost as lost:
        how = lost.how
    except NightjarError as error:  # the code's copy, or a part that cannot be read
        return f"accumulators: {error}"
    return clip(f"accumulators.{name}: {spec.job.accumulators[name]} {how}")


def _work(spec: WorkerSpec, work: Work, name: str, given: Any) -> Iterator[Any]:
    found = _imported(spec.job, name, aside_folder(spec, enter(spec)))
    if isinstance(found, str):
        yield found
    else:
        yield from work(spec, found, given)


def try_all(spec: WorkerSpec, table: pa.Table) -> dict[str, tuple[str, ...]]:
    """Try each accumulator of the job on sample rows. Returns the names of its figures.

    Raises:
        JobError: One of them is broken. Names its key.
    """
    found = {}
    for name in spec.job.accumulators:
        # A whole `stall_s` would outlast that of preflight's own step, which began before, and would blame the model.
        answer = _answer(spec, _try, name, table, share=0.5 / len(spec.job.accumulators))
        if isinstance(answer, str):
            raise JobError(f"{answer}. It is given the columns {', '.join(table.column_names)}")
        found[name] = answer
    return found


def _try(spec: WorkerSpec, kind: Kind, table: pa.Table) -> Iterator[Any]:
    yield None
    yield _result(spec.job, kind.name, partial(try_on, kind, table))


def columns_of(job: Job, names: Sequence[str]) -> list[str]:
    """The columns that accumulators are given. names: all columns of the input."""
    return [*job.carried(names), *job.output_types()]


# ---- over what is published: a process for each block of shards, and one that merges their states in order --------

BLOCK_SHARDS = 64
"""The most shards that one process counts."""


def accumulated(
    each: Callable[..., Iterator[Any]], spec: WorkerSpec, table: pa.Table, block: int = BLOCK_SHARDS
) -> Generator[dict[str, AccumulatorFigures] | None, None, None]:
    """The figures of the job's accumulators; yields None on a tick, and at the end all figures, by name.

    each: as `Engine.each`. table: the run's `outcomes.OUTCOMES`. block: the most shards of a block.
    """
    blocks = [list(outcomes.lines(table.slice(at, block))) for at in range(0, max(1, table.num_rows), block)]
    pieces = [(name, lines) for name in spec.job.accumulators for lines in blocks]
    states = list[bytes | str]()
    for found in each(partial(_of_block, spec), pieces, spec.job, "accumulators"):
        if found is None:
            yield None
        else:
            states.append(found)
    figures = {}
    for at, (name, uses) in enumerate(spec.job.accumulators.items()):
        of_blocks = states[at * len(blocks) : (at + 1) * len(blocks)]
        failed = next((state for state in of_blocks if isinstance(state, str)), None)
        values = failed or _answer(spec, _merge, name, of_blocks)
        said = ({}, values) if isinstance(values, str) else (values, None)
        figures[name] = AccumulatorFigures(uses, *said)
    yield figures


def _of_block(spec: WorkerSpec, piece: tuple[str, list[dict[str, Any]]]) -> Any:
    """The state of an accumulator over a block, empty without any; a text says why there is none."""
    return _answer(spec, _count, *piece)


def _count(spec: WorkerSpec, kind: Kind, lines: Sequence[dict[str, Any]]) -> Iterator[bytes | str | None]:
    pa.set_cpu_count(spec.job.resources.cores)
    storage = spec.patient_storage()
    columns, state = columns_of(spec.job, spec.schema.names), b""
    for line in lines:
        table = read_data(storage, spec.revision, line["data"], line["shard"]).table(columns)
        yield None
        found = _result(spec.job, kind.name, partial(_plus, kind, state, table))
        if isinstance(found, str):
            yield f"{found} (shard {line['shard']})"
            return
        state = found
    yield state


def _plus(kind: Kind, state: bytes, table: pa.Table) -> bytes:
    return kind.of_states([*([state] if state else []), kind.of_rows([table])])


def _merge(spec: WorkerSpec, kind: Kind, states: Sequence[bytes]) -> Iterator[Any]:
    yield None
    yield _result(spec.job, kind.name, lambda: kind.results(kind.of_states(filter(None, states))))
