"""Makes Arrow arrays of Python's objects, as a predictor returns them in lists, Series and arrays of objects.

Arrow infers a type from the first object. After a date it drops the time of a moment; of dicts it knows only the keys
that some row has; an integer is one of int64. What became of a row would depend on those beside it, or a value would
not fit that does, so such objects are looked at one by one.
"""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import is_list
from nightjar.inference.predictors.arrays import is_missing

_LIKE = 0.8
"""How alike two keys are of which one is taken for a misspelling of the other, as `difflib` counts."""


def from_objects(values: Sequence[Any], declared: pa.DataType) -> pa.Array:
    """The n values as an array of n, of their own type, which may differ from the declared one.

    Raises:
        ValueError: A value is of no type, or they are of several. pyarrow raises TypeError and OverflowError, too.
    """
    if is_list(declared) or pa.types.is_struct(declared):
        values = [None if is_missing(value) else value for value in values]
    if pa.types.is_struct(declared) and all(value is None or isinstance(value, Mapping) for value in values):
        return _structs(values, declared)
    if is_list(declared) and _is_looked_at(leaf(declared)) and _are_lists(values):
        return _lists(values, declared)
    if pa.types.is_temporal(declared):
        return _times(values, declared)
    return _inferred(values, declared)


def leaf(kind: pa.DataType) -> pa.DataType:
    """The type of what lies in lists, of any depth."""
    while is_list(kind):
        kind = kind.value_type
    return kind


def nan_is_null(declared: pa.DataType) -> bool:
    """Whether NaN means null, as where numpy and pandas write missing values. Only among floats NaN is a value, and
    there may be some within lists and structs.
    """
    return not (pa.types.is_floating(declared) or is_list(declared) or pa.types.is_struct(declared))


def _inferred(values: Sequence[Any], declared: pa.DataType) -> pa.Array:
    nulls = nan_is_null(declared)
    try:
        return pa.array(values, from_pandas=nulls)
    except OverflowError:  # Arrow infers int64 for every integer
        return pa.array(values, _of_uint64(declared), from_pandas=nulls)


def _of_uint64(declared: pa.DataType) -> pa.DataType:
    """A list type as deep as the declared one, of uint64; or uint64 itself."""
    return pa.list_(_of_uint64(declared.value_type)) if is_list(declared) else pa.uint64()


def _is_looked_at(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) or pa.types.is_temporal(kind))


# ---- structs and lists of what is looked at -------------------------------------------------------------------


def _structs(values: Sequence[Mapping[str, Any] | None], declared: pa.DataType) -> pa.Array:
    """Dicts with the declared keys alone; a key that a dict lacks is null."""
    names = tuple(field.name for field in declared)
    for value in values:
        if value is not None and value.keys() != set(names):
            _check_spelling(names, frozenset(value))
    columns = [
        from_objects([None if value is None else value.get(field.name) for value in values], field.type)
        for field in declared
    ]
    return pa.StructArray.from_arrays(columns, list(names), mask=_nulls(values))


@lru_cache(maxsize=256)
def _check_spelling(declared: tuple[str, ...], given: frozenset[Any]) -> None:
    """Raise a ValueError if a key of a dict is probably a declared one that it lacks."""
    others = [str(key) for key in given.difference(declared)]
    for name in declared:
        if name not in given and (close := difflib.get_close_matches(name, others, 1, _LIKE)):
            raise ValueError(f"a dict has {close[0]!r}, which is not declared, and no {name!r}")


def _are_lists(values: Sequence[Any]) -> bool:
    """Whether each value is None or a list of some kind, and they are not simply arrays of one type."""
    if not all(value is None or isinstance(value, list | tuple | np.ndarray) for value in values):
        return False
    kinds = {getattr(value, "dtype", None) for value in values}
    return len(kinds) > 1 or not kinds.isdisjoint({None, np.dtype(object)})


def _lists(values: Sequence[Any], declared: pa.DataType) -> pa.Array:
    items = from_objects([item for value in values if value is not None for item in value], declared.value_type)
    ends = np.cumsum([0 if value is None else len(value) for value in values], dtype=np.int32)
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, items, mask=_nulls(values))


def _nulls(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


# ---- dates, times and spans -----------------------------------------------------------------------------------


def _times(values: Sequence[Any], declared: pa.DataType) -> pa.Array:
    """Values of a type of time, in the unit that holds each of them exactly.

    Raises:
        ValueError: They are of several kinds, as dates and numbers; Arrow would take the numbers for ticks.
    """
    found = [_plain(value) for value in values]
    kinds = {type(value) for value in found} - {NoneType}
    if not kinds:
        return pa.nulls(len(found))
    if all(issubclass(kind, dt.date) for kind in kinds) and any(issubclass(kind, dt.datetime) for kind in kinds):
        moments = [value if value is None else _moment(value, declared) for value in found]
        return pa.array(moments, pa.timestamp(_unit(moments, "nanosecond")))
    if all(issubclass(kind, dt.timedelta) for kind in kinds):
        return pa.array(found, pa.duration(_unit(found, "nanoseconds")))
    if len(kinds) > 1:
        raise ValueError(f"it holds values of several types: {', '.join(sorted(kind.__name__ for kind in kinds))}")
    return pa.array(found)


def _plain(value: Any) -> Any:
    """A value as Python or pandas has it, exactly; None if it is missing."""
    if is_missing(value):
        return None
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if not isinstance(value, np.datetime64 | np.timedelta64):
        return value
    if np.datetime_data(value.dtype) == ("ns", 1):
        import pandas as pd

        return pd.Timestamp(value) if isinstance(value, np.datetime64) else pd.Timedelta(value)
    item = value.item()
    return value if isinstance(item, int) else item  # an int if Python has no such date or span


def _moment(value: dt.date, declared: pa.DataType) -> dt.datetime:
    """A date or a moment as a moment. For a declared date or time of day it is that of its own time zone."""
    if not isinstance(value, dt.datetime):
        if pa.types.is_time(declared):
            raise ValueError("it holds dates, which have no time of day")
        return dt.datetime.combine(value, dt.time())
    return value if pa.types.is_timestamp(declared) else value.replace(tzinfo=None)


def _unit(values: Iterable[Any], finest: str) -> str:
    """The unit of an array of moments or spans. finest: the attribute of pandas' own that Python's classes lack."""
    return "ns" if any(getattr(value, finest, 0) for value in values) else "us"
