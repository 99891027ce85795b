"""What models have in common that compute with torch: their device, how tensors come there, and what can be seen of a
file without torch.
"""

from __future__ import annotations

import sys
import zipfile
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.predictors.adapter import Adapter, check_trusted
from nightjar.inference.predictors.tabular.filling import Filling

if TYPE_CHECKING:
    import torch


class OnTorch(Adapter):
    """Base of the adapters whose models compute with torch."""

    scratch = ("/dev/shm/torch_", "/tmp/torchinductor_", "/var/tmp/torchinductor_")

    def device_errors(self) -> tuple[type[BaseException], ...]:
        found = getattr(sys.modules.get("torch"), "AcceleratorError", None)
        return () if found is None else (found,)


def device_of_job(job: ModelJob) -> torch.device:
    """The device for the job's model. Sets torch's number of threads for the process."""
    import torch

    torch.set_num_threads(job.resources.cores)
    # Ray may be told of GPUs that do not exist, as in tests; the predictor's `device` then says the truth.
    on_gpu = job.resources.gpus > 0 and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def fill_tensor(filling: Filling, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Make a tensor with the values of a filling, in memory from which the device can copy.

    Where the model takes a transposed tensor, columns that lie beside each other are filled one by one, as (F, n): four
    times as fast as into (n, F), where each column jumps from row to row (51 against 204 µs for 16,384 × 20 float32).
    """
    import torch

    floating = dtype.is_floating_point and dtype not in {torch.float16, torch.float64}
    fillable = torch.float32 if floating else dtype  # numpy has no bfloat16
    transposed = filling.input.any_layout and filling.stacked
    shape = filling.shape[::-1] if transposed else filling.shape
    # The buffer is new each time: reuse saves little (50 µs), and outputs or a running copy may still refer to it.
    buffer = torch.empty(shape, dtype=fillable, pin_memory=device.type == "cuda")
    tensor = buffer.T if transposed else buffer
    filling.write(tensor.numpy())
    return tensor.to(dtype)


EXPORT_HINT = (
    "torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim('n')},)), "
    "'model.pt2')"
)
"""How a user makes a .pt2. The example needs more than one row, because one row would fix the batch size at 1."""


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


def inspect_file(job: ModelJob, path: str) -> None:
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
