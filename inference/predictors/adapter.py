"""The seam of predictors: one adapter for each framework, and one for the user's own code."""

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
    """A loaded model. Several threads may call both steps at once, for different batches.

    device: where the model really is: 'cpu', 'cuda:0' ….
    """

    device: str

    def prepare(self, batch: Any) -> Any:
        """Make the model's input from a batch, or from a Table if the adapter `reads_arrow`. Uses only the CPU.

        Any error except a `JobError` counts as a fault of these rows.
        """

    def predict(self, prepared: Any) -> Any:
        """Call the model. Returns outputs by name, or anything else that `outputs.normalise` takes."""


class Adapter(Protocol):
    """One framework. Only `load`, `warm` and `devices` import it, so that commands that only look need not wait.

    libraries: distributions whose versions the manifest names. reads_arrow: its predictors get Tables, and never write
    into them; other predictors get batches in the job's format, made from copies. scratch: beginnings of the paths of
    the files that the framework makes for itself while it computes.
    """

    libraries: tuple[str, ...]
    reads_arrow: bool
    scratch: tuple[str, ...]

    def check_keys(self, job: Job) -> None:
        """Check the job's model keys, without reading a file or importing the framework.

        Raises:
            JobError: An option is unknown, or a key has no meaning for this framework. Names the key.
        """

    def fingerprint(self, job: Job) -> Mapping[str, str]:
        """Installed distributions whose code scores without being in the model's file, and their versions on this node.

        They are part of a result's identity, and must be the same on each node that scores.

        Raises:
            JobError: One of them is not installed.
        """

    def check_columns(self, job: Job, schema: pa.Schema) -> None:
        """Check the types of the columns that the model sees. Not called if a preprocess converts the columns.

        Raises:
            JobError: The model cannot take a column. Names `model.features`.
        """

    def inspect(self, job: Job, path: str) -> None:
        """Inspect the model's file, without loading it and without importing the framework.

        Raises:
            JobError: The file cannot be read; or loading it would run code, and the job does not allow that.
        """

    def warm(self) -> None:
        """Import what `load` will import, as far as this is known without the job's files."""

    def load(self, job: Job, path: str | None) -> Predictor:
        """Load the model. path: the model's local copy; None if the job names no model file.

        Raises:
            JobError: The model cannot be loaded. Names the key.
        """

    def memory_errors(self) -> tuple[type[BaseException], ...]:
        """Error types for too little memory, also on a device. Empty before the framework is imported."""

    def device_errors(self) -> tuple[type[BaseException], ...]:
        """Error types after which a device refuses every further call. Empty before the framework is imported."""

    def devices(self) -> str:
        """The devices that the framework can use here, in words; possibly empty. Imports the framework."""


class WithoutDevices:
    """Base of the adapters that know no device of their own, and no type of error for too little memory on one."""

    def memory_errors(self) -> tuple[type[BaseException], ...]:
        """None: numpy raises a plain MemoryError."""
        return ()

    def device_errors(self) -> tuple[type[BaseException], ...]:
        """None."""
        return ()

    def devices(self) -> str:
        """None."""
        return ""


def adapter_of(job: Job) -> Adapter:
    """The adapter of `model.uses`."""
    framework = FRAMEWORKS.get(job.model.uses)
    return _adapter(framework.module if framework else _OWN)


def frameworks() -> Iterator[Adapter]:
    """Every framework's adapter."""
    return (_adapter(framework.module) for framework in FRAMEWORKS.values())


def check_options(job: Job, known: Collection[str]) -> None:
    """Check that a framework's adapter knows each of `model.options`; every adapter knows `batch_format`.

    Raises:
        JobError: An option is unknown.
    """
    known = [*known, "batch_format"]
    for name in sorted(set(job.model.options) - set(known)):
        raise JobError(
            f"model.options.{name}: the {job.model.uses} adapter knows only the options {', '.join(known)}"
            + nearest(name, known)
        )


def check_cpu(job: Job) -> None:
    """Check that the job asks for no GPU, where the adapter cannot use one.

    Raises:
        JobError: It asks for one.
    """
    if job.resources.gpus > 0:
        raise JobError(f"resources.gpus: the {job.model.uses} adapter computes on the CPU; write gpus: 0")


def check_no_pickles(job: Job) -> None:
    """Check that the job allows no pickles, where the adapter never loads one.

    Raises:
        JobError: It allows them.
    """
    if job.model.allow_pickle:
        raise JobError(f"model.allow_pickle: the {job.model.uses} adapter loads no pickles; remove the key")


def needed(job: Job, path: str | None) -> str:
    """The local path of a model that an adapter must have.

    Raises:
        JobError: The job names none.
    """
    if path is None:
        what = FRAMEWORKS[job.model.uses].model
        raise JobError(f"model.path: the {job.model.uses} adapter needs the path of {what}")
    return path


def _adapter(module: str) -> Adapter:
    adapter: Adapter = import_module(module).ADAPTER
    return adapter


def is_memory(error: Exception) -> bool:
    """Whether an error means too little memory. The type decides, never the message."""
    return isinstance(error, (MemoryError, *(kind for each in frameworks() for kind in each.memory_errors())))


def is_device_lost(error: Exception) -> bool:
    """Whether the device refuses every further call of this process, as after a failed assertion on the device."""
    return isinstance(error, tuple(kind for each in frameworks() for kind in each.device_errors()))
