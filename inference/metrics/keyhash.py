"""Hashes of rows' keys: 64 bits of any number of columns, computed for whole columns at a time.

Equal keys have equal hashes. Rows with equal hashes are compared by their keys before anything is said of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_text
from nightjar.inference.metrics.columns import plain

Hashes = npt.NDArray[np.uint64]

_NULL = np.uint64(0x9E3779B97F4A7C15)
_FACTOR = np.uint64(0xD6E8FEB86659FD93)


def comparable(column: pa.ChunkedArray) -> pa.Array:
    """The values in a form in which equal keys are equal: whole numbers, floats, or bytes. -0.0 is 0.0, and each NaN is
    the same; a null is a value of its own.
    """
    column = plain(column)
    kind = column.type
    joined: pa.Array = column.combine_chunks()
    if is_.is_uint64(kind) or is_.is_null(kind):
        return joined
    if is_.is_boolean(kind) or is_.is_integer(kind):
        return joined.cast(pa.int64())
    if is_.is_floating(kind):
        return _floats(joined)
    if is_.is_temporal(kind) and not is_.is_interval(kind):
        return joined.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    if is_.is_string(kind) or is_.is_binary(kind) or is_.is_fixed_size_binary(kind):
        return joined.cast(pa.binary())
    if is_text(kind) or is_.is_large_binary(kind):
        return joined.cast(pa.large_binary())
    texts = [None if value is None else repr(value).encode() for value in joined.to_pylist()]
    return pa.array(texts, pa.large_binary())


def _floats(column: pa.Array) -> pa.Array:
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0
    values[np.isnan(values)] = np.nan
    return pa.array(values, mask=np.asarray(column.is_null()))


def hashes(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """A hash per row. columns: as `comparable` gives them, each of so many rows."""
    found = np.full(rows, len(columns), np.uint64)
    for column in columns:
        found = mixed(found * _FACTOR + hashes_of(column))
    return found


def keys(columns: Sequence[pa.Array], at: npt.NDArray[np.int64]) -> Iterator[tuple[object, ...]]:
    """The keys of these rows, which are equal if and only if the rows have the same key."""
    picked = [column.take(pa.array(at)).to_pylist() for column in columns]
    for values in zip(*picked, strict=True):
        yield tuple(repr(value) if isinstance(value, float) else value for value in values)


def hashes_of(column: pa.Array) -> Hashes:
    """A hash per value of a column, as `comparable` gives it."""
    if is_.is_null(column.type):
        return np.full(len(column), _NULL)
    if is_.is_binary(column.type) or is_.is_large_binary(column.type):
        found = mixed(column.to_numpy(zero_copy_only=False))
    else:
        found = mixed(column.fill_null(0).to_numpy().view(np.uint64))
    if column.null_count:
        found[np.asarray(column.is_null())] = _NULL
    return found


def mixed(values: np.ndarray) -> Hashes:
    """A hash per number or bytes: of a number the finaliser of splitmix64 (Steele, Lea and Flood, 2014)."""
    from pandas.util import hash_array  # which takes a while to import

    found: Hashes = hash_array(values, categorize=False)
    return found
