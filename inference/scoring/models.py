"""Scores a table with all models of a job, one after the other, and puts their outputs side by side.

Each model has micro-batches of its own size. A row that one model cannot score keeps the outputs of the others: it has
null for that model's outputs, and a failure under that model's name. A row that no model can score is lost whole. A job
with one model is the case in which every failed row is lost whole.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import value_bytes
from nightjar.inference.errors import BatchesBroken, JobError
from nightjar.inference.input.sources.rows import over_budget
from nightjar.inference.job.modeljob import model_jobs
from nightjar.inference.predictors import Scorer, model_columns
from nightjar.inference.records import RowFailure
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.microbatches import Ahead, BatchSize, Cuts, ScoredRows, ScoreRows, score_table
from nightjar.inference.scoring.prepared_batches import Batch, Preparer, PreparingThread
from nightjar.inference.stopwatch import Stopwatch

_NO_ROWS = range(0)

PACKED_ROWS, PACKED_ROWS_GPU = 2048, 16384
"""Rows of a micro-batch that a predictor packs into calls of the model: many, so that it finds rows of one size; and
few enough that a large model on a few cores, at four rows a second, is done with them before `retry.stall_s`."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, and what is needed to score with it."""

    name: str
    """Empty for the only model of a job."""
    prefix: str
    """Of the names of its output columns."""
    columns: tuple[str, ...]
    """The input columns that it takes."""
    types: Mapping[str, pa.DataType]
    """Its outputs, by the names that the model gives them."""
    scorer: ScoreRows
    size: BatchSize
    """Of its micro-batches."""
    preparer: Preparer | None = None


def loaded_models(
    spec: WorkerSpec,
    scorers: Sequence[Scorer],
    *,
    only: str | None = None,
    thread: PreparingThread | None = None,
    watch: Stopwatch | None = None,
) -> tuple[LoadedModel, ...]:
    """The models of a job with their scorers, in the job's order.

    only: the name of the one model that is loaded. thread: prepares batches while models compute. watch: of the thread
    that scores.
    """
    chosen = [(index, each) for index, each in enumerate(model_jobs(spec.job)) if only in {None, each.model.name}]
    return tuple(
        LoadedModel(
            each.model.name,
            each.model.prefix,
            model_columns(each, spec.schema),
            each.model.output_types(),
            scorer,
            batch_size(spec, index),
            Preparer(scorer, thread, watch),
        )
        for (index, each), scorer in zip(chosen, scorers, strict=True)
    )


def batch_size(spec: WorkerSpec, index: int = 0) -> BatchSize:
    """The size of micro-batches to begin with. It depends only on the job and the schema.

    index: of the model in the job.
    """
    job = model_jobs(spec.job)[index]
    size = job.model.batch_size
    if isinstance(size, int):
        return BatchSize(size)
    features = pa.schema([spec.schema.field(name) for name in model_columns(job, spec.schema)])
    framework, gpu = job.model.framework, job.resources.gpus > 0
    if framework.rows:
        return BatchSize(framework.rows[gpu])
    return BatchSize(auto_batch_rows(features, gpu, framework.packs))


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


def score_models(
    table: pa.Table,
    models: Sequence[LoadedModel],
    *,
    skip: Mapping[int, RowFailure] = {},
    died: Mapping[str, Mapping[int, RowFailure]] = {},
    singly: Mapping[str, range] = {},
    budget: int | None = None,
    at: Callable[[int], int] = int,
    cuts: Callable[[], Cuts] = Cuts,
    complete: bool = False,
    ahead: bool = True,
    shipped: Mapping[str, Sequence[Batch]] = {},
) -> Generator[Ahead, None, ScoredRows]:
    """Score a table, yielding `Ahead` before each call of a scorer and returning `ScoredRows`.

    The other arguments are those of `score_table`: skip holds for all models; died, singly and shipped are given for
    each model by its name, and each has `cuts` of its own. budget: of rows, however many models cannot score them.
    complete: a row that any model cannot score is lost whole. ahead: prepare the next micro-batch while a model
    computes.

    Raises:
        OverBudget, BatchesBroken, NightjarError, ProcessSpoilt: As `score_table`.
    """
    found = []
    failed: dict[int, RowFailure] = {}
    for model in models:
        try:
            scored = yield from score_table(
                table.select(list(model.columns)),
                model.scorer,
                model.size,
                dict(model.types),
                skip={**skip, **died.get(model.name, {})},
                singly=singly.get(model.name, _NO_ROWS),
                budget=budget,
                at=at,
                cuts=cuts(),
                preparer=model.preparer,
                ahead=ahead,
                shipped=shipped.get(model.name, ()),
                model=model.name,
            )
        except (BatchesBroken, JobError) as error:
            if not model.name:
                raise
            raise type(error)(f"models.{model.name}: {error}") from error
        found.append(scored)
        failed = {failure.row: failure for failure in scored.failures} | failed
        if budget is not None and len(failed) > budget:
            first = min(failed)
            raise over_budget(failed, budget, at(first) - first)
    return _side_by_side(table.num_rows, models, found, skip, complete)


def _side_by_side(
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
