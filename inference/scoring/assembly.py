"""Collects what one attempt at a shard has scored so far: rows, metrics and quarantine, ready to be written."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import FoldersInvalid
from nightjar.inference.input.sources.rows import RowsRead, over_budget, selected, taken
from nightjar.inference.metrics.profile import drawn, profiled
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import hive
from nightjar.inference.output import parts as sink
from nightjar.inference.records import Part, Piece, RowFailure, Shard, replay_command
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.microbatches import Cuts, ScoredRows
from nightjar.inference.storage.protocol import Storage


class JoinedPieces:
    """Consecutive pieces of a shard as one table, so that small files share micro-batches.

    pieces: with the rows that they have. reads: each as it was read. table: the rows of all of them, without those that
    were left out. failures: index in the table → why the row could not be read.
    """

    def __init__(self, pieces: Sequence[Piece], reads: Sequence[RowsRead]) -> None:
        # A piece's rows may not have been known before.
        self.pieces = [replace(piece, rows=read.rows) for piece, read in zip(pieces, reads, strict=True)]
        self.reads = tuple(reads)
        self._starts: list[int] = [0, *accumulate(read.table.num_rows for read in reads)]
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

    def at(self, row: int) -> int:
        """Of a row of the table: its index in its file; of several files, the row."""
        return self.pieces[0].first_row + self.reads[0].index(row) if len(self.reads) == 1 else row

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


class Assembly:
    """What one attempt at a shard has scored so far, added piece by piece."""

    def __init__(self, spec: WorkerSpec, shard: Shard) -> None:
        self.spec = spec
        self.shard = shard
        self.rows_in = self.left_out = 0
        self.lost = 0
        """Rows that are only in the quarantine."""
        self.partial = 0
        """Rows in the quarantine that are written, too, because only some of several models could not score them."""
        self.cuts = {each.name: Cuts() for each in spec.job.models}
        self._tables: list[pa.Table] = []
        self._labels: list[pa.ChunkedArray | None] = []
        self._inputs: list[pa.Table] = []
        self._drawn: list[np.ndarray | None] = []
        self._bad: list[tuple[str, int, RowFailure, str]] = []
        self._bad_inputs: list[pa.Table] = []
        self._carried = spec.job.carried(spec.schema.names)
        self._schema = sink.output_schema(spec.job, spec.schema)
        self._profiled = profiled(spec.job, spec.schema)
        self._only_read = [name for name in self._profiled if name not in self._schema.names]

    @property
    def failed(self) -> int:
        """The rows that are in the quarantine, each once."""
        return self.lost + self.partial

    def name(self, kind: str) -> str:
        return sink.part_name(kind, self.shard.id, self.spec.epoch)

    def add(self, piece: Piece, read: RowsRead, scored: ScoredRows) -> ScoredRows:
        """Add a piece. Returns what was added: without the rows whose values cannot name a folder.

        Raises:
            OverBudget: With the rows whose values cannot name a folder, more rows failed than the whole run may lose.
        """
        job, table = self.spec.job, read.table
        scored = self._with_folders(table, scored)
        self.rows_in += table.num_rows
        self.left_out += read.left_out
        kept = table if scored.kept is None else selected(table, scored.kept)
        columns: list[Any] = [kept[name] for name in self._carried] + list(scored.outputs.columns)
        rows = pc.add(read.indices(), piece.first_row)
        rows = rows if scored.kept is None else rows.take(pa.array(scored.kept))
        if job.output.lineage:
            columns += sink.lineage(piece.uri, rows)
        self._tables.append(pa.Table.from_arrays(columns, schema=self._schema))
        self._labels.append(kept[job.label] if job.label else None)
        self._inputs.append(kept.select(self._only_read))
        self._drawn.append(drawn(piece.uri, rows.to_numpy(), job.profile.share))
        if scored.failures:
            self._add_failures(piece, read, scored.failures, read.table.num_rows - kept.num_rows)
        return scored

    def _with_folders(self, table: pa.Table, scored: ScoredRows) -> ScoredRows:
        """Without the rows whose values cannot name a folder of `output.partition_by`; they alone are lost."""
        job, bad = self.spec.job, dict[int, str]()
        outputs = dict(zip(job.output_types(), scored.outputs.columns, strict=True))
        kept = np.arange(table.num_rows) if scored.kept is None else scored.kept
        for name in job.output.partition_by:
            column = outputs[name] if name in outputs else selected(table.select([name]), kept)[name]
            bad |= hive.unfit(name, column)
        if not bad:
            return scored
        lost = [RowFailure(int(kept[row]), FoldersInvalid.__name__, said, "") for row, said in bad.items()]
        rows = {failure.row for failure in lost}
        others = [failure for failure in scored.failures if failure.row not in rows]
        good = np.delete(np.arange(len(kept)), sorted(bad))
        failures = tuple(sorted([*others, *lost], key=lambda failure: failure.row))
        return ScoredRows(selected(scored.outputs, good), kept[good], failures)

    def _add_failures(self, piece: Piece, read: RowsRead, failures: tuple[RowFailure, ...], lost: int) -> None:
        rows, lines = np.unique([failure.row for failure in failures], return_inverse=True)
        self.lost += lost
        self.partial += rows.size - lost
        bad = selected(read.table, rows)
        self._bad_inputs.append(bad if rows.size == len(failures) else taken(bad, lines))
        for failure in failures:
            row = piece.first_row + read.index(failure.row)
            again = replay_command(self.spec.job_path, self.spec.run, self.shard, piece.uri, row, failure.model)
            self._bad.append((piece.uri, row, failure, again))
        if self.spec.budget is not None and self.failed > self.spec.budget:
            each = {(uri, row): failure for uri, row, failure, _ in reversed(self._bad)}
            raise over_budget(dict(enumerate(reversed(each.values()))), self.spec.budget, self._bad[0][1])

    def table(self) -> pa.Table:
        """The shard's output, in input order, one chunk per column and file."""
        return pa.concat_tables(self._tables).unify_dictionaries()

    def metrics(self) -> Metrics:
        """The states of the rows that are written."""
        # Over the whole shard at once, so that the metrics do not depend on micro-batches.
        metrics = Metrics.for_job(self.spec.job, self._profiled)
        for table, inputs, labels, rows in zip(self._tables, self._inputs, self._labels, self._drawn, strict=True):
            metrics.update(table, labels)
            if metrics.profile is not None:
                metrics.profile.update(*(self._described(each, rows) for each in (table, inputs)))
        return metrics

    def _described(self, table: pa.Table, rows: np.ndarray | None) -> pa.Table:
        if rows is None:
            return table
        return selected(table.select([name for name in table.column_names if name in self._profiled]), rows)

    def write_quarantine(self, storage: Storage) -> Part | None:
        if not self._bad:
            return None
        return sink.write_quarantine(
            storage,
            self.spec.revision,
            self.name("quarantine"),
            self.shard.id,
            self._bad,
            pa.concat_tables(self._bad_inputs),
            several=self.spec.job.several,
        )
