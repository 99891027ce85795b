"""Torch modules that a job's own code makes, and their files: TorchScript, or their weights."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazily import lazily
from modeljobs import model_job
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from predicting import MakeJob, jobs_in

torch = lazily("torch")

F32 = pa.float32()
NET = '''
from typing import Optional

import torch
from torch import nn

class Net(nn.Module):
    """Of a table; with dropout, which must not be at work when it scores."""

    def __init__(self, width: int = 2, outputs: int = 1):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, outputs))

    def forward(self, x):
        return self.layers(x)

class Pair(nn.Module):
    """Of several inputs, the last of which need not be given."""

    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(10, 4), nn.Embedding(5, 4)

    def forward(self, user, item, price: Optional[torch.Tensor] = None):
        score = (self.users(user) * self.items(item)).sum(-1)
        return score if price is None else score * price

class Mixed(nn.Module):
    """Of a list of indices, and a number."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 3)

    def forward(self, words, price):
        return self.words(words).sum((1, 2)) * price

class Picture(nn.Module):
    def __init__(self):
        super().__init__()
        self.fold, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, image):
        return self.head(self.fold(image).mean([2, 3]))

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 3)

    def forward(self, ids):
        return {"score": self.table(ids).mean(1), "first": self.table(ids)[:, 0, 0]}

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.other(self.one(x))

class Double(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1, dtype=torch.float64)

    def forward(self, x):
        return self.layer(x)

def build(**args):
    return Net(**args)

def fails(size):
    raise ValueError(f"no net of size {size}")

async def later():
    return Net()

number = lambda: 3
constant = 3
'''

has_safetensors = pytest.mark.skipif(
    find_spec("safetensors") is None, reason="pip install 'nightjar-batch[safetensors]'"
)
FILES = ["script.pt", "state.pt", "state.pth", pytest.param("state.safetensors", marks=has_safetensors)]
"""The files that a module may be in: TorchScript, or its weights."""

each_file = pytest.mark.parametrize("file", FILES)


@pytest.fixture
def make_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeJob]:
    with jobs_in(tmp_path, monkeypatch) as make:
        (tmp_path / "net.py").write_text(NET)
        monkeypatch.syspath_prepend(tmp_path)
        yield make
        sys.modules.pop("net", None)


def module_of(name: str, **args: Any) -> torch.nn.Module:
    import net  # type: ignore[import-not-found]  # a test wrote it

    torch.manual_seed(len(name))
    made: torch.nn.Module = getattr(net, name)(**args)
    return made.eval()


def write(folder: Path, file: str, module: torch.nn.Module) -> None:
    if file.startswith("script"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.jit.save(torch.jit.script(module), folder / file)
    elif file.endswith(".safetensors"):
        from safetensors.torch import save_model

        save_model(module, str(folder / file))
    else:
        torch.save(module.state_dict(), folder / file)


Loaded = tuple[Job, Any]
"""A job, and the torch module that it loads."""


@pytest.fixture
def load(make_job: MakeJob, tmp_path: Path) -> Callable[..., Loaded]:
    """A job with a module's file of a kind, and the module itself; keywords change the model section."""

    def made(file: str, name: str, args: dict[str, Any] | None = None, **model: Any) -> Loaded:
        module = module_of(name, **(args or {}))
        write(tmp_path, file, module)
        own = {} if file.startswith("script") else {"model": f"net:{name}", **({"args": args} if args else {})}
        options = {**own, **model.pop("options", {})}
        model = {"outputs": {"score": "float32"}, "options": options, "trusted": not own, **model}
        model = {"uses": "torch", "path": file, **model}
        return make_job(**model), module

    return made


def scored(job: Job, table: pa.Table) -> dict[str, np.ndarray]:
    """What the job scores, checked as a run checks it."""
    check_keys(job)
    adapter = adapter_of(model_job(job))
    adapter.inspect(model_job(job), str(job.models[0].path))
    adapter.check_columns(model_job(job), table.schema)
    outputs = load_scorer(model_job(job), job.models[0].path)(table)
    return {name: np.array(values.to_pylist()) for name, values in outputs.items()}


def numbers(rows: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).random((rows, *shape), np.float32)


def table_of(values: np.ndarray) -> pa.Table:
    return pa.table({name: values[:, index] for index, name in enumerate("abcdefgh"[: values.shape[1]])})


WEIGHTS = ["state.pt", "state.pth", pytest.param("state.safetensors", marks=has_safetensors)]
"""Of these files, those that hold weights alone."""
