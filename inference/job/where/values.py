"""Written values in the types of columns, and which types compare with each other."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_text


def scalar(written: Any, quoted: bool, kind: pa.DataType) -> pa.Scalar | None:
    """A written value in the type of a column; None if the type has no such value."""
    if isinstance(written, bool):
        return pa.scalar(written, kind) if is_.is_boolean(kind) else None
    if quoted:
        if is_text(kind):
            return pa.scalar(written, kind)
        if is_.is_time(kind):
            time = dt.time.fromisoformat(written)
            return pa.scalar(time, kind) if time.tzinfo is None else None
        return pa.scalar(written).cast(kind) if is_.is_temporal(kind) and not is_.is_duration(kind) else None
    if is_.is_integer(kind):
        whole = Decimal(written)
        return pa.scalar(int(whole), kind) if whole == whole.to_integral_value() else pa.scalar(float(written))
    if is_.is_floating(kind):
        return pa.scalar(float(written)).cast(kind)
    return pa.scalar(Decimal(written)) if is_.is_decimal(kind) else None


def listed(values: Sequence[pa.Scalar]) -> pa.Array:
    """Values that are looked for, in the type of the column, or of a float among whole numbers."""
    kind, written = values[0].type, [value.as_py() for value in values]
    if is_.is_decimal(kind) and len(written) > 1:
        return pa.array(written)
    kind = next((value.type for value in values if is_.is_floating(value.type)), kind)
    if is_.is_floating(kind) and 0 in written:
        written += [0.0, -0.0]  # Arrow looks for the bits, and these two are equal
    return pa.array(written, kind)


def compared_as(kind: pa.DataType) -> pa.DataType:
    """The type in which Arrow can compare the values of a column."""
    kind = kind.value_type if is_.is_dictionary(kind) else kind
    if is_.is_float16(kind):
        return pa.float32()
    return pa.large_string() if is_.is_string_view(kind) else kind


def family(kind: pa.DataType) -> str:
    """Types of one family compare with each other; empty for a type that does not compare."""
    kind = compared_as(kind)
    if is_.is_integer(kind) or is_.is_floating(kind) or is_.is_decimal(kind):
        return "number"
    if is_text(kind):
        return "text"
    if is_.is_timestamp(kind):
        return "instant" if kind.tz else "time"
    if is_.is_date(kind):
        return "date"
    return str(kind) if is_.is_boolean(kind) or is_.is_time(kind) else ""
