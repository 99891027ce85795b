"""An exported torch program as a predictor: takes feature columns, returns named outputs. Imports torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import MappingKey, TreeSpec, tree_flatten_with_path, tree_unflatten

from nightjar.inference.arrow_types import is_list
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.predictors.archive import EXPORT_HINT, inspect_program
from nightjar.inference.predictors.arrays import (
    NUMERIC,
    Array,
    columns,
    is_tensor,
    to_numpy,
)

_MATRIX_OPS = {"aten.linear.default", "aten.mm.default", "aten.addmm.default"}


def load_program(job: Job, model_path: str | None) -> Program:
    """Load the exported program onto the job's device. Sets torch's number of threads for the process.

    Raises:
        JobError: The program cannot be loaded, would unpickle code, or has inputs that columns cannot fill.
    """
    if model_path is None:
        raise JobError("model.path: the torch adapter needs the path of an exported program (.pt2)")
    named = job.model.path or model_path  # not that of this process's own copy
    inspect_program(model_path, job.model.allow_pickle, named)
    torch.set_num_threads(job.resources.cores)
    # Ray may be told of GPUs that do not exist, as in tests; `device` then says the truth.
    on_gpu = job.resources.gpus > 0 and torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    try:
        exported = torch.export.load(model_path)
        if on_gpu:
            exported = move_to_device_pass(exported, device)
        module = exported.module()
    except Exception as error:
        said = str(error).replace(model_path, named)
        raise JobError(f"model.path: torch cannot load {named}: {type(error).__name__}: {said}") from error
    return Program(exported, module, device, tuple(job.model.outputs))


def describe_devices() -> str:
    """The GPUs that torch can use in this process, in words."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU here: models run on the CPU"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"torch {torch.__version__} sees {len(names)}: {', '.join(names)}"


def to_tensor(values: Array) -> torch.Tensor | Array:
    """Copy numbers into a tensor, because torch has no read-only tensor; return anything else unchanged."""
    return torch.from_numpy(np.array(values)) if values.dtype.kind in NUMERIC else values


class _Input:
    """One input of the program.

    rest: its shape after the batch dimension, None for a dimension of any size. any_layout: it may be a transposed
    tensor.
    """

    name: str
    dtype: torch.dtype
    rest: tuple[int | None, ...]
    any_layout: bool

    def __init__(self, node: torch.fx.Node) -> None:
        value: Any = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.ndim == 0:
            raise JobError(f"model.path: input {node.name!r} of the program is not a tensor with a batch dimension")
        batch, *rest = value.shape
        if type(batch) is int:
            raise JobError(
                f"model.path: the program takes only batches of {batch} (input {node.name!r}); export it with a "
                f"dynamic first dimension, from an example of more than one row: {EXPORT_HINT}"
            )
        self.name = node.name
        self.dtype = value.dtype
        self.rest = tuple(size if type(size) is int else None for size in rest)
        # A matrix product reads a transposed operand as fast as any; another operation may call `view` and fail.
        self.any_layout = len(rest) == 1 and all(str(user.target) in _MATRIX_OPS for user in node.users)

    @property
    def filled(self) -> torch.dtype:
        """The dtype of the tensor that numpy fills; numpy has no bfloat16."""
        numeric = self.dtype in {torch.float16, torch.float64} or not self.dtype.is_floating_point
        return self.dtype if numeric else torch.float32


class Program:
    """An exported program as a predictor: takes a table or batch of features, returns outputs by name.

    A program with one input gets all features stacked to shape (n, F). A program with one input per feature gets each
    as a tensor, matched by name if the names are the same. Several threads may call it at once.
    """

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
        self._inputs = [_Input(nodes[str(name)]) for name in names]
        self._outputs = outputs
        self._place = device
        self._module = module
        self._spec = exported.call_spec.in_spec
        self._names = _names(self._inputs, self._spec)
        self.device = str(device)

    def prepare(self, batch: Any) -> list[torch.Tensor]:
        """Convert the columns of a Table or batch to the program's inputs, in memory from which the device can copy."""
        features = columns(batch)
        if features is None:
            raise JobError(f"preprocess returned {type(batch).__name__}; the torch adapter needs named columns")
        return self._tensors(features)

    def predict(self, prepared: list[torch.Tensor]) -> dict[str, Any]:
        """Run the program. Returns its outputs by name."""
        tensors = [tensor.to(self._place, non_blocking=True) for tensor in prepared]
        # The program may take a dict of columns, keywords or plain tensors, as it was exported.
        arguments, keywords = tree_unflatten(tensors, self._spec)
        with torch.inference_mode():
            return self._named(self._module(*arguments, **keywords))

    def _tensors(self, features: Mapping[str, Any]) -> list[torch.Tensor]:
        values = {name: _numbers(name, column) for name, column in features.items()}
        if len(self._inputs) == 1 and (len(values) > 1 or len(self._inputs[0].rest) == 1):
            return [self._stacked(self._inputs[0], values)]
        if len(self._inputs) == len(values):
            pairs = zip(self._inputs, _in_order(self._names, list(values)), strict=True)
            return [self._single(each, name, values[name]) for each, name in pairs]
        takes = ", ".join(each.name for each in self._inputs)
        raise JobError(
            f"model.features: the program takes {len(self._inputs)} inputs ({takes}) for {len(values)} columns "
            f"({', '.join(values)}); list one column for each, or export a program of one input"
        )

    def _stacked(self, each: _Input, values: dict[str, Array]) -> torch.Tensor:
        """All features as one tensor of shape (n, F). A column of shape (n, k) takes k places."""
        if len(each.rest) != 1 or any(column.ndim > 2 for column in values.values()):
            raise _misfit(
                values.values(),
                f"model.features: {len(values)} columns cannot be stacked for input {each.name!r} of shape "
                f"{_shape(each)}; list the one column that has this shape",
            )
        rows = len(next(iter(values.values())))
        width = sum(1 if column.ndim == 1 else column.shape[1] for column in values.values())
        if each.rest[0] not in {None, width}:
            raise _misfit(
                values.values(),
                f"model.features: {', '.join(values)} make {width} columns, and input {each.name!r} of the "
                f"program takes {each.rest[0]}",
            )
        return self._fill(each, values, rows, width)

    def _fill(self, each: _Input, values: dict[str, Array], rows: int, width: int) -> torch.Tensor:
        # Filling column by column into (F, n) is four times as fast as into (n, F), where each column jumps from row
        # to row (51 against 204 µs for 16,384 × 20 float32). So fill (F, n) and transpose it if the program
        # allows. The buffer is new each time: reuse saves little (50 µs), and outputs or a running copy may
        # still refer to it.
        by_column = each.any_layout
        shape = (width, rows) if by_column else (rows, width)
        buffer = torch.empty(shape, dtype=each.filled, pin_memory=self._place.type == "cuda")
        target = buffer.numpy() if by_column else buffer.numpy().T
        place = 0
        for name, column in values.items():
            step = 1 if column.ndim == 1 else column.shape[1]
            _put(target[place : place + step], column.T, name)
            place += step
        return (buffer.T if by_column else buffer).to(each.dtype)

    def _single(self, each: _Input, name: str, column: Array) -> torch.Tensor:
        """One column as the tensor for one input."""
        shape = _folded(each, name, column)
        buffer = torch.empty(shape, dtype=each.filled, pin_memory=self._place.type == "cuda")
        _put(buffer.numpy().reshape(column.shape), column, name)
        return buffer.to(each.dtype)

    def _named(self, raw: Any) -> dict[str, Any]:
        if isinstance(raw, torch.Tensor):
            raw = (raw,)
        if isinstance(raw, Mapping):
            return dict(raw)
        if len(raw) != len(self._outputs):
            raise OutputInvalid(
                f"the program returned {len(raw)} outputs, but model.outputs declares {len(self._outputs)}: "
                f"output {self._outputs[min(len(raw), len(self._outputs) - 1)]!r} has no counterpart"
            )
        return dict(zip(self._outputs, raw, strict=True))


def _names(inputs: Sequence[_Input], spec: TreeSpec) -> list[str]:
    """The names that the model's author gave to the inputs: keys of a dict, keywords, or arguments.

    Placeholders keep only the argument's name; torch changes the case of their names and puts the argument's name
    before that of a key.
    """
    paths, _ = tree_flatten_with_path(tree_unflatten(range(len(inputs)), spec))
    lasts = [path[-1] for path, _ in paths]
    return [
        str(last.key) if isinstance(last, MappingKey) else each.name for last, each in zip(lasts, inputs, strict=True)
    ]


def _in_order(inputs: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The columns in the order of the inputs: matched by name if both have the same names, else in the given order."""
    exact: Callable[[str], str] = str
    for form in (exact, _canonical):
        held = {form(name): name for name in columns}
        wanted = [form(name) for name in inputs]
        # With as many names as columns on both sides, no name is ambiguous.
        if held.keys() == set(wanted) and len(held) == len(columns) == len(inputs):
            return [held[name] for name in wanted]
    return list(columns)


def _canonical(name: str) -> str:
    """A name as torch writes it in the graph."""
    return re.sub(r"[^a-z0-9]+", "_", str(name).lower())


def _misfit(given: Iterable[Array], message: str) -> JobError | ValueError:
    """The error for numbers that do not fit the program: of the rows, if single rows may differ in shape; else of the
    job.
    """
    return ValueError(message) if any(column.ndim > 1 for column in given) else JobError(message)


def _folded(each: _Input, name: str, column: Array) -> tuple[int, ...]:
    """The shape in which the input takes the column: the column's own, or with each row reshaped to the input's
    shape.
    """
    given = column.shape[1:]
    if len(given) == len(each.rest) and all(size in {None, held} for size, held in zip(each.rest, given, strict=True)):
        return column.shape
    wanted = [size for size in each.rest if size is not None]
    if len(wanted) < len(each.rest) or math.prod(wanted) != math.prod(given):
        shape = ", ".join(map(str, ("n", *given)))
        raise _misfit(
            [column],
            f"model.features: {name!r} has shape ({shape}), and input {each.name!r} of the program takes "
            f"{_shape(each)}",
        )
    return len(column), *wanted


def _shape(each: _Input) -> str:
    return f"({', '.join(['n', *('any' if size is None else str(size) for size in each.rest)])})"


def _numbers(name: str, column: Any) -> Array:
    """A column of any kind of batch as a numpy array of numbers."""
    if isinstance(column, pa.Array | pa.ChunkedArray):
        if column.null_count and not pa.types.is_floating(column.type):
            raise ValueError(f"feature {name!r} has a null, and {column.type} has no NaN to stand for it")
        values = to_numpy(column)
    elif isinstance(column, np.ma.MaskedArray):
        if np.ma.is_masked(column) and column.dtype.kind != "f":
            raise ValueError(f"feature {name!r} has a masked value, and {column.dtype} has no NaN to stand for it")
        values = column.filled(np.nan) if np.ma.is_masked(column) else column.data
    else:
        values = column.detach().cpu().numpy() if is_tensor(column) else np.asarray(column)
    if values.dtype.kind in NUMERIC:
        return values
    if isinstance(column, pa.Array | pa.ChunkedArray) and not is_list(column.type):
        raise JobError(f"model.features: {name!r} is {column.type}, and the torch adapter takes numbers only")
    raise ValueError(f"feature {name!r} holds {values.dtype}, not numbers in rows of one length")


def _put(target: Array, values: Array, name: str) -> None:
    """Write a column's numbers into the target; refuse numbers that an integer target would change."""
    if not np.can_cast(values.dtype, target.dtype, "same_kind"):
        raise _misfit([values], f"model.features: {name!r} is {values.dtype}, and the program takes {target.dtype}")
    if target.dtype.kind in "iu" and not np.can_cast(values.dtype, target.dtype) and values.size:
        limits = np.iinfo(target.dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise ValueError(f"feature {name!r} holds a number outside {target.dtype}")
    target[...] = values
