"""Comparisons of numbers and times as mathematics has them.

Arrow casts both sides to one type before it compares them. The cast of an integer or a time changes no value: it raises
if the type lacks one, as floats lack 2**53 + 1, and nanoseconds the year 9999. Such columns are compared as decimals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from nightjar.inference.job.where.values import Value

_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": pc.equal,
    "NEQ": pc.not_equal,
    "LT": pc.less,
    "LTE": pc.less_equal,
    "GT": pc.greater,
    "GTE": pc.greater_equal,
}
OPERATORS = frozenset(_COMPARED)
"""The names that sqlglot gives to comparisons."""

_TURNED = {"LT": "GT", "LTE": "GTE", "GT": "LT", "GTE": "LTE"}
_ROUNDED = {"LT": pc.ceil, "LTE": pc.floor, "GT": pc.floor, "GTE": pc.ceil}
"""How a float is rounded, so that an integer compares with the result as with the float itself."""

_BEYOND = 2.0**64
"""Beyond every 64-bit integer."""

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def turned(operator: str) -> str:
    """The operator that says the same with the sides exchanged."""
    return _TURNED.get(operator, operator)


def with_value(operator: str, value: Value, kind: pa.DataType) -> Callable[[Any], Any]:
    """Compares a column, or its `pc.field`, with a value as `values.scalar` makes it. kind: the type of the column."""
    if isinstance(value, Decimal):
        operator, value = _without_fraction(operator, value, kind)
    compare = _COMPARED[operator]
    return lambda column: compare(column, value)


def _without_fraction(operator: str, fraction: Decimal, kind: pa.DataType) -> tuple[str, pa.Scalar]:
    """The comparison with an integer that says the same of integers: `> 0.5` is `>= 1`. A null gives a null.

    What is true of no integer is "less than the least"; what is true of all is "at least the least".
    """
    limits = np.iinfo(kind.to_pandas_dtype())
    least, greatest = int(limits.min), int(limits.max)
    above = "GTE" if operator in ("GT", "GTE", "NEQ") else "LT"
    at = least if operator in ("EQ", "NEQ") else max(least, math.ceil(fraction))
    if at > greatest:
        above, at = "LT" if above == "GTE" else "GTE", least
    return above, pa.scalar(at, kind)


def columns(operator: str, one: Any, other: Any) -> Any:
    """Compare two columns, or their `pc.field`s.

    Raises:
        ArrowInvalid, ArrowNotImplementedError: Arrow cannot compare values of these types.
    """
    one, other = (_in_utc(each) for each in (one, other))
    try:
        return _COMPARED[operator](one, other)
    except pa.ArrowInvalid:
        # Exact, but several times slower, so only for values that need it.
        if all(is_.is_integer(each.type) or is_.is_timestamp(each.type) for each in (one, other)):
            return _COMPARED[operator](_as_decimals(one), _as_decimals(other))
        if is_.is_integer(one.type) and is_.is_floating(other.type):
            return _with_floats(operator, one, other)
        if is_.is_floating(one.type) and is_.is_integer(other.type):
            return _with_floats(turned(operator), other, one)
        raise


def _in_utc(column: Any) -> Any:
    """Instants in UTC, because Arrow compares none of two time zones. A `pc.field` as it is: only columns of one type
    are compared as such.
    """
    if isinstance(column, pa.ChunkedArray) and is_.is_timestamp(column.type) and column.type.tz:
        return column.cast(pa.timestamp(column.type.unit, "UTC"))
    return column


def _as_decimals(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers as they are, times in nanoseconds; both of 64 bits fit into a decimal of 128."""
    if is_.is_timestamp(column.type):
        ticks = column.cast(pa.int64()).cast(pa.decimal128(19, 0))
        return pc.multiply(ticks, pa.scalar(Decimal(_NANOSECONDS[column.type.unit])))
    return column.cast(pa.decimal128(20, 0))


def _with_floats(operator: str, whole: pa.ChunkedArray, floats: pa.ChunkedArray) -> pa.ChunkedArray:
    """Compare integers with floats. NaN is unequal to all, and neither less nor more."""
    whole, floats = _as_decimals(whole), floats.cast(pa.float64())
    if operator in ("EQ", "NEQ"):
        floor = pc.floor(floats)
        same = pc.and_(pc.equal(whole, _whole_decimals(floor)), pc.equal(floats, floor))
        return same if operator == "EQ" else pc.invert(same)
    found = _COMPARED[operator](whole, _whole_decimals(_ROUNDED[operator](floats)))
    return pc.and_(found, pc.invert(pc.is_nan(floats)))


def _whole_decimals(floats: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whole floats as decimals, those beyond all integers as one beyond them; NaN as some number."""
    beyond = pc.if_else(pc.greater(floats, 0.0), _BEYOND, -_BEYOND)
    return pc.if_else(pc.less(pc.abs(floats), _BEYOND), floats, beyond).cast(pa.decimal128(20, 0))
