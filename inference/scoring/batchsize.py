"""How many rows a micro-batch may have."""

from __future__ import annotations

import pyarrow as pa

from nightjar.inference.arrow_types import value_bytes

PACKED_ROWS, PACKED_ROWS_GPU = 2048, 16384
"""Rows of a micro-batch that a predictor packs into calls of the model: many, so that it finds rows of one size; and
few enough that a large model on a few cores, at four rows a second, is done with them before `retry.stall_s`."""


class BatchSize:
    """The largest micro-batch, kept from table to table, so that running out of memory happens only once.

    most: the rows in use. forced: the same if lack of memory reduced them, else 0.
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"a micro-batch has at least one row, not {most}")
        self.most = most
        self.forced = 0

    def force(self, most: int) -> None:
        """Reduce the size, because memory did not suffice for more than this."""
        self.most = self.forced = most


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
