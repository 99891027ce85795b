"""What is counted of one checked column, as a state that merges exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(slots=True)
class ColumnState:
    """One column: rows, nulls, NaN and ±inf (in a list column: of its items), the least and the greatest.

    kind: number, date, timestamp, timestamp_utc, time, duration, list (of floats) or other; "" when nothing
    but nulls was seen, mixed when files disagree. low, high: finite values only; None unless the kind is a
    number or a time; times as nanoseconds, exact in any unit.
    """

    kind: str = ""
    rows: int = 0
    nulls: int = 0
    nonfinite: int = 0
    low: int | float | None = None
    high: int | float | None = None

    def update(self, column: pa.ChunkedArray) -> None:
        column = plain(column)
        kind = _kind(column.type)
        state = ColumnState(kind, len(column), column.null_count)
        if kind == "number":
            state.nonfinite, state.low, state.high = _numbers(column)
        elif kind == "list":
            state.nonfinite, _, _ = _numbers(_items(column))
        elif kind not in ("", "other"):
            state.low, state.high = _times(column)
        self.merge(state)

    def merge(self, other: ColumnState) -> None:
        self.rows += other.rows
        self.nulls += other.nulls
        self.nonfinite += other.nonfinite
        if self.kind and other.kind and self.kind != other.kind:
            self.kind, self.low, self.high = "mixed", None, None
            return
        self.kind = self.kind or other.kind
        self.low = min((v for v in (self.low, other.low) if v is not None), default=None)
        self.high = max((v for v in (self.high, other.high) if v is not None), default=None)

    def results(self) -> dict[str, Any]:
        """JSON-able; `min` and `max` of times as ISO 8601 text."""
        counts = {"rows": self.rows, "nulls": self.nulls, "nonfinite": self.nonfinite}
        low, high = _shown(self.low, self.kind), _shown(self.high, self.kind)
        return {**counts, "min": low, "max": high, "kind": self.kind}


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without dictionary or extension: the values themselves."""
    if isinstance(column.type, pa.BaseExtensionType):
        storage = column.type.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=storage)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column


def _kind(type_: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_null(type_):
        return ""
    if is_.is_integer(type_) or is_.is_floating(type_) or is_.is_decimal(type_) or is_.is_boolean(type_):
        return "number"
    if is_.is_timestamp(type_):
        return "timestamp_utc" if type_.tz else "timestamp"
    for test, kind in ((is_.is_date, "date"), (is_.is_time, "time"), (is_.is_duration, "duration")):
        if test(type_):
            return kind
    while is_.is_list(type_) or is_.is_large_list(type_) or is_.is_fixed_size_list(type_):
        type_ = type_.value_type
        if is_.is_floating(type_):
            return "list"
    return "other"


def _items(column: pa.ChunkedArray) -> pa.ChunkedArray:
    while not pa.types.is_floating(column.type):
        column = pc.list_flatten(column)
    return column


def _numbers(column: pa.ChunkedArray) -> tuple[int, Any, Any]:
    """How many are not finite, and the least and greatest of the others."""
    type_ = column.type
    if pa.types.is_decimal(type_):
        column = column.cast(pa.float64())
    elif pa.types.is_float16(type_):
        column = column.cast(pa.float32())
    nonfinite = 0
    if pa.types.is_floating(column.type):
        finite = pc.is_finite(column)
        nonfinite = int(pc.sum(pc.invert(finite)).as_py() or 0)
        if nonfinite:
            column = column.filter(finite)
    low, high = pc.min_max(column).as_py().values()
    if low is None:
        return nonfinite, None, None
    if not pa.types.is_floating(column.type):
        return nonfinite, int(low), int(high)
    # A float32 0.1 is 0.1 to whoever wrote `max: 0.1`, not 0.10000000149: the shortest text that reads back
    # as the same float32. Adding 0.0 makes -0.0 plain 0.0.
    native = np.float16 if pa.types.is_float16(type_) else column.type.to_pandas_dtype()
    return nonfinite, float(str(native(low))) + 0.0, float(str(native(high))) + 0.0


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
    return value if value is None or kind == "number" else _iso(value, kind)


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
