"""Collects what one attempt at a shard has scored so far: rows, metrics and quarantine, ready to be written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import FoldersInvalid
from nightjar.inference.input.sources.rows import RowsRead, over_budget, selected, taken
from nightjar.inference.metrics.profile import Profile, drawn, profiled
from nightjar.inference.metrics.slices import Slices
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import hive
from nightjar.inference.output import parts as sink
from nightjar.inference.output.exports import PROFILE, SLICES
from nightjar.inference.records import Part, Piece, RowFailure, Shard, replay_command
from nightjar.inference.scoring.accumulating import columns_of
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.bisections import Cuts
from nightjar.inference.scoring.microbatches import ScoredRows
from nightjar.inference.storage.protocol import Storage


class Assembly:
    """What one attempt at a shard has scored so far, added piece by piece.

    lost: rows that are only in the quarantine. partial: rows that are written, too, because only some of several models
    could not score them. cuts: of each model, by name.
    """

    def __init__(self, spec: WorkerSpec, shard: Shard) -> None:
        self.spec = spec
        self.shard = shard
        self.rows_in = self.left_out = 0
        self.lost = self.partial = 0
        self.cuts = {each.model.called: Cuts() for each in spec.job.each}
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
        # Over the whole shard at once, so that the metrics do not depend on micro-batches.
        metrics = Metrics.for_job(self.spec.job)
        for table, labels in zip(self._tables, self._labels, strict=True):
            metrics.update(table, labels)
        return metrics

    def states(self) -> dict[str, bytes]:
        """The states of the rows that are written that lie beside the part, by kind; only those that the job asks
        for.
        """
        found = {}
        if self._profiled:
            profile = Profile.empty(self._profiled)
            for rows, *tables in zip(self._drawn, self._tables, self._inputs, strict=True):
                profile.update(*(self._described(table, rows) for table in tables))
            found[PROFILE] = profile.to_bytes()
        if self.spec.job.compares_beside:
            slices = Slices.for_job(self.spec.job)
            for table, labels in zip(self._tables, self._labels, strict=True):
                assert labels is not None
                slices.update(self.spec.job, table, labels)
            found[SLICES] = slices.to_bytes()
        return found

    def _described(self, table: pa.Table, rows: np.ndarray | None) -> pa.Table:
        if rows is None:
            return table
        return selected(table.select([name for name in table.column_names if name in self._profiled]), rows)

    def rows(self) -> list[pa.Table]:
        """The rows that are written, as the job's own accumulators get them: a table for each piece."""
        names, label = columns_of(self.spec.job, self.spec.schema.names), self.spec.job.label
        if label is None or label in self._schema.names:
            return [table.select(names) for table in self._tables]
        pairs = zip(self._tables, self._labels, strict=True)
        return [table.append_column(label, labels).select(names) for table, labels in pairs]

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
            several=bool(self.spec.job.models),
        )
