"""What one attempt at a shard has scored, ready to be written: rows, metrics and quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.input.sources.rows import RowsRead, selected, shifted, taken
from nightjar.inference.metrics.profile import drawn, profiled
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import parts as sink
from nightjar.inference.records import Part, Piece, RowFailure, Shard, replay_command
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.microbatches import ScoredRows
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
        self.failures = {}
        for start, read in zip(self.starts.tolist(), reads, strict=False):
            self.failures |= shifted(read.failures, start)

    def within(self, uri: str, row: int, rows: int = 1) -> range:
        """The rows of the table that are rows [row, row + rows) of a file; empty if none of them is here."""
        for piece, start, end in zip(self.pieces, self.starts, self.starts[1:], strict=False):
            low, high = start + np.searchsorted(self.rows[start:end], (row, row + rows))
            if piece.uri == uri and low < high:
                return range(int(low), int(high))
        return range(0)

    def at(self, row: int) -> int:
        """Of a row of the table: its index in its file; of several files, the row."""
        return int(self.rows[row]) if len(self.pieces) == 1 else row

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
    """What one attempt at a shard has scored.

    scored: as of `score_models`. table: the shard's output, in input order. failed: rows in the quarantine, each once.
    lost: those of them that are not written; the others only some of several models could not score.
    """

    def __init__(self, spec: WorkerSpec, shard: Shard, joined: JoinedPieces, scored: ScoredRows) -> None:
        self.spec, self.shard, self.scored = spec, shard, scored
        self.rows_in, self.left_out = joined.table.num_rows, joined.left_out
        schema = sink.output_schema(spec.job, spec.schema)
        carried = spec.job.carried(spec.schema.names)
        self._profiled = profiled(spec.job, spec.schema)
        # Columns that are not written, but counted.
        labels = [spec.job.label] if spec.job.label else []
        beside = dict.fromkeys([*(name for name in self._profiled if name not in schema.names), *labels])
        kept, rows, edges = joined.table, joined.rows, joined.starts
        if scored.kept is not None:
            kept, rows = selected(kept, scored.kept), rows[scored.kept]
            edges = np.searchsorted(scored.kept, joined.starts)
        uris = [piece.uri for piece in joined.pieces]
        lineage = sink.lineage(uris, np.diff(edges), rows)
        columns: list[Any] = [*(kept[name] for name in carried), *scored.outputs.columns, *lineage]
        self.table, self._beside = pa.Table.from_arrays(columns, schema=schema), kept.select(list(beside))
        if len(uris) > 1:
            self.table, self._beside = self.table.combine_chunks(), self._beside.combine_chunks()
        drawn_of = (
            (low, drawn(uri, rows[low:high], spec.job.profile.share))
            for uri, low, high in zip(uris, edges, edges[1:], strict=False)
        )
        self._drawn = [low + found for low, found in drawn_of if found is not None]
        self.failed = len({failure.row for failure in scored.failures})
        self.lost: int = self.rows_in - kept.num_rows
        self._bad: list[tuple[str, int, RowFailure, str]] = []
        if scored.failures:
            self._add_failures(joined, scored.failures)

    def name(self, kind: str) -> str:
        return sink.part_name(kind, self.shard.id, self.spec.epoch)

    def _add_failures(self, joined: JoinedPieces, failures: Sequence[RowFailure]) -> None:
        for failure in failures:
            uri, row, _ = joined.place(failure.row)
            again = replay_command(self.spec.job_path, self.spec.run, self.shard, uri, row, failure.model)
            self._bad.append((uri, row, failure, again))
        rows, lines = np.unique([failure.row for failure in failures], return_inverse=True)
        bad = selected(joined.table, rows)
        self._bad_inputs = bad if rows.size == len(failures) else taken(bad, lines)

    def metrics(self) -> Metrics:
        """The states of the rows that are written."""
        # Over the whole shard at once, so that the metrics do not depend on micro-batches.
        metrics, label = Metrics.for_job(self.spec.job, self._profiled), self.spec.job.label
        metrics.update(self.table, self._beside[label] if label else None)
        if metrics.profile is not None:
            metrics.profile.update(*(self._described(each) for each in (self.table, self._beside)))
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
            self._bad_inputs,
            several=self.spec.job.several,
        )
