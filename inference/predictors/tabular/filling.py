"""The columns of a batch as the tensors that a model's inputs take: which column fills which input, in which shape."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_list
from nightjar.inference.errors import JobError
from nightjar.inference.messages import nearest
from nightjar.inference.predictors.arrays import NUMERIC, Array, from_tensor, is_tensor, to_numpy
from nightjar.inference.predictors.tabular.features import made_of, named


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a model."""

    name: str
    """As the model's author called it."""
    rest: tuple[int | None, ...]
    """The shape after the batch dimension, None for a dimension of any size."""
    dtype: Any = None
    """Of numpy or torch, as the framework has it; None if the model does not say."""
    any_layout: bool = False
    """Whether it may be a transposed tensor."""


@dataclass(frozen=True, slots=True)
class Filling:
    """The columns that fill one input."""

    input: Input
    """The input that is filled."""

    columns: Mapping[str, Array]
    """The columns by name, in the order in which they are stacked; a single one if `stacked` is false."""

    shape: tuple[int, ...]
    """Of the input's tensor."""

    stacked: bool
    """Whether the columns lie beside each other in it."""

    def write(self, target: Array) -> None:
        """Write the columns into an array of this shape.

        Raises:
            JobError: The array's type cannot hold a column's numbers.
            ValueError: A number of these rows does not fit.
        """
        if not self.stacked:
            ((name, column),) = self.columns.items()
            put(target.reshape(column.shape), column, name)
            return
        place = 0
        for name, column in self.columns.items():
            step = 1 if column.ndim == 1 else column.shape[1]
            put(target.T[place : place + step], column.T, name)
            place += step


def fillings(inputs: Sequence[Input], columns: Mapping[str, Array]) -> list[Filling]:
    """Distribute the columns: one input of shape (n, F) takes all of them; else each input takes one, matched by name
    if the names are the same.

    Raises:
        JobError: The columns never fit the inputs. Names `model.features`.
        ValueError: The values of these rows do not have the shape that an input takes.
    """
    if len(inputs) == 1 and (len(columns) > 1 or len(inputs[0].rest) == 1):
        return [_stacked(inputs[0], columns)]
    names = [each.name for each in inputs]
    if len(inputs) == len(columns):
        pairs = zip(inputs, _in_order(names, list(columns)), strict=True)
        return [_single(each, name, columns[name]) for each, name in pairs]
    raise JobError(
        f"model.features: the model takes {len(inputs)} inputs ({', '.join(names)}) for {len(columns)} columns "
        f"({', '.join(columns)}); list one column for each, or export a model of one input"
    )


def columns_of(batch: Any, uses: str) -> dict[str, Array]:
    """The columns of any kind of batch as arrays of numbers. Raises as `required_numbers`."""
    return {name: required_numbers(name, column, uses) for name, column in named(batch).items()}


def required_numbers(name: str, column: Any, uses: str) -> Array:
    """A column of any kind of batch as a numpy array of numbers, where a null needs a NaN.

    Raises:
        JobError: It never holds numbers.
        ValueError: These rows hold a null that has no number, or lists of several lengths.
    """
    if isinstance(column, pa.Array | pa.ChunkedArray):
        held = column
        while is_list(held.type) and not held.null_count:
            held = pc.list_flatten(held)
        if held.null_count and not pa.types.is_floating(held.type):
            raise ValueError(f"feature {name!r} has a null, and {held.type} has no NaN to stand for it")
        values = to_numpy(column)
    elif isinstance(column, np.ma.MaskedArray):
        if np.ma.is_masked(column) and column.dtype.kind != "f":
            raise ValueError(f"feature {name!r} has a masked value, and {column.dtype} has no NaN to stand for it")
        values = column.filled(np.nan) if np.ma.is_masked(column) else column.data
    else:
        values = from_tensor(column) if is_tensor(column) else np.asarray(column)
    if values.dtype.kind in NUMERIC:
        return values
    if isinstance(column, pa.Array | pa.ChunkedArray) and not is_list(column.type):
        raise JobError(f"model.features: {name!r} is {column.type}, and the {uses} adapter takes numbers only")
    raise ValueError(f"feature {name!r} holds {values.dtype}, not numbers in rows of one length")


def put(target: Array, values: Array, name: str) -> None:
    """Write a column's values into the target; refuse numbers that an integer target would change."""
    if not np.can_cast(values.dtype, target.dtype, "same_kind"):
        raise _misfit([values], f"model.features: {name!r} is {values.dtype}, and the model takes {target.dtype}")
    if target.dtype.kind in "iu" and not np.can_cast(values.dtype, target.dtype) and values.size:
        limits = np.iinfo(target.dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise ValueError(f"feature {name!r} holds a number outside {target.dtype}")
    target[...] = values


def shape_of(rest: Sequence[int | None]) -> str:
    """The shape of a batch, for a message."""
    return f"({', '.join(['n', *('any' if size is None else str(size) for size in rest)])})"


def _stacked(each: Input, columns: Mapping[str, Array]) -> Filling:
    """All features as one tensor of shape (n, F). A column of shape (n, k) takes k places."""
    if len(each.rest) != 1 or any(column.ndim > 2 for column in columns.values()):
        raise _misfit(
            columns.values(),
            f"model.features: {len(columns)} columns cannot be stacked for input {each.name!r} of shape "
            f"{shape_of(each.rest)}; list the one column that has this shape",
        )
    rows = len(next(iter(columns.values())))
    width = sum(1 if column.ndim == 1 else column.shape[1] for column in columns.values())
    if each.rest[0] not in {None, width}:
        raise _misfit(
            columns.values(),
            f"{made_of(columns, width)}, and input {each.name!r} of the model takes {each.rest[0]}",
        )
    return Filling(each, columns, (rows, width), stacked=True)


def _single(each: Input, name: str, column: Array) -> Filling:
    """One column for one input: in its own shape, or with each row reshaped to the input's shape."""
    given = column.shape[1:]
    if len(given) == len(each.rest) and all(size in {None, held} for size, held in zip(each.rest, given, strict=True)):
        return Filling(each, {name: column}, column.shape, stacked=False)
    wanted = [size for size in each.rest if size is not None]
    if len(wanted) < len(each.rest) or math.prod(wanted) != math.prod(given):
        raise _misfit(
            [column],
            f"model.features: {name!r} has shape {shape_of(given)}, and input {each.name!r} of the model takes "
            f"{shape_of(each.rest)}",
        )
    return Filling(each, {name: column}, (len(column), *wanted), stacked=False)


def _in_order(inputs: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The columns in the order of the inputs: matched by name if both have the same names, in the given order if they
    have none in common.
    """
    exact: Callable[[str], str] = str
    for form in (exact, _canonical):
        held = {form(name): name for name in columns}
        wanted = [form(name) for name in inputs]
        # With as many names as columns on both sides, no name is ambiguous.
        if held.keys() == set(wanted) and len(held) == len(columns) == len(inputs):
            return [held[name] for name in wanted]
    if held.keys().isdisjoint(wanted):
        return list(columns)
    gone = next((name for name in inputs if _canonical(name) not in held), inputs[0])
    raise JobError(
        f"model.features: the model has an input {gone!r}, which is not among the columns it gets"
        + (nearest(gone, columns) or f": {', '.join(columns)}")
    )


def _canonical(name: str) -> str:
    """A name as torch writes it in the graph."""
    return re.sub(r"[^a-z0-9]+", "_", str(name).lower())


def _misfit(given: Iterable[Array], message: str) -> JobError | ValueError:
    """The error for values that do not fit the model: of the rows, if single rows may differ in shape; else of the
    job.
    """
    return ValueError(message) if any(column.ndim > 1 for column in given) else JobError(message)
