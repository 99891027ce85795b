"""How large a micro-batch may be: so many rows, or so many bytes of the columns that the model gets.

Both are one rule. Rows are taken in order until the next one would be too much; in rows each weighs 1, in bytes as much
as its values. A row that weighs more than is allowed is a micro-batch by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_list, value_bytes

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
    category with the value that it stands for. A null counts as nothing, a null number as any other.
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
    if is_.is_null(kind):
        return 0
    if is_.is_union(kind) or is_.is_run_end_encoded(kind):
        return _UNTOLD
    if is_.is_dictionary(kind):
        return None
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return None


def _sizes(array: Any) -> Sizes:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _sizes(array.storage)
    if (width := _width(kind)) is not None:
        return np.full(len(array), width, np.int64)
    if is_.is_dictionary(kind):
        of_values = np.append(_sizes(array.dictionary), 0)  # the last one is for nulls
        return of_values[_numbers(pc.fill_null(array.indices.cast(pa.int64()), len(of_values) - 1))]
    if is_.is_struct(kind):
        fields = np.sum([_sizes(array.field(at)) for at in range(kind.num_fields)], axis=0)
        # What may lie behind a null is no value.
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), fields, 0)
    if is_.is_map(kind):
        array = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    if is_list(array.type):
        lengths = _numbers(pc.fill_null(pc.list_value_length(array), 0))
        items = pc.list_flatten(array)
        if (width := _width(items.type)) is not None:
            return lengths * width
        before = np.concatenate([[0], np.cumsum(_sizes(items))])
        ends = np.cumsum(lengths)
        found: Sizes = before[ends] - before[ends - lengths]
        return found
    array = array.cast(_VIEWS[kind]) if kind in _VIEWS else array
    return _numbers(pc.fill_null(pc.binary_length(array), 0))


def _numbers(array: Any) -> Sizes:
    found: Sizes = array.to_numpy().astype(np.int64)
    return found


Unit = Literal["rows", "bytes"]

PACKED_ROWS, PACKED_ROWS_GPU = 2048, 16384
"""Rows of a micro-batch that a predictor packs into calls of the model: many, so that it finds rows of one size; and
few enough that a large model on a few cores, at four rows a second, is done with them before `retry.stall_s`."""


class BatchSize:
    """The largest micro-batch, kept from table to table, so that running out of memory happens only once.

    most: the size in use, in `unit`. forced: the same if lack of memory reduced it, else 0.
    """

    def __init__(self, most: int, unit: Unit = "rows") -> None:
        if most < 1:
            raise ValueError(f"a micro-batch has at least one row, not {most} {unit}")
        self.most = most
        self.unit = unit
        self.forced = 0

    def force(self, most: int) -> None:
        """Reduce the size, because memory did not suffice for more than this."""
        self.most = self.forced = most

    def anew(self) -> BatchSize:
        """One that begins with the size in use, and learns for itself."""
        return BatchSize(self.most, self.unit)


class Weighed:
    """A table of which micro-batches are taken. What it says depends on the size at that moment, which may shrink."""

    def __init__(self, table: pa.Table, size: BatchSize) -> None:
        self._size = size
        self._rows = int(table.num_rows)
        self._ends: Sizes | None = None
        if size.unit == "bytes":
            self._ends = np.concatenate([[0], np.cumsum(row_sizes(table))])
        self._stops, self._of = [0], size.most

    def stop(self, first: int) -> int:
        """The end of the micro-batch that row `first` is in, where micro-batches are counted off from the table's first
        row.
        """
        most = self._size.most
        if self._ends is None:
            return min(self._rows, (first // most + 1) * most)
        if self._of != most:
            self._stops, self._of = [0], most
        while self._stops[-1] <= first:
            last = self._stops[-1]
            fits = int(np.searchsorted(self._ends, self._ends[last] + most, "right")) - 1
            self._stops.append(max(fits, last + 1))
        return self._stops[bisect_right(self._stops, first)]

    def fitting(self, rows: Sequence[int]) -> int:
        """How many of these rows, from the first one on, make a micro-batch; at least one."""
        if self._ends is None:
            return min(len(rows), self._size.most)
        return max(1, int(np.searchsorted(np.cumsum(self._weights(self._ends, rows)), self._size.most, "right")))

    def half(self, rows: Sequence[int]) -> int:
        """Half of what these rows weigh, rounded up."""
        weight = len(rows) if self._ends is None else int(self._weights(self._ends, rows).sum())
        return (weight + 1) // 2

    @staticmethod
    def _weights(ends: Sizes, rows: Sequence[int]) -> Sizes:
        at = np.asarray(rows)
        weights: Sizes = ends[at + 1] - ends[at]
        return weights


def auto_batch_rows(schema: pa.Schema, gpu: bool, packs: bool = False) -> int:
    """Rows per micro-batch for `batch_size: auto`: a pure function of the features and the device.

    The largest power of two whose features take at most 4 MiB (64 MiB on a GPU), from 32 to 16,384
    (65,536) rows. Text counts as 256 bytes, a list of unknown length as 64 items. packs: as in `Framework`.
    """
    if packs:
        return PACKED_ROWS_GPU if gpu else PACKED_ROWS
    target, most = (64 << 20, 65536) if gpu else (4 << 20, 16384)
    width = max(1, int(sum(max(1, value_bytes(column.type, text=256, items=64)) for column in schema)))
    return min(most, 1 << (max(32, target // width).bit_length() - 1))
