"""The seam of the predictors: one adapter for each framework, and one for the user's own code."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import FRAMEWORKS
from nightjar.inference.messages import nearest

_OWN = "nightjar.inference.predictors.user"
"""The adapter of the user's own classes and functions."""


class Predictor(Protocol):
    """A loaded model. Both steps may be called from several threads, for other batches at once.

    device: 'cpu', 'cuda:0' …: where the model really is.
    """

    device: str

    def prepare(self, batch: Any) -> Any:
        """What the model is given for a batch, or for a Table if the adapter `reads_arrow`. On the CPU alone.

        What it raises is about these rows, unless it is a `JobError`.
        """

    def predict(self, prepared: Any) -> Any:
        """What the model returns: outputs by name, or whatever else `outputs.normalise` takes."""


class Adapter(Protocol):
    """One framework. It is imported by `load` and no sooner: commands that only look must not wait for it.

    libraries: distributions whose versions the manifest names. reads_arrow: its predictors are given Tables, and write
    into nothing of them; others are given batches in the job's format, made of copies. scratch: how the paths of files
    begin that it makes for itself while it computes.
    """

    libraries: tuple[str, ...]
    reads_arrow: bool
    scratch: tuple[str, ...]

    def check_keys(self, job: Job) -> None:
        """Whether it takes what the job says of the model. Looks at no file, and imports nothing.

        Raises:
            JobError: an option is unknown, or a key means nothing to it; names the key.
        """

    def fingerprint(self, job: Job) -> Mapping[str, str]:
        """The installed distributions whose code scores and is not in the model's file, with their versions here.

        They are part of what a result is kept under, and the same on each node that scores.

        Raises:
            JobError: one of them is not installed.
        """

    def check_columns(self, job: Job, schema: pa.Schema) -> None:
        """Whether the columns that the model sees can serve it. Not called where a preprocess makes others of them.

        Raises:
            JobError: one cannot; names `model.features`.
        """

    def inspect(self, job: Job, path: str) -> None:
        """Look at the model's file, without loading it and without importing the framework.

        Raises:
            JobError: it cannot be read; or it is seen that loading it would run code, and the job does not allow that.
        """

    def warm(self) -> None:
        """Import what `load` would, as far as that can be known without the job's files."""

    def load(self, job: Job, path: str | None) -> Predictor:
        """The model, ready to be called. path: of its local copy; None where the job names none.

        Raises:
            JobError: it cannot be loaded; names the key.
        """

    def memory_errors(self) -> tuple[type[BaseException], ...]:
        """What it raises where memory, also a device's, does not suffice. Nothing before it was imported."""

    def device_errors(self) -> tuple[type[BaseException], ...]:
        """What it raises of a device that refuses everything from then on. Nothing before it was imported."""

    def devices(self) -> str:
        """What it can compute on here, in words; empty where it has nothing to say. Imports it."""


def adapter_of(job: Job) -> Adapter:
    """The adapter of `model.uses`."""
    framework = FRAMEWORKS.get(job.model.uses)
    return _adapter(framework.module if framework else _OWN)


def frameworks() -> Iterator[Adapter]:
    """Every framework's adapter."""
    return (_adapter(framework.module) for framework in FRAMEWORKS.values())


def check_options(job: Job, known: Collection[str]) -> None:
    """Whether a framework's adapter knows each of `model.options`; every one knows `batch_format`.

    Raises:
        JobError: it does not know one.
    """
    known = [*known, "batch_format"]
    for name in sorted(set(job.model.options) - set(known)):
        raise JobError(
            f"model.options.{name}: the {job.model.uses} adapter knows no option but {', '.join(known)}"
            + nearest(name, known)
        )


def _adapter(module: str) -> Adapter:
    adapter: Adapter = import_module(module).ADAPTER
    return adapter


def is_memory(error: Exception) -> bool:
    """Out of memory by type, never by message."""
    return isinstance(error, (MemoryError, *(kind for each in frameworks() for kind in each.memory_errors())))


def is_device_lost(error: Exception) -> bool:
    """An error after which the device refuses everything from this process, such as a failed assertion on it."""
    return isinstance(error, tuple(kind for each in frameworks() for kind in each.device_errors()))
