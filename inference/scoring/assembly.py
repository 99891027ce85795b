"""Collects what one attempt at a shard has scored so far: rows, metrics and quarantine, ready to be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.input.sources.rows import RowsRead, over_budget, selected, taken
from nightjar.inference.metrics.profile import drawn, profiled
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import parts as sink
from nightjar.inference.records import Part, Piece, RowFailure, Shard, replay_command
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.microbatches import Cuts, ScoredRows
from nightjar.inference.storage.protocol import Storage


class JoinedPieces:
    """Consecutive pieces of a shard as one table, so that small files share micro-batches.

    pieces: with the rows that they have. reads: each as it was read. table: the rows of all of them, without those that
    were left out. starts: the index of the first row of each, and at last the number of rows. rows: of each row of the
    table the index in its file. left_out: how many rows were left out. failures: index in the table → why the row could
    not be read.
    """

    def __init__(self, pieces: Sequence[Piece], reads: Sequence[RowsRead]) -> None:
        # A piece's rows may not have been known before.
        self.pieces = [replace(piece, rows=read.rows) for piece, read in zip(pieces, reads, strict=True)]
        self.reads = tuple(reads)
        self.starts = np.cumsum([0, *(read.table.num_rows for read in reads)])
        self.rows = np.concatenate(
            [np.asarray(read.indices()) + piece.first_row for piece, read in zip(pieces, reads, strict=True)]
        )
        self.left_out = sum(read.left_out for read in reads)
        if len(reads) == 1:
            self.table, self.failures = reads[0].table, dict(reads[0].failures)
            return
        self.table = pa.concat_tables([read.table for read in reads]).unify_dictionaries()
        self.failures = {
            start + row: replace(failure, row=start + row)
            for start, read in zip(self.starts.tolist(), reads, strict=False)
            for row, failure in read.failures.items()
        }

    def row(self, uri: str, row: int) -> int | None:
        """The index in the table of a row of a file; None if the row is not here."""
        for piece, start, end in zip(self.pieces, self.starts, self.starts[1:], strict=False):
            at = start + int(np.searchsorted(self.rows[start:end], row))
            if piece.uri == uri and at < end and self.rows[at] == row:
                return int(at)
        return None

    def at(self, row: int) -> int:
        """Of a row of the table: its index in its file; of several files, the row."""
        return int(self.rows[row]) if len(self.pieces) == 1 else row

    def of_first(self, rows: range) -> range:
        """The rows of the table with these indices among all rows of the first piece that were read."""
        first = self.rows[: self.starts[1]] - self.pieces[0].first_row
        return range(*(int(np.searchsorted(first, end)) for end in (rows.start, rows.stop)))

    def place(self, first: int, rows: int = 1) -> tuple[str, int, int]:
        """The file and the rows there of the table's rows [first, first + rows): uri, first row, number of rows.

        If they are of several files, the number is 0, because no row of the first file alone is meant.
        """
        at = int(np.searchsorted(self.starts, first, side="right")) - 1
        low = int(self.rows[first])
        # Rows between may have been left out.
        within = first + rows <= self.starts[at + 1]
        return self.pieces[at].uri, low, int(self.rows[first + rows - 1]) - low + 1 if within else 0


class Assembly:
    """What one attempt at a shard has scored so far."""

    def __init__(self, spec: WorkerSpec, shard: Shard) -> None:
        self.spec = spec
        self.shard = shard
        self.rows_in = self.left_out = 0
        self.lost = 0
        """Rows that are only in the quarantine."""
        self.partial = 0
        """Rows in the quarantine that are written, too, because only some of several models could not score them."""
        self.cuts = {each.name: Cuts() for each in spec.job.models}
        self._written: list[pa.Table] = []
        self._beside: list[pa.Table] = []
        self._drawn: list[np.ndarray] = []
        self._bad: list[tuple[str, int, RowFailure, str]] = []
        self._bad_inputs: list[pa.Table] = []
        self._carried = spec.job.carried(spec.schema.names)
        self._schema = sink.output_schema(spec.job, spec.schema)
        self._profiled = profiled(spec.job, spec.schema)
        # Columns that are not written, but counted.
        self._only_read = [name for name in self._profiled if name not in self._schema.names]
        self._labels = [spec.job.label] if spec.job.label and spec.job.label not in self._only_read else []

    @property
    def failed(self) -> int:
        """The rows that are in the quarantine, each once."""
        return self.lost + self.partial

    def name(self, kind: str) -> str:
        return sink.part_name(kind, self.shard.id, self.spec.epoch)

    def add(self, joined: JoinedPieces, scored: ScoredRows) -> None:
        """Add pieces.

        Raises:
            OverBudget: More rows failed than the whole run may lose.
        """
        job, table = self.spec.job, joined.table
        self.rows_in += table.num_rows
        self.left_out += joined.left_out
        if scored.kept is None:
            kept, rows, edges = table, joined.rows, joined.starts
        else:
            kept, rows = selected(table, scored.kept), joined.rows[scored.kept]
            edges = np.searchsorted(scored.kept, joined.starts)
        uris = [piece.uri for piece in joined.pieces]
        lineage = sink.lineage(uris, np.diff(edges), rows)
        columns: list[Any] = [*(kept[name] for name in self._carried), *scored.outputs.columns, *lineage]
        before = sum(each.num_rows for each in self._written)
        self._written.append(pa.Table.from_arrays(columns, schema=self._schema))
        self._beside.append(kept.select(self._only_read + self._labels))
        for uri, low, high in zip(uris, edges, edges[1:], strict=False):
            if (found := drawn(uri, rows[low:high], job.profile.share)) is not None:
                self._drawn.append(before + low + found)
        if scored.failures:
            self._add_failures(joined, scored.failures, table.num_rows - kept.num_rows)

    def _add_failures(self, joined: JoinedPieces, failures: tuple[RowFailure, ...], lost: int) -> None:
        rows, lines = np.unique([failure.row for failure in failures], return_inverse=True)
        self.lost += lost
        self.partial += rows.size - lost
        bad = selected(joined.table, rows)
        self._bad_inputs.append(bad if rows.size == len(failures) else taken(bad, lines))
        for failure in failures:
            uri, row, _ = joined.place(failure.row)
            again = replay_command(self.spec.job_path, self.spec.run, self.shard, uri, row, failure.model)
            self._bad.append((uri, row, failure, again))
        if self.spec.budget is not None and self.failed > self.spec.budget:
            each = {(uri, row): failure for uri, row, failure, _ in reversed(self._bad)}
            raise over_budget(dict(enumerate(reversed(each.values()))), self.spec.budget, self._bad[0][1])

    def table(self) -> pa.Table:
        """The shard's output, in input order."""
        return self._whole(self._written)

    def _whole(self, tables: Sequence[pa.Table]) -> pa.Table:
        whole = pa.concat_tables(tables).unify_dictionaries()
        # Of several files one chunk, so that nothing depends on whether they were scored together.
        return whole.combine_chunks() if len(self.shard.pieces) > 1 else whole

    def metrics(self, table: pa.Table) -> Metrics:
        """The states of the rows that are written. table: the shard's output."""
        # Over the whole shard at once, so that the metrics do not depend on micro-batches.
        metrics, beside = Metrics.for_job(self.spec.job, self._profiled), self._whole(self._beside)
        label = self.spec.job.label
        metrics.update(table, beside[label] if label else None)
        if metrics.profile is not None:
            metrics.profile.update(*(self._described(each) for each in (table, beside)))
        return metrics

    def _described(self, table: pa.Table) -> pa.Table:
        table = table.select([name for name in table.column_names if name in self._profiled])
        return selected(table, np.concatenate(self._drawn)) if self._drawn else table

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
