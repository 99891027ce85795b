"""Collects what one attempt at a shard has scored so far: rows, metrics and quarantine, ready to be written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.input.sources.normalisation import PLAIN
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import parts as sink
from nightjar.inference.records import (
    Part,
    Piece,
    RowFailure,
    Shard,
    replay_command,
)
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.cuts import Cuts
from nightjar.inference.scoring.microbatches import ScoredRows
from nightjar.inference.storage.protocol import Storage


class Assembly:
    """What one attempt at a shard has scored so far, added piece by piece."""

    def __init__(self, spec: WorkerSpec, shard: Shard) -> None:
        self.spec = spec
        self.shard = shard
        self.rows_in = 0
        self.failed = 0
        self.cuts = Cuts()
        self._tables: list[pa.Table] = []
        self._labels: list[pa.ChunkedArray | None] = []
        self._bad: list[tuple[str, int, RowFailure, str]] = []
        self._bad_inputs: list[pa.Table] = []
        self._schema = sink.output_schema(spec.job, spec.schema)

    def name(self, kind: str) -> str:
        return sink.part_name(kind, self.shard.id, self.spec.epoch)

    def add(self, piece: Piece, table: pa.Table, scored: ScoredRows) -> None:
        job = self.spec.job
        self.rows_in += table.num_rows
        kept = table if scored.kept is None else _only(table, scored.kept)
        columns: list[Any] = [kept[name] for name in job.carry] + list(scored.outputs.columns)
        if job.output.lineage:
            rows = pa.arange(piece.first_row, piece.first_row + table.num_rows)
            columns += sink.lineage(piece.uri, rows if scored.kept is None else rows.take(pa.array(scored.kept)))
        self._tables.append(pa.Table.from_arrays(columns, schema=self._schema))
        self._labels.append(kept[job.label] if job.label else None)
        if scored.failures:
            self._add_failures(piece, table, scored.failures)

    def _add_failures(self, piece: Piece, table: pa.Table, failures: tuple[RowFailure, ...]) -> None:
        self.failed += len(failures)
        self._bad_inputs.append(_only(table, np.array([failure.row for failure in failures])))
        for failure in failures:
            row = piece.first_row + failure.row
            again = replay_command(self.spec.job_path, self.spec.run, self.shard, piece.uri, row)
            self._bad.append((piece.uri, row, failure, again))

    def table(self) -> pa.Table:
        """The shard's output, in input order, one chunk per column and file."""
        return pa.concat_tables(self._tables).unify_dictionaries()

    def metrics(self) -> Metrics:
        # Over the whole shard at once, so that the metrics do not depend on micro-batches.
        metrics = Metrics.for_job(self.spec.job)
        for table, labels in zip(self._tables, self._labels, strict=True):
            metrics.update(table, labels)
        return metrics

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
        )


def _only(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Select rows of a table. rows: their indices, ascending.

    This filters by a mask, because `take` joins a column's chunks first, and no array can hold more than 2 GiB of text.
    Arrow cannot filter view types yet, so they are cast to the large plain types.
    """
    mask = np.zeros(table.num_rows, dtype=bool)
    mask[rows] = True
    wanted, columns = pa.array(mask), []
    for column in table.columns:
        plain = PLAIN.get(column.type)
        columns.append(column.filter(wanted) if plain is None else column.cast(plain).filter(wanted).cast(column.type))
    return pa.Table.from_arrays(columns, schema=table.schema)
