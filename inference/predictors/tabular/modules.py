"""Models of torch as predictors: exported programs, TorchScript, and the user's own modules with a state dict."""

from __future__ import annotations

import inspect
import pickle
import struct
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import MappingKey, TreeSpec, tree_flatten_with_path, tree_unflatten

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.messages import install
from nightjar.inference.predictors.adapter import SHARED_BYTES, unloadable
from nightjar.inference.predictors.tabular.features import by_name
from nightjar.inference.predictors.tabular.filling import Filling, Input, columns_of, fillings
from nightjar.inference.predictors.tabular.ontorch import (
    EXPORT_HINT,
    SCRIPTED,
    device_of_job,
    fill_tensor,
    is_safetensors,
    kind_of,
)
from nightjar.inference.predictors.user import built

_MATRIX_OPS = {"aten.linear.default", "aten.mm.default", "aten.addmm.default"}


def load_program(job: ModelJob, path: str) -> Program:
    """Load the exported program onto the job's device."""
    device = device_of_job(job)
    try:
        exported = torch.export.load(path)
        if device.type == "cuda":
            exported = move_to_device_pass(exported, device)
        else:
            held = (*exported.state_dict.values(), *exported.constants.values())
            keep_in_file((each for each in held if isinstance(each, torch.Tensor)), path)
        module = exported.module()
    except Exception as error:
        raise unloadable("torch", job.model.path, path, error) from error
    return Program(exported, module, device, tuple(job.model.outputs))


def _input(node: torch.fx.Node) -> Input:
    value: Any = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        raise JobError(f"model.path: input {node.name!r} of the program is not a tensor with a batch dimension")
    batch, *rest = value.shape
    if type(batch) is int:
        raise JobError(
            f"model.path: the program takes only batches of {batch} (input {node.name!r}); export it with a "
            f"dynamic first dimension, from an example of more than one row: {EXPORT_HINT}"
        )
    # A matrix product reads a transposed operand as fast as any; another operation may call `view` and fail.
    any_layout = len(rest) == 1 and all(str(user.target) in _MATRIX_OPS for user in node.users)
    return Input(node.name, tuple(size if type(size) is int else None for size in rest), value.dtype, any_layout)


class Program:
    """An exported program as a `Predictor`. `fillings` says which features its inputs get."""

    def __init__(
        self,
        exported: torch.export.ExportedProgram,
        module: torch.nn.Module,
        device: torch.device,
        outputs: tuple[str, ...],
    ) -> None:
        names = exported.graph_signature.user_inputs
        nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
        if not all(isinstance(name, str) for name in names):
            raise JobError("model.path: the program takes a constant as input; export it with only tensors as inputs")
        self._spec = exported.call_spec.in_spec
        self._inputs = _named([_input(nodes[str(name)]) for name in names], self._spec)
        self._outputs = outputs
        self._place = device
        self._module = module
        self.device = str(device)

    def prepare(self, batch: Any) -> list[torch.Tensor]:
        filled = fillings(self._inputs, columns_of(batch, "torch"))
        return [fill_tensor(each, each.input.dtype, self._place) for each in filled]

    def predict(self, prepared: list[torch.Tensor]) -> dict[str, Any]:
        tensors = [tensor.to(self._place, non_blocking=True) for tensor in prepared]
        # The program may take a dict of columns, keywords or plain tensors, as it was exported.
        arguments, keywords = tree_unflatten(tensors, self._spec)
        with torch.inference_mode():
            return by_name(self._module(*arguments, **keywords), self._outputs, "program")


def _named(inputs: Sequence[Input], spec: TreeSpec) -> list[Input]:
    """The inputs by the names that the model's author gave to them: keys of a dict, keywords, or arguments.

    Placeholders keep only the argument's name; torch changes the case of their names and puts the argument's name
    before that of a key.
    """
    paths, _ = tree_flatten_with_path(tree_unflatten(range(len(inputs)), spec))
    lasts = [path[-1] for path, _ in paths]
    return [
        replace(each, name=str(last.key)) if isinstance(last, MappingKey) else each
        for last, each in zip(lasts, inputs, strict=True)
    ]


_OF_SCRIPTS = (RuntimeError, torch.jit.Error)
_TYPES_BY_WORDS: dict[str, type[RuntimeError]] = {
    "CUDA out of memory. Tried to allocate": torch.OutOfMemoryError,
    "CUDA error: ": torch.AcceleratorError,
}
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def load_module(job: ModelJob, path: str) -> Module:
    """Load the module onto the job's device, in the types that the job names."""
    device, options = device_of_job(job), job.model.options
    module = _scripted(job, path) if kind_of(job) is SCRIPTED else _filled(job, path)
    module.eval()
    module.to(device=device, dtype=getattr(torch, options["dtype"]) if "dtype" in options else None)
    return Module(job, module, device)


def _scripted(job: ModelJob, path: str) -> torch.nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.13 calls TorchScript deprecated
            module: torch.nn.Module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
        keep_in_file([*module.parameters(), *module.buffers()], path)
    except Exception as error:
        raise unloadable("torch", job.model.path, path, error) from error
    return module


def _filled(job: ModelJob, path: str) -> torch.nn.Module:
    given = _weights(job, path)
    module = built(job, "model.options.model")
    if not isinstance(module, torch.nn.Module):
        raise JobError(
            f"model.options.model: {job.model.options['model']} returned {type(module).__name__}, not a torch.nn.Module"
        )
    own = module.state_dict(keep_vars=True)
    # A tensor that the module has under several names may be in the file under one of them.
    at = {_place(own[name]): tensor for name, tensor in given.items() if name in own}
    whole = given | {name: at[_place(tensor)] for name, tensor in own.items() if _place(tensor) in at}
    # Weights that are used as they lie in the file are shared by all processes of a node; a copy is each one's own.
    as_own = {name: tensor.to(own[name].dtype) if name in own else tensor for name, tensor in whole.items()}
    try:
        module.load_state_dict(as_own, assign=True)
    except RuntimeError as error:
        raise unloadable("torch", job.model.path, path, error) from error
    return module


def _weights(job: ModelJob, path: str) -> dict[str, torch.Tensor]:
    """The tensors of a file by name.

    Raises:
        JobError: The file cannot be read, holds none, or other objects besides and the job does not trust it.
    """
    if is_safetensors(job.model.path):
        return _safetensors(job, path)
    try:
        held = torch.load(path, map_location="cpu", weights_only=not job.model.trusted, mmap=True)
    except pickle.UnpicklingError as error:
        raise JobError(
            f"model.path: {job.model.path} holds other objects than tensors, and to load them is to run whatever their "
            "maker put into them, as you; write model.trusted: true if you trust the maker, or save "
            "module.state_dict() alone"
        ) from error
    except Exception as error:
        raise unloadable("torch", job.model.path, path, error) from error
    if isinstance(held, torch.nn.Module):
        held = held.state_dict()
    if not isinstance(held, Mapping) or not all(isinstance(each, torch.Tensor) for each in held.values()):
        keys = f" with {', '.join(map(str, list(held)[:5]))}" if isinstance(held, Mapping) else ""
        raise JobError(
            f"model.path: {job.model.path} holds {type(held).__name__}{keys}, and not the tensors of a module; save "
            "module.state_dict() alone"
        )
    return dict(held)


def _safetensors(job: ModelJob, path: str) -> dict[str, torch.Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise JobError(
            f"model.path: {job.model.path} needs safetensors; install it: {install('safetensors')}"
        ) from error
    try:
        loaded: dict[str, torch.Tensor] = load_file(path)
    except Exception as error:
        raise unloadable("torch", job.model.path, path, error) from error
    return loaded


def _place(tensor: torch.Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Where a module has a tensor: the same for two names of one. On the device `meta` there is no memory."""
    return tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride()


class Module:
    """A module as a `Predictor`. `fillings` says which features its arguments get."""

    def __init__(self, job: ModelJob, module: torch.nn.Module, device: torch.device) -> None:
        options = job.model.options
        self.device = str(device)
        self._place = device
        self._outputs = tuple(job.model.outputs)
        self._required, self._every = _arguments(module)
        tensors = (*module.parameters(), *module.buffers())
        floats = (tensor.dtype for tensor in tensors if tensor.is_floating_point())
        self._float = getattr(torch, options["dtype"]) if "dtype" in options else next(floats, torch.float32)
        self._autocast = options.get("autocast", False)
        self._module = module

    def prepare(self, batch: Any) -> dict[str, torch.Tensor]:
        columns = columns_of(batch, "torch")
        names = self._names(list(columns))
        given = [columns[name] for name in (names if {*names} == {*columns} else columns)]
        if len(names) == 1 and (len(columns) > 1 or given[0].ndim < 3):
            inputs = [Input(names[0], (None,))]
        else:
            inputs = [Input(name, (None,) * (column.ndim - 1)) for name, column in zip(names, given, strict=True)]
        filled = fillings(inputs, columns)
        return {each.input.name: fill_tensor(each, self._dtype(each), self._place) for each in filled}

    def predict(self, prepared: dict[str, torch.Tensor]) -> dict[str, Any]:
        given = {name: tensor.to(self._place, non_blocking=True) for name, tensor in prepared.items()}
        kind = self._place.type
        dtype = getattr(torch, self._autocast) if isinstance(self._autocast, str) else None
        with torch.inference_mode(), torch.autocast(kind, dtype=dtype, enabled=bool(self._autocast)):
            try:
                raw = self._module(**given)
            except _OF_SCRIPTS as error:
                # Types of their own say that memory or the device failed.
                if isinstance(self._module, torch.jit.ScriptModule) and type(error) in _OF_SCRIPTS:
                    raise _of_script(error) from error
                raise
        return by_name(raw, self._outputs, "module")

    def _names(self, columns: Sequence[str]) -> Sequence[str]:
        """The arguments that the columns fill."""
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

    def _dtype(self, filling: Filling) -> torch.dtype:
        """Numbers beside each other are floats, as models of tables take them, and so is a single column of numbers for
        a module of one input. Any other whole numbers stay such: they are indices, as of tokens.
        """
        columns = list(filling.columns.values())
        if any(column.dtype.kind == "f" or (filling.stacked and column.ndim == 1) for column in columns):
            return self._float
        return torch.from_numpy(np.empty(0, np.result_type(*columns))).dtype


def _arguments(module: torch.nn.Module) -> tuple[list[str], list[str]]:
    """The names of the arguments that a module requires, and of all that it takes."""
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


_SMALLEST = 1 << 16
"""The smallest tensor that is mapped, in bytes. All smaller ones of a model are a small part of it."""

_ALIGNED = 64
"""torch aligns the tensors in its files to so many bytes, as it does in memory."""

_HEADER = 30
"""Bytes before the name of a member in a zip file; the lengths of its name and of its extra field are the last four.

Source: "Local file header" in APPNOTE.TXT of PKWARE."""


def keep_in_file(tensors: Iterable[torch.Tensor], path: str) -> None:
    """Point tensors at the same bytes of the zip file from which they were loaded.

    Only contents that are equal to the bit are replaced, so no output changes. Types, shapes, strides and what shares
    memory with what stay as they were. Smaller files than `SHARED_BYTES` are left alone.
    """
    size = Path(path).stat().st_size
    if size < SHARED_BYTES:
        return
    file = torch.UntypedStorage.from_file(path, False, size)
    places = {_key(file[first:last]): (first, last) for first, last in _members(path)}
    found: dict[int, tuple[int, int] | None] = {}
    for tensor in tensors:
        held = tensor.untyped_storage()
        if held.device.type != "cpu" or held.nbytes() < _SMALLEST:
            continue
        if held.data_ptr() not in found:
            found[held.data_ptr()] = places.get(_key(held))
        if place := found[held.data_ptr()]:
            shape, strides, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
            empty = torch.empty(0, dtype=tensor.dtype)
            tensor.data = empty.set_(file[place[0] : place[1]], offset, shape, strides)


def _members(path: str) -> Iterator[tuple[int, int]]:
    """The first byte of each large uncompressed member, and the first one after it."""
    with zipfile.ZipFile(path) as archive, Path(path).open("rb") as file:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.file_size < _SMALLEST:
                continue
            file.seek(member.header_offset)
            lengths = struct.unpack("<HH", file.read(_HEADER)[-4:])
            first = member.header_offset + _HEADER + sum(lengths)
            if first % _ALIGNED == 0:
                yield first, first + member.file_size


def _key(content: torch.UntypedStorage) -> tuple[int, bytes]:
    """Length and hash of some bytes."""
    view = torch.empty(0, dtype=torch.uint8).set_(content)
    return content.nbytes(), xxhash.xxh3_128(view.numpy().data).digest()
