"""Converts the values of one output to an Arrow array of exactly the declared type.

Floats may lose precision; one beyond the largest becomes infinite, as in numpy. Integers must fit. A float becomes an
integer only if it is a whole number, a moment a date only if it is midnight. Numbers and text are never converted into
each other. None and values that numpy masks become null, and so does NaN, except among floats and in lists of numbers.

Whether a value fits never depends on the other rows: they are another batch when the row is scored alone.
"""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import holds_list_view, is_list, is_number, is_text, type_name
from nightjar.inference.errors import OutputInvalid
from nightjar.inference.predictors.arrays import Array, from_tensor, is_missing, is_series, is_tensor, joined


def to_arrow(name: str, value: Any, declared: pa.DataType, rows: int | None = None) -> pa.Array:
    """Convert one output's values to an array of exactly the declared type. rows: the expected number of values.

    Raises:
        OutputInvalid: The values do not fit the type.
    """
    if isinstance(declared, pa.FixedShapeTensorType):
        if isinstance(value, pa.Array | pa.ChunkedArray) and value.type == declared:
            held = joined(value) if isinstance(value, pa.ChunkedArray) else value
            _check_no_null(name, held.null_count + held.storage.flatten().null_count)
            return held
        return _tensors(name, to_arrow(name, value, _nested(declared), rows), declared)
    try:
        return _converted(name, value, declared, rows)
    except OutputInvalid:
        objects = getattr(value, "dtype", None) == np.dtype(object) and value.ndim > 0
        if not (isinstance(value, list | tuple) or objects) or len(value) < 2:
            raise
    # numpy and Arrow gave all values one type or shape, and each may fit by itself. Halves take fewer calls than each.
    values, middle = list(value), len(value) // 2
    halves = values[:middle], values[middle:]
    return pa.concat_arrays([to_arrow(name, half, declared, len(half)) for half in halves])


def _converted(name: str, value: Any, declared: pa.DataType, rows: int | None) -> pa.Array:
    """As `to_arrow`, all values as one array."""
    try:
        array = _array(value, declared, rows)
        fits = _fits(array.type, declared)
        cast = _cast(array, declared) if fits else None
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise OutputInvalid(f"output {name!r} does not fit {type_name(declared)}: {error}") from error
    if cast is None:
        raise OutputInvalid(
            f"output {name!r} is declared {type_name(declared)}, but the predictor returned {type_name(array.type)}"
        )
    return cast


def _nested(kind: pa.DataType) -> pa.DataType:
    """A tensor's type as lists in lists."""
    nested = kind.value_type
    for length in reversed(kind.shape):
        nested = pa.list_(nested, length)
    return nested


def _tensors(name: str, lists: pa.Array, declared: pa.DataType) -> pa.Array:
    """Tensors from lists in lists, each of its dimension's length."""
    values, nulls = lists, lists.null_count
    for _ in declared.shape:
        values = values.flatten()
        nulls += values.null_count
    _check_no_null(name, nulls)
    storage = pa.FixedSizeListArray.from_arrays(values, type=declared.storage_type)
    return pa.ExtensionArray.from_storage(declared, storage)


def _check_no_null(name: str, nulls: int) -> None:
    if nulls:
        raise OutputInvalid(f"output {name!r} is a tensor, which has no nulls; a row is None, or has a None inside")


def _array(value: Any, declared: pa.DataType, rows: int | None) -> pa.Array:
    """The values as an Arrow array of their own type."""
    if isinstance(value, pa.Array):
        if holds_list_view(value.type):
            raise ValueError(f"Arrow cannot convert {value.type}; return a list")
        return value.storage if isinstance(value, pa.ExtensionArray) else value
    if is_series(value):
        # In a numpy-backed float Series NaN stays NaN, as in an array; pandas' own types have nulls.
        numpy_backed = isinstance(value.dtype, np.dtype) or pa.types.is_struct(_leaf(declared))
        plain = value.to_numpy() if numpy_backed else pa.array(value)
        if numpy_backed and is_list(declared) and _holds_nothing(plain):
            return pa.nulls(len(plain))
        return _array(plain, declared, rows)
    if is_tensor(value):
        return _from_numpy(from_tensor(value), declared, rows)
    if hasattr(value, "__arrow_c_stream__") and not hasattr(value, "columns"):
        # A Series of polars, say: as an array of numpy its integers beside nulls would be floats.
        return _array(joined(pa.chunked_array(value)), declared, rows)
    if isinstance(value, list | tuple):
        return _from_list(list(value), declared, rows)
    return _from_numpy(value if isinstance(value, np.ma.MaskedArray) else np.asarray(value), declared, rows)


def _from_list(values: list[Any], declared: pa.DataType, rows: int | None) -> pa.Array:
    values = [from_tensor(item) if is_tensor(item) else None if item is np.ma.masked else item for item in values]
    if any(isinstance(item, np.ma.MaskedArray) and np.ma.is_masked(item) for item in values):
        return _from_numpy(_stacked(values, np.ma.stack), declared, rows)  # np.stack and Arrow would lose the masks
    if (
        values
        and all(isinstance(item, np.ndarray) for item in values)
        and not (is_list(declared) and values[0].ndim < 2)
    ):
        return _from_numpy(_stacked(values, np.stack), declared, rows)
    return _from_objects(values, declared)


def _stacked(values: list[Any], stack: Callable[[list[Any]], Array]) -> Array:
    """Arrays of one type as one array: of several, the integers of some would be rounded, or become text."""
    if len(kinds := {np.asanyarray(each).dtype for each in values}) > 1:
        raise ValueError(f"it holds arrays of {', '.join(sorted(map(str, kinds)))}")
    return stack(values)


def _from_numpy(values: Array, declared: pa.DataType, rows: int | None) -> pa.Array:
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if values.ndim == 0:
        values = values.reshape(1)  # `squeeze` on a batch of one row: a common mistake
    elif rows == 1 and is_list(declared) and values.ndim == 1 and values.dtype != object:
        values = values.reshape(1, -1)  # the same for an output of lists
    if values.ndim > 1 and not is_list(declared):
        if values.size != len(values):
            raise ValueError(f"it has shape {values.shape}, and {type_name(declared)} holds one value a row")
        values = values.reshape(len(values))
    if values.ndim > 1 and np.ma.is_masked(values):
        raise ValueError("it masks some of the numbers of a row; return lists with None in their place")
    if values.dtype == object:
        return _from_list(values.tolist(), declared, rows)
    if not is_list(declared) and not pa.types.is_floating(declared) and _holds_nothing(values):
        return pa.nulls(len(values))
    return _flat_or_lists(values, declared)


def _holds_nothing(values: Array) -> bool:
    """Whether all values are NaN, as those of any type are where none of these rows has one."""
    return values.dtype.kind == "f" and values.ndim == 1 and bool(np.isnan(values).all())


def _flat_or_lists(values: Array, declared: pa.DataType) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values, from_pandas=_nan_is_null(declared))
    if values.shape[1] == 0:
        return pa.array(values.tolist())
    inner = _flat_or_lists(values.reshape(-1, *values.shape[2:]), declared)
    return pa.FixedSizeListArray.from_arrays(inner, values.shape[1])


def _fits(source: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values of one type may be converted to the other at all. The cast then checks each value."""
    if source == declared or pa.types.is_null(source):
        return True
    if pa.types.is_dictionary(source):
        return _fits(source.value_type, declared)
    if is_list(source) and is_list(declared):
        return _fits(source.value_type, declared.value_type)
    if pa.types.is_struct(source) and pa.types.is_struct(declared):
        held = {field.name: field.type for field in source}
        return all(field.name in held and _fits(held[field.name], field.type) for field in declared)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    kinds = (is_number, is_text, pa.types.is_temporal, lambda type_: any(is_kind(type_) for is_kind in binary))
    return any(kind(source) and kind(declared) for kind in kinds)


def _cast(array: pa.Array, declared: pa.DataType) -> pa.Array:
    if array.type == declared:
        return array
    if pa.types.is_struct(declared) and not pa.types.is_null(array.type):
        # Arrow would look for the fields in their order, and refuse those that are not declared.
        held = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        fields = [_cast(held[field.name], field.type) for field in declared]
        return pa.StructArray.from_arrays(fields, fields=list(declared), mask=array.is_null())
    if is_list(declared) and pa.types.is_struct(_leaf(declared)) and not pa.types.is_null(array.type):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        lists = _in_lists(_cast(array.flatten(), declared.value_type), lengths, array.is_null())
        return lists if lists.type == declared else lists.cast(declared)
    if pa.types.is_floating(array.type) and _nan_is_null(declared):
        array = pc.if_else(pc.is_nan(array), None, array)
    cast = array.cast(declared, safe=not pa.types.is_floating(_leaf(declared)))
    _check_values(array, cast)
    return cast


def _check_values(array: pa.Array, cast: pa.Array) -> None:
    """Raise a ValueError if Arrow made other values of some, which it does not tell of."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type) or array.type == cast.type:
        return
    if is_list(cast.type):
        _check_values(array.flatten(), cast.flatten())
    elif pa.types.is_boolean(cast.type):
        # Arrow converts any number but 0 to true; here only 1 is true.
        _check_same(array, cast, "numbers other than 0 and 1")
    elif pa.types.is_date(cast.type) and pa.types.is_timestamp(array.type):
        # Arrow takes the day of the moments' own time zone.
        local = array if array.type.tz is None else pc.local_timestamp(array)
        _check_same(local, cast, "times of day, which a date drops")


def _check_same(array: pa.Array, cast: pa.Array, held: str) -> None:
    if pc.all(pc.equal(cast.cast(array.type), array), min_count=0).as_py() is False:
        raise ValueError(f"it holds {held}")


# ---- Python's objects, as a predictor returns them in lists, Series and arrays of objects ----------------------
#
# Arrow infers a type from the first object. After a date it drops the time of a moment; of dicts it knows only the keys
# that some row has; an integer is one of int64. What became of a row would depend on those beside it, or a value would
# not fit that does, so such objects are looked at one by one.

_LIKE = 0.8
"""How alike two keys are of which one is taken for a misspelling of the other, as `difflib` counts."""


def _from_objects(values: Sequence[Any], declared: pa.DataType) -> pa.Array:
    """The n values as an array of n, of their own type, which may differ from the declared one.

    Raises:
        ValueError: A value is of no type, or they are of several. pyarrow raises TypeError and OverflowError, too.
    """
    if is_list(declared) or pa.types.is_struct(declared):
        values = [None if is_missing(value) else value for value in values]
    if pa.types.is_struct(declared) and all(value is None or isinstance(value, Mapping) for value in values):
        return _structs(values, declared)
    leaf = _leaf(declared)
    if is_list(declared) and (pa.types.is_struct(leaf) or pa.types.is_temporal(leaf)) and _are_lists(values):
        items = _from_objects([item for value in values if value is not None for item in value], declared.value_type)
        return _in_lists(items, [0 if value is None else len(value) for value in values], _nulls(values))
    if pa.types.is_temporal(declared):
        return _times(values, declared)
    return _inferred(values, declared)


def _leaf(kind: pa.DataType) -> pa.DataType:
    """The type of what lies in lists, of any depth."""
    while is_list(kind):
        kind = kind.value_type
    return kind


def _nan_is_null(declared: pa.DataType) -> bool:
    """Whether NaN means null, as where numpy and pandas write missing values. Only among floats NaN is a value, and
    there may be some within lists and structs.
    """
    return not (pa.types.is_floating(declared) or is_list(declared) or pa.types.is_struct(declared))


def _inferred(values: Sequence[Any], declared: pa.DataType) -> pa.Array:
    nulls = _nan_is_null(declared)
    try:
        return pa.array(values, from_pandas=nulls)
    except OverflowError:  # Arrow infers int64 for every integer
        return pa.array(values, _of_uint64(declared), from_pandas=nulls)


def _of_uint64(declared: pa.DataType) -> pa.DataType:
    """A list type as deep as the declared one, of uint64; or uint64 itself."""
    return pa.list_(_of_uint64(declared.value_type)) if is_list(declared) else pa.uint64()


def _structs(values: Sequence[Mapping[str, Any] | None], declared: pa.DataType) -> pa.Array:
    """Dicts with the declared keys alone; a key that a dict lacks is null."""
    names = tuple(field.name for field in declared)
    for value in values:
        if value is not None and value.keys() != set(names):
            _check_spelling(names, frozenset(value))
    columns = [
        _from_objects([None if value is None else value.get(field.name) for value in values], field.type)
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


def _in_lists(items: pa.Array, lengths: Sequence[int] | Array, nulls: pa.Array) -> pa.Array:
    """Lists of these lengths, one after the other."""
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int32)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items, mask=nulls)


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
