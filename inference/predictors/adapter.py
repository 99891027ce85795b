"""The seam of predictors: one adapter for each framework, and one for the user's own code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import Option
from nightjar.inference.job.seams import FRAMEWORKS
from nightjar.inference.messages import install

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
        """Call the model. Returns outputs by name, or anything else that `scorer.normalise` takes."""


class Adapter:
    """One framework. Only `load`, `warm` and `devices` import it, so that commands that do not score start at once.

    A method that an adapter does not override says that there is nothing to check, to import or to name.
    """

    libraries: tuple[str, ...] = ()
    """Distributions whose versions the manifest names."""
    extra = ""
    """The extra of pip that installs them; empty if they come with Nightjar."""
    counted: tuple[tuple[str, ...], ...] = ()
    """Distributions whose code scores without being in the model's file, so that their versions are part of a result's
    identity: the alternatives that bring each module."""
    options: tuple[Option, ...] | None = ()
    """The keys that `model.options` may have; None for any, where the user's code takes them."""
    reads_arrow = True
    """Predictors get Tables and never write into them. Others get copies, as batches in the job's format."""
    cpu_only = False
    """Models can use no GPU."""
    scratch: tuple[str, ...] = ()
    """How the paths of the files begin that the framework makes for itself while it computes."""

    def check_keys(self, job: ModelJob) -> None:
        """Check the job's model keys, without reading a file or importing the framework. The options are known, and
        have values that they may have.

        Raises:
            JobError: Options do not fit together, or a key has no meaning for this framework. Names the key.
        """

    def check_code(self, job: ModelJob, found: Mapping[str, Any]) -> None:
        """Check the objects of the user's code that the job names, without calling them. found: by the job's key.

        Raises:
            JobError: One is not what the adapter takes. Names the key.
        """

    def check_columns(self, job: ModelJob, schema: pa.Schema) -> None:
        """Check the types of the columns that the model sees. Not called if a preprocess converts the columns.

        Raises:
            JobError: The model cannot take a column. Names `model.features`.
        """

    def named(self, job: ModelJob) -> tuple[str, tuple[str, ...]]:
        """The columns that an option names, as a prompt does, and the key of that option."""
        return "model.features", ()

    def reads(self, job: ModelJob) -> tuple[str, ...]:
        """Files and folders on this node that options name and that score, besides `model.path`. Their content is part
        of a result's identity.
        """
        return ()

    def fingerprint(self, job: ModelJob) -> Mapping[str, str]:
        """The distributions that are `counted`, and their versions on this node.

        They are part of a result's identity, and must be the same on each node that scores.

        Raises:
            JobError: One of them is not installed.
        """
        found: dict[str, str] = {}
        for alternatives in self.counted:
            installed = {}
            for name in alternatives:
                with suppress(metadata.PackageNotFoundError):
                    installed[name] = metadata.version(name)
            if not installed:
                raise missing(job.model.uses, alternatives[0])
            found |= installed
        return found

    def inspect(self, job: ModelJob, path: str) -> None:
        """Inspect the model's file, without loading it and without importing the framework.

        Raises:
            JobError: The file cannot be read; or it is a program, and the job does not trust it.
        """

    def warm(self) -> None:
        """Import the modules that `load` needs, as far as they are known without the job's files."""

    def load(self, job: ModelJob, path: str) -> Predictor:
        """Load the model, after `warm`. path: the model's local copy; '' if the job names no model file.

        Raises:
            JobError: The model cannot be loaded. Names the key.
        """
        raise NotImplementedError

    def device_errors(self) -> tuple[type[BaseException], ...]:
        """Error types after which a device refuses every further call. Empty before the framework is imported."""
        return ()

    def devices(self) -> str:
        """The devices that the framework can use here, in words; possibly empty. Imports the framework."""
        return ""


def adapter_of(job: ModelJob) -> Adapter:
    """The adapter of `model.uses`."""
    found: Adapter = job.model.framework.adapter()
    return found


def frameworks() -> Iterator[Adapter]:
    """Every framework's adapter."""
    return (framework.adapter() for framework in FRAMEWORKS.values())


def check_trusted(job: ModelJob, what: str, instead: str) -> None:
    """Check that the job trusts a model whose file is a program. what: the file. instead: what cannot run code."""
    if not job.model.trusted:
        raise JobError(
            f"model.path: {job.model.path} is {what}, a program: to load it is to run whatever its maker put into it, "
            f"as you; write model.trusted: true if you trust its maker, or {instead}"
        )


def is_device_lost(error: BaseException) -> bool:
    """Whether the device refuses every further call of this process, as after a failed assertion on the device."""
    return isinstance(error, tuple(kind for each in frameworks() for kind in each.device_errors()))


def missing(uses: str, what: str) -> JobError:
    """The error for a framework that is not installed. what: the distribution or module that is not there."""
    adapter: Adapter = FRAMEWORKS[uses].adapter()
    return JobError(f"model.uses: the {uses} adapter needs {what}; install it: {install(adapter.extra)}")


def unloadable(
    library: str, named: str | None, path: Path | str, error: Exception | str, more: str = "", part: str = ""
) -> JobError:
    """The error for a model that a library cannot load. named: the model, as the job has it. path: the local copy, in
    place of which the message has that name. error: the library's, or why. more: what to do. part: what cannot be
    loaded of the model, as "the tokenizer of ".
    """
    said = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    said = " ".join(said.replace(str(path), str(named)).split())
    return JobError(f"model.path: {library} cannot load {part}{named}: {said}" + (f"; {more}" if more else ""))


@contextmanager
def naming(job: ModelJob) -> Iterator[None]:
    """In this context an error about the job begins with the model's name."""
    try:
        yield
    except JobError as error:
        if job.model.name:
            error.args = (f"models.{job.model.name}: {error}", *error.args[1:])
        raise


_TYPES = {
    ("torch", "OutOfMemoryError"),
    ("tensorflow", "ResourceExhaustedError"),
    ("cupy", "OutOfMemoryError"),
    ("rmm", "OutOfMemoryError"),
}
"""Types for nothing else: the package that defines one, and its name."""

_WORDS = {
    ("jaxlib", "XlaRuntimeError"): ("RESOURCE_EXHAUSTED:",),
    ("jax", "JaxRuntimeError"): ("RESOURCE_EXHAUSTED:",),
    ("onnxruntime", "Fail"): ("Failed to allocate memory for requested buffer", "std::bad_alloc"),
    ("onnxruntime", "RuntimeException"): ("Failed to allocate memory for requested buffer", "std::bad_alloc"),
    ("xgboost", "XGBoostError"): ("std::bad_alloc", "Memory allocation error on worker"),
    ("lightgbm", "LightGBMError"): ("std::bad_alloc", "bad allocation"),
    ("_catboost", "CatBoostError"): ("std::bad_alloc", "bad allocation", "Out of memory"),
    ("builtins", "RuntimeError"): (
        "DefaultCPUAllocator: can't allocate memory",
        "DefaultCPUAllocator: not enough memory",
    ),
}
"""Types for whatever a framework meets, and how the error for too little memory is worded.

The plain RuntimeError is torch's on the CPU. The words of JAX, onnxruntime 1.32 and torch 2.13 were seen; those of
XGBoost, LightGBM and CatBoost are what C++ calls the error, and XGBoost's own on a GPU (src/common/device_helpers.cu).
"""


def is_memory(error: BaseException) -> bool:
    """Whether an error means too little memory, or was raised from one that does (`raise … from error`)."""
    return any(_is_memory(each) for each in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in seen:
        yield each
        seen.append(each)
        each = each.__cause__


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    names = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__]
    if not _TYPES.isdisjoint(names):
        return True
    return any(word in _said(error) for name in names[:1] for word in _WORDS.get(name, ()))


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (a user's own error may fail to say what it is)
        return ""
