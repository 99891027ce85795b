"""The rows of a table that were scored: by one model, beside those that an earlier night has, and by all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from nightjar.inference.job.model import Job
from nightjar.inference.output.rowindex import RowKeys
from nightjar.inference.records import RowFailure
from nightjar.inference.scoring.assignment import LoadedModel
from nightjar.inference.scoring.known_rows import KnownRows


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """The result of scoring a table."""

    outputs: pa.Table
    """The declared outputs of the kept rows, in input order."""
    kept: np.ndarray | None
    """The int64 indices of the kept rows in the table, of shape (kept rows,); None if these are all of the table."""
    failures: tuple[RowFailure, ...]
    """One for each other row, in input order. Of several models each has one for a row that it could not score, so a
    kept row may have failures, too."""
    batches_cut: int = 0
    """The micro-batches that raised and were scored in parts."""
    known: Mapping[str, KnownRows] = field(default_factory=dict)
    """What was known before of the rows of the whole table, by the name of the model."""


def completed(known: KnownRows, scored: ScoredRows) -> ScoredRows:
    """The result of a whole table. scored: of its rows that no earlier night has, each key once."""
    rows, reused = len(known.part), np.flatnonzero(known.part >= 0)
    if len(known.to_score) == rows:
        return scored
    at = np.full(rows, -1, np.int64)
    at[reused] = np.arange(reused.size)
    at[np.arange(rows) if scored.kept is None else scored.kept] = reused.size + np.arange(scored.outputs.num_rows)
    at = np.where(known.part >= 0, at, at[known.twin])
    kept = np.flatnonzero(at >= 0)
    failed = {failure.row: failure for failure in scored.failures}
    failures = tuple(replace(failed[int(known.twin[row])], row=int(row)) for row in np.flatnonzero(at < 0))
    outputs = pa.concat_tables([known.outputs, scored.outputs]).take(at[kept])
    return ScoredRows(outputs, None if kept.size == rows else kept, failures, scored.batches_cut)


def keys_of(job: Job, scored: ScoredRows) -> tuple[RowKeys, ...]:
    """The keys of the rows that are written, for each model of the job; empty if the job does not reuse rows."""
    kept = slice(None) if scored.kept is None else scored.kept
    found = []
    for model in job.models if scored.known else ():
        known = scored.known[model.name]
        keys = known.keys.copy()
        keys[[failure.row for failure in scored.failures if failure.model == model.name]] = 0
        high, low = np.ascontiguousarray(keys[kept].T)
        found.append(RowKeys(high, low, known.part[kept], known.row[kept]))
    return tuple(found)


def side_by_side(
    rows: int,
    models: Sequence[LoadedModel],
    found: Sequence[ScoredRows],
    skip: Mapping[int, RowFailure],
    complete: bool,
) -> ScoredRows:
    """The outputs of all models for the rows that are kept. rows: of the table."""
    scored = np.ones((len(models), rows), dtype=bool)
    for each, by_model in zip(found, scored, strict=True):
        by_model[[failure.row for failure in each.failures]] = False
    keeps = scored.all(axis=0) if complete else scored.any(axis=0)
    kept = np.flatnonzero(keeps)
    columns: dict[str, pa.ChunkedArray] = {}
    for model, each, by_model in zip(models, found, scored, strict=True):
        outputs = (
            each.outputs
            if by_model[kept].all() and each.outputs.num_rows == kept.size
            else _at(each.outputs, by_model, kept)
        )
        columns |= {f"{model.prefix}{name}": outputs[name] for name in outputs.column_names}
    # A row that was skipped for all models has one failure.
    every = (failure for each in found for failure in each.failures if each is found[0] or failure.row not in skip)
    failures = sorted(every, key=lambda failure: failure.row)
    cut = sum(each.batches_cut for each in found)
    return ScoredRows(pa.table(columns), None if kept.size == rows else kept, tuple(failures), cut)


def _at(outputs: pa.Table, scored: np.ndarray, kept: np.ndarray) -> pa.Table:
    """A model's outputs for the kept rows: null where the model has none. scored: whether it has, by row."""
    at = np.cumsum(scored) - 1
    return outputs.take(pa.array(at[kept], mask=~scored[kept]))
