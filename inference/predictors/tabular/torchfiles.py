"""The kinds of files that `uses: torch` takes, the options of each, and what can be seen of a file without torch."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import PurePosixPath

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.job.options import choice, keywords, text
from nightjar.inference.predictors.adapter import check_trusted
from nightjar.inference.predictors.batches import BATCH_FORMAT

EXPORT_HINT = (
    "torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim('n')},)), "
    "'model.pt2')"
)
"""How a user makes a .pt2. The example needs more than one row, because one row would fix the batch size at 1."""

DTYPES = ("float32", "float16", "bfloat16")

OPTIONS = (
    text(
        "model",
        "your function or class that makes the `torch.nn.Module`",
        "none; required for weights",
        r"[\w.]+:\w+",
        '"module:name" of your function or class, as "net:build"',
    ),
    keywords("args", "its keyword arguments", "none", "a mapping of keywords, as {width: 2}"),
    choice("dtype", DTYPES, "weights, and inputs that are floats, are cast to it", "that of the weights"),
    choice("autocast", (False, True, *DTYPES[1:]), "computes under `torch.autocast`, in this type"),
    BATCH_FORMAT,
)
"""All of them, none of which has a meaning for an exported program."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file. what: for messages. options: of `model.options`, those that have a meaning for it."""

    what: str
    options: tuple[str, ...] = ()


EXPORTED = Kind("an exported program (.pt2)")
SCRIPTED = Kind("TorchScript", ("dtype", "autocast"))
STATE = Kind("a state dict", ("model", "args", "dtype", "autocast"))


def kind_of(job: ModelJob) -> Kind:
    """What `model.path` is, told by the end of its name, and for .pt by whether the job says what makes the module."""
    suffix = PurePosixPath(job.model.path or "").suffix.lower()
    if suffix == ".pt" and "model" not in job.model.options:
        return SCRIPTED
    return {".pt": STATE, ".pth": STATE, ".safetensors": STATE}.get(suffix, EXPORTED)


def is_safetensors(path: str | None) -> bool:
    """Whether the end of a file's name says that it is of this format."""
    return PurePosixPath(path or "").suffix.lower() == ".safetensors"


def check_torch_keys(job: ModelJob) -> None:
    """Check that the options have a meaning for the kind of file."""
    kind, options = kind_of(job), job.model.options
    for name in STATE.options:
        if name in options and name not in kind.options:
            raise JobError(f"model.options.{name}: has no meaning for {kind.what}, as which {job.model.path} is read")
    if kind is STATE and "model" not in options:
        raise JobError(
            f"model.options.model: {job.model.path} holds weights alone; name the function or class of yours that "
            'makes the module, as "net:build"'
        )
    if options.get("autocast") and options.get("dtype", "float32") != "float32":
        raise JobError("model.options.autocast: the weights already have another type by model.options.dtype; keep one")


def inspect_torch(job: ModelJob, path: str) -> None:
    """Look at the model's file, without reading its weights. path: the local copy.

    Raises:
        JobError: It is not what the job takes it for, not a whole file, or a program that the job does not trust. Names
        `model.path`.
    """
    kind, named = kind_of(job), str(job.model.path)
    if kind is EXPORTED and not named.endswith(".pt2"):
        raise JobError(f"model.path: {named} is not a .pt2 exported program; make one with {EXPORT_HINT}")
    try:
        if not is_safetensors(named):
            _check_archive(kind, path)
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise JobError(f"model.path: {named} is not {kind.what} that can be read: {reason}") from error
    if kind is not STATE:
        instead = "save its state dict (.safetensors) and name the code of its module in model.options.model"
        check_trusted(job, kind.what, instead)


def _check_archive(kind: Kind, path: str) -> None:
    """Raises ValueError if a file that torch wrote is of another kind."""
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
    if kind is EXPORTED:
        if not any(name.startswith("models/") for name in names):
            raise ValueError(f"it holds no exported program; make one with {EXPORT_HINT}")
        return
    scripted = "constants.pkl" in names and any(name.startswith("code/") for name in names)
    if kind is SCRIPTED and not scripted:
        raise ValueError(
            'it holds no code; if it holds weights, name what makes the module in model.options.model, as "net:build"'
        )
    if kind is STATE and scripted:
        raise ValueError("it is TorchScript, which has its own code; remove model.options.model and args")
    if "data.pkl" not in names:
        raise ValueError("torch.save did not write it")


def not_loaded(job: ModelJob, path: str, error: Exception) -> JobError:
    """The error for a file that torch cannot load. path: the local copy, which the message does not name."""
    named = str(job.model.path)
    said = " ".join(str(error).replace(path, named).split())
    return JobError(f"model.path: torch cannot load {named}: {type(error).__name__}: {said}")
