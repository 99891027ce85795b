"""`input.where` while a file is read: parts of it that cannot match are not read, and rows that do not match are left
out, each counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from nightjar.inference.input.sources.protocol import Source
from nightjar.inference.input.sources.rows import RowsRead, selected
from nightjar.inference.job.model import Job
from nightjar.inference.job.where import Condition, condition
from nightjar.inference.records import UNKNOWN, Piece, RowFailure
from nightjar.inference.storage.protocol import Storage

Read = Callable[[Piece, pa.Schema, int | None], RowsRead]
"""Reads all rows of a piece: the piece, the columns, and the most rows that may fail."""


@dataclass(frozen=True)
class Matching:
    """The job's condition, for files with these columns."""

    condition: Condition

    @classmethod
    def of(cls, job: Job, schema: pa.Schema) -> Matching | None:
        """None for a job without a condition. schema: has the condition's columns."""
        return cls(condition(job.input.where, schema)) if job.input.where else None

    def read(
        self, storage: Storage, source: Source, piece: Piece, schema: pa.Schema, most: int | None, read: Read
    ) -> RowsRead:
        """The piece's rows that match, and those that cannot be read: nobody knows of these whether they match.

        If the source reads each column by itself, those of the condition are read first, and the others only where
        a row matches.
        """
        found = [(0, RowsRead(schema.empty_table()))]
        for part in source.parts(storage, piece, self.condition):
            first = part.first_row - piece.first_row
            if source.columns_apart and set(self.condition.columns.names) < set(schema.names):
                looked = read(part, self.condition.columns, most)
                if not self._takes(looked).any():
                    found.append((first, RowsRead(schema.empty_table(), left_out=looked.rows)))
                    continue
            found.append((first, self.taken(read(part, schema, most))))
        return _joined(found, piece.rows)

    def taken(self, read: RowsRead) -> RowsRead:
        """Without the rows that do not match."""
        (kept,) = np.nonzero(self._takes(read))
        at = {int(index): row for row, index in enumerate(kept)}
        failures = {at[row]: replace(failure, row=at[row]) for row, failure in read.failures.items()}
        table = read.table if len(kept) == len(read.table) else selected(read.table, kept)
        return RowsRead(table, failures, pa.array(kept, pa.int64()), len(read.table) - len(kept))

    def _takes(self, read: RowsRead) -> np.ndarray:
        takes = self.condition.mask(read.table)
        takes[list(read.failures)] = True
        return takes


def _joined(found: Sequence[tuple[int, RowsRead]], rows: int) -> RowsRead:
    """What was read of a piece. found: each with the index of its first row. rows: of the piece."""
    tables, kept, at = list[pa.Table](), list[np.ndarray](), 0
    failures: dict[int, RowFailure] = {}
    for first, each in found:
        tables.append(each.table)
        failures |= {at + row: replace(failure, row=at + row) for row, failure in each.failures.items()}
        kept.append(np.asarray(each.indices()) + first)
        at += each.table.num_rows
    rows = sum(each.rows for _, each in found) if rows == UNKNOWN else rows
    return RowsRead(pa.concat_tables(tables), failures, pa.array(np.concatenate(kept), pa.int64()), rows - at)
