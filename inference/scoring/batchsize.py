"""How large a micro-batch may be: so many rows, or so many bytes of the columns that the model gets.

Both are one rule. Rows are taken in order until the next one would be too much; in rows each weighs 1, in bytes as much
as its values. A row that weighs more than is allowed is a micro-batch by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import value_bytes
from nightjar.inference.scoring.rowsizes import Sizes, row_sizes

Unit = Literal["rows", "bytes"]

PACKED_ROWS, PACKED_ROWS_GPU = 2048, 16384
"""Rows of a micro-batch that a predictor packs into calls of the model: many, so that it finds rows of one size; and
few enough that a large model on a few cores, at four rows a second, is done with them before `retry.stall_s`."""

_MOST_ROWS = 65536
"""The most rows that are assumed of a micro-batch in bytes before its rows are known."""


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

    def rows_like(self, table: pa.Table) -> int:
        """The rows of a micro-batch in bytes if all rows are like those of this table."""
        weight = int(row_sizes(table).sum())
        return max(1, min(_MOST_ROWS, self.most * table.num_rows // weight)) if weight else 1


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
