"""Figures of one column, as states that merge exactly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import holds_floats, is_number
from nightjar.inference.input.schemas import without_views
from nightjar.inference.jsonform import SELDOM
from nightjar.inference.metrics.encoding import State

LONGEST = 200
"""The longest value in characters. A column with a longer one is text and no category, and has neither counts nor
slices; a longer name is no class.
"""

Number = int | float
"""A value of a number column."""


def number(value: Number) -> str:
    """A number as short as is exact, so that a value just past its limit never reads like the limit."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)


@dataclass(slots=True)
class ColumnState(State):
    """One column: the numbers of rows, nulls, NaN and ±inf (in a list column, of items), and the extreme values."""

    kind: str = ""
    """The kind of the column: number, list (of floats) or other; "" if only nulls were seen."""

    rows: int = 0
    """Rows, nulls included."""

    nulls: int = 0
    """Rows whose value is null."""

    nonfinite: int = 0
    """Values that are NaN, +inf or -inf; in a list column, items."""

    min: Number | None = None
    """The smallest finite value; None unless the kind is number and a value is finite."""

    max: Number | None = None
    """The greatest finite value; None unless the kind is number and a value is finite."""

    plus_inf: int = field(default=0, metadata=SELDOM)
    """Values of `nonfinite` that are +inf."""

    minus_inf: int = field(default=0, metadata=SELDOM)
    """Values of `nonfinite` that are -inf."""

    @property
    def nan(self) -> int:
        """The number of NaN values (or items)."""
        return self.nonfinite - self.plus_inf - self.minus_inf

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> ColumnState:
        """The figures of a column."""
        half, column = pa.types.is_float16(plain_type(column.type)), plain(column)
        state = cls(kind_of(column.type), len(column), column.null_count)
        if state.kind == "number":
            state._take_numbers(column, half)
        elif state.kind == "list":
            state._leave_out_nonfinite(_items(column))
        return state

    def update(self, column: pa.ChunkedArray) -> None:
        self.merge(ColumnState.of(column))

    def _take_numbers(self, column: pa.ChunkedArray, half: bool) -> None:
        """half: whether they are float16."""
        low, high = pc.min_max(self._leave_out_nonfinite(column)).as_py().values()
        if low is not None and pa.types.is_floating(column.type):
            # A float32 0.1 counts as 0.1, as in `max: 0.1`, not as 0.10000000149: the shortest text that reads back
            # as the same float32. The text of a whole number may have zeros for its last digits, until it has an
            # exponent. Adding 0.0 turns -0.0 into 0.0.
            native = np.float16 if half else column.type.to_pandas_dtype()
            low, high = (
                (value if value.is_integer() and abs(value) < 1e16 else float(str(native(value)))) + 0.0
                for value in map(float, (low, high))
            )
        elif low is not None and pa.types.is_decimal(column.type):
            low, high = (int(value) if value == value.to_integral_value() else float(value) for value in (low, high))
        elif low is not None:
            low, high = int(low), int(high)
        self.min, self.max = low, high

    def _leave_out_nonfinite(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Count NaN and ±inf, and return the column without them."""
        self.nonfinite = _count_nonfinite(column)
        if not self.nonfinite:
            return column
        column = column.cast(pa.float64())
        self.plus_inf, self.minus_inf = (
            int(pc.sum(pc.equal(column, pa.scalar(end, pa.float64()))).as_py() or 0) for end in (np.inf, -np.inf)
        )
        return column.filter(pc.is_finite(column))


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column's values without dictionary, extension or view type, float16 or small decimals, so that Arrow can
    take, filter and count any of them.
    """
    if isinstance(column.type, pa.BaseExtensionType):
        storage = column.type.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=storage)
    if (kind := without_views(column.type)) != column.type:
        column = column.cast(kind)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    return column.cast(pa.float32()) if pa.types.is_float16(kind) else column


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type of such a column without dictionary, extension or view type."""
    kind = without_views(type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_)
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def as_text(value: Any) -> str:
    """A value as the text by which it is counted."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def nan_as_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with nulls where it is NaN, as which pandas writes them."""
    if not pa.types.is_floating(column.type) or not pc.any(missing := pc.is_nan(column)).as_py():
        return column
    return pc.if_else(missing, pa.scalar(None, column.type), column)


def floats(column: pa.ChunkedArray) -> np.ndarray:
    """A column as float64, with nulls as NaN."""
    values: np.ndarray = plain(column).cast(pa.float64(), safe=False).to_numpy()
    return values


def kind_of(type_: pa.DataType) -> str:
    """The kind of a column of this type, as in `ColumnState`; "" for nulls."""
    type_ = plain_type(type_)
    if pa.types.is_null(type_):
        return ""
    if is_number(type_):
        return "number"
    return "list" if holds_floats(type_) else "other"


def _items(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The floats in a column; for lists at any depth, their items."""
    while not pa.types.is_floating(column.type):
        column = pc.list_flatten(column)
    return column


def _count_nonfinite(column: pa.ChunkedArray) -> int:
    """Count the numbers that are NaN or ±inf.

    A sum is finite only if all its terms are, and takes a fifth of the time of a check of each value. If the sum is not
    finite, or if there are nulls, each value is checked.
    """
    if not pa.types.is_floating(column.type):
        return 0
    if not column.null_count:
        with np.errstate(over="ignore", invalid="ignore"):
            if all(np.isfinite(np.add.reduce(chunk.to_numpy())) for chunk in column.chunks):
                return 0
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    return int(pc.sum(pc.invert(pc.is_finite(column))).as_py() or 0)
