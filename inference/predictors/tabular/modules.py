"""A torch module as a predictor: takes feature columns, returns named outputs. Imports torch."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors.outofmemory import is_memory
from nightjar.inference.predictors.outputs import in_order
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.filling import Filling, fillings, numbers, shape_of

_OF_SCRIPTS = (RuntimeError, torch.jit.Error)
_TYPES_BY_WORDS: dict[str, type[RuntimeError]] = {
    "CUDA out of memory. Tried to allocate": torch.OutOfMemoryError,
    "CUDA error: ": torch.AcceleratorError,
}
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class _Input:
    """One argument of the module. rest: as in `filling.Input`; a module does not say the shapes that it takes."""

    name: str
    rest: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The arguments of one call. columns: that fill them, by name. fixed: whether each row has their shapes."""

    arguments: dict[str, torch.Tensor]
    columns: tuple[str, ...]
    fixed: bool


class Module:
    """A module as a predictor. Several threads may call it at once.

    A module with one argument gets all features stacked to shape (n, F), or one feature in its own shape. A module with
    several arguments gets a feature for each, matched by name if the names are the same.
    """

    def __init__(self, job: Job, module: torch.nn.Module, device: torch.device) -> None:
        options = job.model.options
        self.device = str(device)
        self._place = device
        self._outputs = tuple(job.model.outputs)
        self._required, self._every = _arguments(module)
        tensors = (*module.parameters(), *module.buffers())
        floats = (tensor.dtype for tensor in tensors if tensor.is_floating_point())
        self._float = getattr(torch, options["dtype"]) if "dtype" in options else next(floats, torch.float32)
        self._autocast = options.get("autocast", False)
        self._channels_last = bool(options.get("channels_last"))
        self._module: Any = module
        self._proven = False
        # torch compiles while it computes, and not in two threads at once.
        self._turn: AbstractContextManager[Any] = nullcontext()
        if options.get("compile"):
            self._module, self._turn = torch.compile(module, dynamic=True), threading.Lock()

    def prepare(self, batch: Any) -> Prepared:
        """Convert the columns of a Table or batch to the module's arguments, in memory from which devices can copy."""
        columns = {name: numbers(name, column, "torch") for name, column in features.named(batch, "torch").items()}
        names = self._names(list(columns))
        shapes = [column.shape[1:] for column in columns.values()]
        if len(names) == 1 and (len(columns) > 1 or len(shapes[0]) < 2):
            inputs = [_Input(names[0], (None,))]
        else:
            inputs = [_Input(name, (None,) * len(shape)) for name, shape in zip(names, shapes, strict=True)]
        filled = fillings(inputs, names, columns)
        arguments = {filling.input.name: self._tensor(filling) for filling in filled}
        return Prepared(arguments, tuple(columns), all(not shape for shape in shapes))

    def predict(self, prepared: Prepared) -> dict[str, Any]:
        """Call the module. Returns its outputs by name."""
        given = {name: tensor.to(self._place, non_blocking=True) for name, tensor in prepared.arguments.items()}
        try:
            raw = self._called(given)
        except RuntimeError as error:
            if not self._proven and not is_memory(error):
                _check_compiler(error)
                self._check_shapes(prepared, error)
            raise
        self._proven = prepared.fixed
        return in_order(raw, self._outputs, "module")

    def _called(self, given: dict[str, torch.Tensor]) -> Any:
        kind = self._place.type
        dtype = getattr(torch, self._autocast) if isinstance(self._autocast, str) else None
        with torch.inference_mode(), torch.autocast(kind, dtype=dtype, enabled=bool(self._autocast)), self._turn:
            try:
                return self._module(**given)
            except _OF_SCRIPTS as error:
                # Types of their own say that memory or the device failed.
                if isinstance(self._module, torch.jit.ScriptModule) and type(error) in _OF_SCRIPTS:
                    raise _of_script(error) from error
                raise

    def _check_shapes(self, prepared: Prepared, error: RuntimeError) -> None:
        """After a failed call: raise a clear error if the module takes no numbers at all in arrays of these shapes."""
        arguments = prepared.arguments.items()
        try:
            self._called({name: torch.zeros_like(tensor[:1], device=self._place) for name, tensor in arguments})
        except RuntimeError:
            shapes = ", ".join(f"{name!r} of shape {shape_of(tensor.shape[1:])}" for name, tensor in arguments)
            given = ", ".join(prepared.columns)
            said = f"model.features: {given} make {shapes}, and the module takes none such: {error}"
            raise (JobError(said) if prepared.fixed else ValueError(said)) from error

    def _names(self, columns: Sequence[str]) -> Sequence[str]:
        """The arguments that the columns fill.

        Raises:
            JobError: There is not one for each column.
        """
        required, every = self._required, self._every
        if set(required) <= set(columns) <= set(every):
            return [name for name in every if name in columns]
        if len(required) <= 1:
            return required or every[:1]
        for names in (required, every):
            if len(names) == len(columns):
                return names
        raise JobError(
            f"model.features: the module takes {len(required)} inputs ({', '.join(required)}) for {len(columns)} "
            f"columns ({', '.join(columns)}); list one column for each"
        )

    def _tensor(self, filling: Filling[_Input]) -> torch.Tensor:
        dtype = self._dtype(filling)
        buffer = torch.empty(filling.shape, dtype=_fillable(dtype), pin_memory=self._place.type == "cuda")
        filling.write(buffer.numpy())
        tensor = buffer.to(dtype)
        if self._channels_last and tensor.ndim == 4:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def _dtype(self, filling: Filling[_Input]) -> torch.dtype:
        """Numbers beside each other are floats, as models of tables take them, and so is a single column of numbers for
        a module of one input. Any other whole numbers stay such: they are indices, as of tokens.
        """
        columns = list(filling.columns.values())
        if any(column.dtype.kind == "f" or (filling.stacked and column.ndim == 1) for column in columns):
            return self._float
        return torch.from_numpy(np.empty(0, np.result_type(*columns))).dtype


def _arguments(module: torch.nn.Module) -> tuple[list[str], list[str]]:
    """The names of the arguments that a module requires, and of all that it takes.

    Raises:
        JobError: It takes none by name.
    """
    if isinstance(module, torch.jit.ScriptModule):
        given = module.forward.schema.arguments[1:]  # type: ignore[attr-defined]  # torch's stubs lack it
        required = [str(each.name) for each in given if not each.has_default_value()]
        every = [str(each.name) for each in given]
    else:
        named = [each for each in inspect.signature(module.forward).parameters.values() if each.kind in _NAMED]
        required = [each.name for each in named if each.default is each.empty]
        every = [each.name for each in named]
    if not every:
        raise JobError("model.path: the module's forward takes no argument by name; give it one for each input")
    return required, every


def _check_compiler(error: RuntimeError) -> None:
    """Raise a clear error if `torch.compile` failed, and not the module."""
    if type(error).__module__.startswith("torch._inductor"):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = next((line for line in lines if "error: " in line), lines[0] if lines else type(error).__name__)
        raise JobError(
            "model.options.compile: torch cannot compile the module here; for the CPU it needs a C++ compiler and the "
            f"headers of Python (on Debian: g++ and python3-dev), or leave `compile` out: {why}"
        ) from error


def _of_script(error: Exception) -> RuntimeError:
    """The error that the script met, in its last words: TorchScript says them after two tracebacks of its own, which
    stay with the error as its cause. Of the error's type it keeps nothing, so torch's own words tell the two that
    matter (c10/cuda/CUDACachingAllocator.cpp, CUDAException.cpp).
    """
    said = str(error).strip()
    for words, kind in _TYPES_BY_WORDS.items():
        if (at := said.rfind(f"Error: {words}")) >= 0:
            return kind(said[at:].splitlines()[0].removeprefix("Error: "))
    *_, last = said.splitlines() or [type(error).__name__]
    return RuntimeError(last.removeprefix("RuntimeError: "))


def _fillable(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the tensor that numpy fills; numpy has no bfloat16."""
    return torch.float32 if dtype == torch.bfloat16 else dtype
