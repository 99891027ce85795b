"""Pieces of a shard that are scored as one table, so that small files share micro-batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pyarrow as pa

from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.records import Piece, RowFailure
from nightjar.inference.scoring.microbatches import ScoredRows


class Stretch:
    """Consecutive pieces, as they were read.

    pieces: with the rows that they have. reads: each as it was read. table: the rows of all of them, without those that
    were left out. failures: index in the table → why the row could not be read. origin: the index in the file of the
    first row that was read; 0 if there are several files.
    """

    def __init__(self, pieces: Sequence[Piece], reads: Sequence[RowsRead]) -> None:
        # A piece's rows may not have been known before.
        self.pieces = [replace(piece, rows=read.rows) for piece, read in zip(pieces, reads, strict=True)]
        self.reads = tuple(reads)
        self._starts: list[int] = [0, *accumulate(read.table.num_rows for read in reads)]
        self.origin = self.pieces[0].first_row if len(pieces) == 1 else 0
        if len(reads) == 1:
            self.table, self.failures = reads[0].table, dict(reads[0].failures)
            return
        self.table = pa.concat_tables([read.table for read in reads]).unify_dictionaries()
        self.failures = {
            start + row: replace(failure, row=start + row)
            for start, read in zip(self._starts, reads, strict=False)
            for row, failure in read.failures.items()
        }

    def row(self, uri: str, row: int) -> int | None:
        """The index in the table of a row of a file; None if the row is not here."""
        for piece, read, start in zip(self.pieces, self.reads, self._starts, strict=False):
            if piece.uri == uri and read.holds(at := row - piece.first_row):
                return start + read.position(at)
        return None

    def index(self, row: int) -> int:
        """Of a row of the table: its index among all rows of its file that were read; of several files, the row."""
        return self.reads[0].index(row) if len(self.reads) == 1 else row

    def of_first(self, rows: range) -> range:
        """The rows of the table with these indices among all rows of the first piece that were read."""
        return range(self.reads[0].position(rows.start), self.reads[0].position(rows.stop))

    def place(self, first: int, rows: int) -> tuple[str, int, int]:
        """The file and the rows there of the table's rows [first, first + rows): uri, first row, number of rows.

        If they are of several files, the number is 0, because no row of the first file alone is meant.
        """
        at = bisect_right(self._starts, first) - 1
        piece, read, start = self.pieces[at], self.reads[at], self._starts[at]
        low = read.index(first - start)
        if first + rows > start + read.table.num_rows:
            return piece.uri, piece.first_row + low, 0
        # Rows between may have been left out.
        return piece.uri, piece.first_row + low, read.index(first + rows - 1 - start) - low + 1

    def parts(self, scored: ScoredRows) -> Iterator[tuple[Piece, RowsRead, ScoredRows]]:
        """Each piece, with its rows and what became of them."""
        if len(self.pieces) == 1:
            yield self.pieces[0], self.reads[0], scored
            return
        all_kept = np.arange(self._starts[-1]) if scored.kept is None else scored.kept
        failed = np.array([failure.row for failure in scored.failures])  # a row once for each model
        for piece, read, start in zip(self.pieces, self.reads, self._starts, strict=False):
            rows = read.table.num_rows
            end = start + rows
            low, high = np.searchsorted(failed, [start, end])
            failures = tuple(_moved(failure, -start) for failure in scored.failures[low:high])
            first, last = np.searchsorted(all_kept, [start, end])
            outputs = scored.outputs.slice(first, last - first)
            kept = None if last - first == rows else all_kept[first:last] - start
            yield piece, replace(read, table=self.table.slice(start, rows)), ScoredRows(outputs, kept, failures)


def _moved(failure: RowFailure, by: int) -> RowFailure:
    return replace(failure, row=failure.row + by)
