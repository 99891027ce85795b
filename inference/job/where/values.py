"""Written values in the types of columns, and which types compare with each other."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_text

Value: TypeAlias = pa.Scalar | Decimal
"""A written value in the type of a column. A `Decimal` is a fraction that is written for a column of integers."""

_BEYOND = 2**64
"""More than every integer. Python would need minutes to write out the digits of 1e999999999."""


def scalar(written: Any, quoted: bool, own: pa.DataType) -> Value | None:
    """A written value in the type that a column of type `own` is compared in; None if the type has no such value."""
    kind = compared_as(own)
    if isinstance(written, bool):
        return pa.scalar(written, kind) if is_.is_boolean(kind) else None
    if quoted:
        if is_text(kind):
            return pa.scalar(written, kind)
        if is_.is_time(kind):
            return _time(written, kind)
        return pa.scalar(written).cast(kind) if is_.is_temporal(kind) and not is_.is_duration(kind) else None
    if is_.is_integer(kind):
        number = Decimal(written)
        if number != number.to_integral_value():
            return number
        return pa.scalar(int(number), kind) if number.copy_abs() < _BEYOND else None
    if is_.is_floating(kind):
        return pa.scalar(float(written)).cast(own).cast(kind)
    return pa.scalar(Decimal(written)) if is_.is_decimal(kind) else None


def _time(written: str, kind: pa.DataType) -> pa.Scalar | None:
    """A time of day; None if it has an offset.

    Raises:
        ValueError, ArrowInvalid: It is no time, or finer than the type.
    """
    time = dt.time.fromisoformat(written)
    if time.tzinfo is not None:
        return None
    # Python cuts off what is finer than microseconds, and Arrow what is finer than the type, but not of a timestamp.
    fraction = written.replace(",", ".").partition(".")[2].rstrip("0")
    whole = f"1970-01-01 {time:%H:%M:%S}" + (f".{fraction}" if fraction else "")
    return pa.scalar(whole).cast(pa.timestamp(kind.unit)).cast(kind)


def listed(values: Sequence[Value], own: pa.DataType) -> pa.Array:
    """Values that are looked for in a column's values, of the type `own`, in the type in which these are compared. What
    no value of the type equals is left out: a fraction among integers, and a decimal of more digits.
    """
    kind = compared_as(own)
    wanted = [each for value in values if (each := _in_type(value, kind)) is not None]
    if is_.is_floating(kind) and any(value.as_py() == 0 for value in wanted):
        wanted += [pa.scalar(zero, kind) for zero in (0.0, -0.0)]  # Arrow looks for the bits, and these two are equal
    return pa.array(wanted, kind)


def _in_type(value: Value, kind: pa.DataType) -> pa.Scalar | None:
    if isinstance(value, Decimal):
        return None
    if not is_.is_decimal(kind):
        return value
    try:
        return pa.scalar(value.as_py(), kind)
    except pa.ArrowInvalid:
        return None


def compared_as(kind: pa.DataType) -> pa.DataType:
    """The type in which Arrow can compare the values of a column, each unchanged."""
    kind = kind.value_type if is_.is_dictionary(kind) else kind
    if is_.is_float16(kind):
        return pa.float32()
    if is_.is_decimal32(kind) or is_.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
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
