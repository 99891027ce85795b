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

from nightjar.inference.errors import BatchesBroken, JobError
from nightjar.inference.input.sources.rows import over_budget
from nightjar.inference.job.modeljob import model_jobs
from nightjar.inference.predictors import Scorer, model_columns
from nightjar.inference.records import RowFailure
from nightjar.inference.scoring.assignment import WorkerSpec, batch_size
from nightjar.inference.scoring.batchsize import BatchSize
from nightjar.inference.scoring.microbatches import Ahead, Cuts, ScoredRows, ScoreRows, score_table
from nightjar.inference.scoring.prepared_batches import Batch, Preparer, PreparingThread
from nightjar.inference.stopwatch import Stopwatch

_NO_ROWS = range(0)


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
