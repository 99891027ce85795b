"""Figures of one column, as states that merge exactly."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_list, is_number
from nightjar.inference.input.schemas import without_views
from nightjar.inference.metrics.encoding import State
from nightjar.inference.metrics.figures import ColumnFigures

Number = int | float | Decimal
"""A value of a number column. A Decimal is none that an int or a float can say: these are kept as such, so that each
decimal has one form."""

_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(slots=True)
class ColumnState(State):
    """One checked column: the numbers of rows, nulls, NaN and ±inf (in a list column, of items), and the extreme
    values.

    kind: number, date, timestamp, timestamp_utc, time, duration, list (of floats) or other; "" if only nulls were seen,
    mixed if files disagree. low, high: the smallest and greatest finite values; None unless the kind is a number or a
    time; times are in nanoseconds, exact in any unit. plus_inf, minus_inf: the numbers of +inf and -inf among
    `nonfinite`.
    """

    kind: str = ""
    rows: int = 0
    nulls: int = 0
    nonfinite: int = 0
    low: Number | None = None
    high: Number | None = None
    plus_inf: int = 0
    minus_inf: int = 0

    @property
    def nan(self) -> int:
        """The number of NaN values (or items)."""
        return self.nonfinite - self.plus_inf - self.minus_inf

    def values(self) -> list[Any]:
        """The fields as JSON values. A Decimal is its text."""
        return [str(value) if isinstance(value, Decimal) else value for value in astuple(self)]

    @classmethod
    def of_values(cls, values: Any) -> ColumnState:
        state = cls(*values)
        state.low, state.high = (Decimal(end) if isinstance(end, str) else end for end in (state.low, state.high))
        return state

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> ColumnState:
        """The figures of a column."""
        column = plain(column)
        state = cls(_kind(column.type), len(column), column.null_count)
        if state.kind == "number":
            state._take_numbers(column)
        elif state.kind == "list":
            state._leave_out_nonfinite(items(column))
        elif state.kind not in ("", "other"):
            state.low, state.high = _times(column)
        return state

    def update(self, column: pa.ChunkedArray) -> None:
        self.merge(ColumnState.of(column))

    def _take_numbers(self, column: pa.ChunkedArray) -> None:
        type_ = column.type
        if pa.types.is_decimal32(type_) or pa.types.is_decimal64(type_):
            column = column.cast(pa.decimal128(type_.precision, type_.scale))  # the smaller ones have no `min_max`
        elif pa.types.is_float16(type_):
            column = column.cast(pa.float32())
        low, high = pc.min_max(self._leave_out_nonfinite(column)).as_py().values()
        if low is not None and pa.types.is_floating(column.type):
            # A float32 0.1 counts as 0.1, as in `max: 0.1`, not as 0.10000000149: the shortest text that reads back
            # as the same float32. Adding 0.0 turns -0.0 into 0.0.
            native = np.float16 if pa.types.is_float16(type_) else column.type.to_pandas_dtype()
            low, high = (float(str(native(value))) + 0.0 for value in (low, high))
        elif low is not None and pa.types.is_decimal(type_):
            low, high = _in_one_form(low), _in_one_form(high)
        elif low is not None:
            low, high = int(low), int(high)
        self.low, self.high = low, high

    def _leave_out_nonfinite(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Count NaN and ±inf, and return the column without them."""
        self.nonfinite = count_nonfinite(column)
        if not self.nonfinite:
            return column
        column = column.cast(pa.float64())
        self.plus_inf, self.minus_inf = (
            int(pc.sum(pc.equal(column, pa.scalar(end, pa.float64()))).as_py() or 0) for end in (np.inf, -np.inf)
        )
        return column.filter(pc.is_finite(column))

    def merge(self, other: ColumnState) -> None:
        self.rows += other.rows
        self.nulls += other.nulls
        self.nonfinite += other.nonfinite
        self.plus_inf += other.plus_inf
        self.minus_inf += other.minus_inf
        if self.kind and other.kind and self.kind != other.kind:
            self.kind, self.low, self.high = "mixed", None, None
            return
        self.kind = self.kind or other.kind
        self.low = min((v for v in (self.low, other.low) if v is not None), key=exact, default=None)
        self.high = max((v for v in (self.high, other.high) if v is not None), key=exact, default=None)

    def results(self) -> ColumnFigures:
        found = ColumnFigures(
            rows=self.rows,
            nulls=self.nulls,
            nonfinite=self.nonfinite,
            min=_shown(self.low, self.kind),
            max=_shown(self.high, self.kind),
            kind=self.kind,
        )
        if not self.nonfinite:
            return found
        return replace(found, nan=self.nan, plus_inf=self.plus_inf, minus_inf=self.minus_inf)


def exact(value: Number) -> Decimal:
    """The number that a text with this value says, for comparing: a float is the shortest text that reads back as it.

    So 0.1 is one number as a float, as a decimal and in a job file, and whole numbers of any size stay apart.
    """
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _in_one_form(value: Decimal) -> Number:
    if value == value.to_integral_value():
        return int(value)
    near = float(value)
    if math.isfinite(near) and exact(near) == value:
        return near
    return Decimal(f"{value:f}".rstrip("0"))


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column's values without dictionary, extension or view type, so that Arrow can take any of them."""
    if isinstance(column.type, pa.BaseExtensionType):
        storage = column.type.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=storage)
    if (kind := without_views(column.type)) != column.type:
        column = column.cast(kind)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type of such a column as `plain` gives it."""
    kind = without_views(type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_)
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def nan_as_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with nulls where it is NaN, as which pandas writes them."""
    if not pa.types.is_floating(column.type) or not pc.any(missing := pc.is_nan(column)).as_py():
        return column
    return pc.if_else(missing, pa.scalar(None, column.type), column)


def floats(column: pa.ChunkedArray) -> np.ndarray:
    """A column as float64, with nulls as NaN."""
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    values: np.ndarray = plain(column).cast(pa.float64(), safe=False).to_numpy()
    return values


def _kind(type_: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_null(type_):
        return ""
    if is_number(type_):
        return "number"
    if is_.is_timestamp(type_):
        return "timestamp_utc" if type_.tz else "timestamp"
    for test, kind in ((is_.is_date, "date"), (is_.is_time, "time"), (is_.is_duration, "duration")):
        if test(type_):
            return kind
    while is_list(type_):
        type_ = type_.value_type
        if is_.is_floating(type_):
            return "list"
    return "other"


def holds_floats(type_: pa.DataType) -> bool:
    """Whether a type is a float, or a list of floats at any depth."""
    return pa.types.is_floating(type_) or _kind(type_) == "list"


def items(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The floats in a column; for lists at any depth, their items."""
    while not pa.types.is_floating(column.type):
        column = pc.list_flatten(column)
    return column


def count_nonfinite(column: pa.ChunkedArray) -> int:
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


def _times(column: pa.ChunkedArray) -> tuple[int | None, int | None]:
    type_ = column.type
    if pa.types.is_date(type_):
        factor = _UNIT_NS["ms"] if pa.types.is_date64(type_) else 86_400 * _UNIT_NS["s"]
    else:
        factor = _UNIT_NS[type_.unit]
    whole = column.cast(pa.int32() if type_.bit_width == 32 else pa.int64())
    low, high = pc.min_max(whole).as_py().values()
    return (None, None) if low is None else (low * factor, high * factor)


def _shown(value: Any, kind: str) -> Any:
    if value is None or kind != "number":
        return value if value is None else _iso(value, kind)
    return str(value) if isinstance(value, Decimal) else value


def _iso(value: int, kind: str) -> str:
    seconds, rest = divmod(value, 10**9)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    if kind == "duration":
        return f"PT{seconds}{fraction}S" if value >= 0 else f"-{_iso(-value, kind)}"
    date, time = str(np.datetime64(seconds, "s")).split("T")
    if kind == "date":
        return date
    if kind == "time":
        return time + fraction
    return f"{date}T{time}{fraction}" + ("+00:00" if kind == "timestamp_utc" else "")
