"""How many bytes the values of each row take. It depends on the values alone, not on how a table was read or cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_list

Sizes = npt.NDArray[np.int64]

_UNTOLD = 8
"""Bytes assumed for a value of a type that has no size of its own, as a union."""

_VIEWS = {
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
}


def row_sizes(table: pa.Table) -> Sizes:
    """The bytes of each row's values, decoded: shape (rows,), at least 1 each.

    A number counts with its width, a bool as 1, a text or binary value with its bytes, a list with its items, a
    category with the value that it stands for. A null of no fixed width counts as nothing.
    """
    total = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        first = 0
        for chunk in column.chunks:
            total[first : first + len(chunk)] += _sizes(chunk)
            first += len(chunk)
    return np.maximum(total, 1)


def _width(kind: pa.DataType) -> int | None:
    """Bytes of each value of this type; None if they differ from value to value."""
    if isinstance(kind, pa.BaseExtensionType):
        return _width(kind.storage_type)
    if is_.is_null(kind):
        return 0
    if is_.is_fixed_size_list(kind):
        inner = _width(kind.value_type)
        return None if inner is None else inner * int(kind.list_size)
    if is_.is_struct(kind):
        widths = [_width(field.type) for field in kind]
        return None if None in widths else sum(width for width in widths if width is not None)
    if is_.is_union(kind) or is_.is_run_end_encoded(kind):
        return _UNTOLD
    if is_.is_nested(kind) or is_.is_dictionary(kind):
        return None
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # text, binary
        return None


def _sizes(array: Any) -> Sizes:
    kind = array.type
    if (width := _width(kind)) is not None:
        return np.full(len(array), width, np.int64)
    if isinstance(kind, pa.BaseExtensionType):
        return _sizes(array.storage)
    if is_.is_dictionary(kind):
        of_values = np.append(_sizes(array.dictionary), 0)  # the last one is for nulls
        return of_values[_numbers(pc.fill_null(array.indices.cast(pa.int64()), len(of_values) - 1))]
    if is_.is_fixed_size_list(kind):
        size = int(kind.list_size)
        items = _sizes(array.values.slice(array.offset * size, len(array) * size))
        return _known(array, items.reshape(len(array), size).sum(axis=1))
    if is_.is_struct(kind):
        fields = [_sizes(array.field(at)) for at in range(kind.num_fields)]
        return _known(array, np.sum(fields, axis=0))
    if is_list(kind) or is_.is_map(kind):
        return _of_lists(array)
    array = array.cast(_VIEWS[kind]) if kind in _VIEWS else array
    return _numbers(pc.fill_null(pc.binary_length(array), 0))


def _of_lists(array: Any) -> Sizes:
    offsets = _numbers(array.offsets)
    if hasattr(array, "sizes"):  # a list view; of other lists each ends where the next one begins
        starts, stops = offsets, offsets + _numbers(array.sizes)
    else:
        starts, stops = offsets[:-1], offsets[1:]
    return _known(array, _of_ranges(array.values, starts, stops))


def _of_ranges(items: Any, starts: Sizes, stops: Sizes) -> Sizes:
    """What the items [start, stop) take, for each start."""
    if (width := _width(items.type)) is not None:
        return (stops - starts) * width
    if not len(starts):
        return np.zeros(0, np.int64)
    low, high = int(starts.min()), int(stops.max())
    ends = np.zeros(high - low + 1, np.int64)
    ends[1:] = np.cumsum(_sizes(items.slice(low, high - low)))
    found: Sizes = ends[stops - low] - ends[starts - low]
    return found


def _known(array: Any, sizes: Sizes) -> Sizes:
    """The same, without what may lie behind a null."""
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), sizes, 0) if array.null_count else sizes


def _numbers(array: Any) -> Sizes:
    found: Sizes = array.to_numpy().astype(np.int64)
    return found
