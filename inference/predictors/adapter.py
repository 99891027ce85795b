"""The seam of predictors: one adapter for each framework, and one for the user's own code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option
from nightjar.inference.job.seams import FRAMEWORKS

SHARED_BYTES = 64 << 20
"""The smallest file of a model whose content is mapped where an adapter would rather read it.

A smaller one is copied for each process (`identity.snapshots.COPIED_BYTES`), so that nothing would be shared."""


class Predictor(Protocol):
    """A loaded model. Several threads may call both steps at once, for different batches.

    device: where the model really is: 'cpu', 'cuda:0' ….
    """

    device: str

    def prepare(self, batch: Any) -> Any:
        """Make the model's input from a batch, or from a Table if the adapter `reads_arrow`. Uses only the CPU.

        Any error except a `JobError` counts as a fault of these rows; behind a preprocess that one does, too.
        """

    def predict(self, prepared: Any) -> Any:
        """Call the model. Returns outputs by name, or anything else that `outputs.normalise` takes."""


@runtime_checkable
class Packing(Protocol):
    """A predictor that packs the rows of a micro-batch into calls of the model, or the scorer around it.

    forced_tokens: the most tokens of a call if lack of memory reduced them, else 0.
    """

    @property
    def forced_tokens(self) -> int: ...


@runtime_checkable
class Reads(Protocol):
    """What an adapter has besides if its options name files that score, beside those of `model.path`."""

    def reads(self, job: Job) -> tuple[str, ...]:
        """The paths of those files and folders, on this node. Their content counts like that of a package."""


@runtime_checkable
class NamesColumns(Protocol):
    """An adapter whose options name the columns that the model sees, as a prompt does."""

    def named(self, job: Job) -> tuple[str, tuple[str, ...]]:
        """The key that names them, for messages, and these columns."""


def forced_tokens(model: object) -> int:
    """The most tokens of a call if lack of memory reduced them; 0 if it did not, or if the model packs nothing."""
    return model.forced_tokens if isinstance(model, Packing) else 0


@runtime_checkable
class TakesCode(Protocol):
    """An adapter whose job names objects of the user's own code."""

    def check_code(self, job: Job, found: Mapping[str, Any]) -> None:
        """Check that these objects are what the adapter takes, without calling them. found: they, by the job's key.

        Raises:
            JobError: One is not. Names the key.
        """


class Adapter(Protocol):
    """One framework. Only `load`, `warm` and `devices` import it, so that commands that only look need not wait.

    libraries: distributions whose versions the manifest names. extra: the extra of pip that brings them; empty if they
    come with Nightjar. options: what `model.options` may name; None for whatever the user's code takes. reads_arrow:
    its predictors get Tables, and never write into what they get; other predictors get copies, as batches in the job's
    format. scratch: beginnings of the paths of the files that the framework makes for itself while it computes.
    """

    libraries: tuple[str, ...]
    extra: str
    options: tuple[Option, ...] | None
    reads_arrow: bool
    scratch: tuple[str, ...]

    def check_keys(self, job: Job) -> None:
        """Check the job's model keys, without reading a file or importing the framework.

        The options are known, and have values that they may have.

        Raises:
            JobError: Options do not fit together, or a key has no meaning for this framework. Names the key.
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
            JobError: The file cannot be read; or it is a program, and the job does not trust it.
        """

    def warm(self) -> None:
        """Import what `load` will import, as far as this is known without the job's files."""

    def load(self, job: Job, path: str | None) -> Predictor:
        """Load the model. path: the model's local copy; None if the job names no model file.

        Raises:
            JobError: The model cannot be loaded. Names the key.
        """

    def device_errors(self) -> tuple[type[BaseException], ...]:
        """Error types after which a device refuses every further call. Empty before the framework is imported."""

    def devices(self) -> str:
        """The devices that the framework can use here, in words; possibly empty. Imports the framework."""


class WithoutDevices:
    """Base of the adapters that know no device of their own."""

    def device_errors(self) -> tuple[type[BaseException], ...]:
        """None."""
        return ()

    def devices(self) -> str:
        """None."""
        return ""


def adapter_of(job: Job) -> Adapter:
    """The adapter of `model.uses`."""
    found: Adapter = job.model.framework.adapter()
    return found


def frameworks() -> Iterator[Adapter]:
    """Every framework's adapter."""
    return (framework.adapter() for framework in FRAMEWORKS.values())


def check_cpu(job: Job) -> None:
    """Check that the model is given no GPU, where the adapter cannot use one.

    Raises:
        JobError: It asks for one.
    """
    if job.resources.gpus > 0:
        beside = f", or placement: staged for {job.model.called}, beside models on the GPU" if job.model.called else ""
        raise JobError(f"resources.gpus: the {job.model.uses} adapter computes on the CPU; write gpus: 0{beside}")


def check_trusted(job: Job, what: str, instead: str) -> None:
    """Check that the job trusts a model whose file is a program. what: the file. instead: what cannot run code.

    Raises:
        JobError: It does not.
    """
    if not job.model.trusted:
        raise JobError(
            f"model.path: {job.model.path} is {what}, a program: to load it is to run whatever its maker put into it, "
            f"as you; write model.trusted: true if you trust its maker, or {instead}"
        )


def needed(job: Job, path: str | None) -> str:
    """The local path of a model that an adapter must have.

    Raises:
        JobError: The job names none.
    """
    if path is None:
        raise JobError(f"model.path: the {job.model.uses} adapter needs the path of {job.model.framework.model}")
    return path


def is_device_lost(error: BaseException) -> bool:
    """Whether the device refuses every further call of this process, as after a failed assertion on the device."""
    return isinstance(error, tuple(kind for each in frameworks() for kind in each.device_errors()))
