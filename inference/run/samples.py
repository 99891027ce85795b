"""Samples for `check`: rows of several files, and the model's outputs for them.

This is stricter than a run's preflight, which is content when the model works at any place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from nightjar.inference.errors import (
    BatchesBroken,
    JobError,
    LabelInvalid,
    OutputInvalid,
    OverBudget,
    ProcessSpoilt,
    ShardError,
    StorageError,
)
from nightjar.inference.input.sources.reading import read_sample
from nightjar.inference.job.model import Job
from nightjar.inference.messages import clip
from nightjar.inference.metrics.states import Metrics, nonfinite_notes
from nightjar.inference.records import NO_USAGE, UNKNOWN, Piece
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.microbatches import ScoredRows, ScoreRows
from nightjar.inference.scoring.models import LoadedModel
from nightjar.inference.scoring.preflight import (
    SAMPLE_ROWS,
    WRITES,
    Loaded,
    calls,
    preflight_steps,
    rows_at_once,
    score_sample,
)
from nightjar.inference.scoring.streaming import spans
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.gates import answers_gates_of, column_gates_of
from nightjar.inference.values import shown

LABEL_ROWS = 4096
"""The labels that are checked at each place; this needs no model."""

SHOWN_ROWS = 5
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Shown:
    """Rows with their predictions. names: carried columns, then outputs; rows: their values, as text."""

    uri: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """The result of scoring `rows` rows from `places` places of the input.

    broken: a sentence for each place whose outputs are not what the job declares. cut: batches that failed although
    each row can be scored. failed: the number of rows that cannot be scored. first_failure: of one of them. unread: why
    places could not be read. nonfinite: output → number of such values.
    """

    rows: int = 0
    places: int = 0
    broken: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    failed: int = 0
    first_failure: str = ""
    unread: tuple[str, ...] = ()
    nonfinite: tuple[tuple[str, int], ...] = ()
    shown: Shown | None = None


@dataclass(frozen=True, slots=True)
class Examined(Loaded):
    """The result of preflight, with the scored samples."""

    sampled: Sampled = field(default_factory=Sampled)


def check_labels(
    storage: Storage, job: Job, schema: pa.Schema, places: Iterable[Piece], *, all_alike: bool = False
) -> None:
    """Check the labels in rows of each place. This needs no model and no cluster.

    schema: the input's columns. all_alike: stop at the first place with right labels, because a bad file fails only
    itself, but a wrong label column would fail the night.

    Raises:
        JobError: A label is neither 0 nor 1 nor null. Names the file.
    """
    wrong: JobError | None = None
    for piece, error in _labels(storage, job, schema, places):
        if error is None and all_alike:
            return
        if error is not None:
            wrong = wrong or JobError(f"label: {error} (in {piece.uri})")
            if not all_alike:
                break
    if wrong is not None:
        raise wrong


def _labels(
    storage: Storage, job: Job, schema: pa.Schema, places: Iterable[Piece]
) -> Iterator[tuple[Piece, LabelInvalid | None]]:
    """The places that have labels, with what is wrong with them; none for a job without a label."""
    evaluation = Metrics.for_job(job).evaluation
    if evaluation is None:
        return
    column = pa.schema([each for each in schema if each.name in {evaluation.label, *job.input.compared()}])
    for piece in places:
        try:
            labels = read_sample(storage, job, piece, column, LABEL_ROWS)[0].table[evaluation.label]
        except (ShardError, StorageError):
            continue  # a file that cannot be read is reported elsewhere, and fails only its own shards
        try:
            evaluation.update(pa.chunked_array([pa.nulls(len(labels), pa.float32())]), labels)
        except LabelInvalid as error:
            yield piece, error
        else:
            if labels.null_count < len(labels):
                yield piece, None


def refuse_broken(job: Job, sampled: Sampled) -> None:
    """Raise a JobError if the outputs of any place are not what the job declares, because all night they would not
    be.
    """
    if sampled.broken:
        others = len(sampled.broken) - 1
        more = f"; the like at {others} of the {sampled.places - 1} other places looked at" if others else ""
        raise JobError(f"{job.loaded_by}: {sampled.broken[0]}{more}")


def sample_notes(spec: WorkerSpec, sampled: Sampled) -> list[str]:
    """A sentence for each finding for which no run would be refused."""
    notes = [f"{why}: its shards will fail" for why in sampled.unread]
    if sampled.failed:
        rows = "as many" if spec.budget is None else f"{spec.budget:,}"
        allowed = f"retry.max_quarantined = {spec.job.retry.max_quarantined:g} allows {rows} of the whole run"
        notes.append(
            f"{sampled.failed:,} of {sampled.rows:,} sample rows cannot be scored, and {allowed}; the first: "
            f"{sampled.first_failure}"
        )
    return notes


def examine(worker: ShardWorker, places: Sequence[Piece], last: bool = False) -> Iterator[Loaded | str]:
    """Run `preflight_steps`; when the model works at one place, score every place, and one whole batch."""
    step: Loaded | str = Loaded(worker.device)
    for step in preflight_steps(worker, places, last):
        yield step
    if isinstance(step, Loaded) and not step.sample_error:
        for step in _look(worker, places):
            yield step
    # A model that is asked for one row at a time has no batch: more rows would only cost more.
    for model in () if spans(worker.spec.job) else worker.models:
        if isinstance(step, Examined) and not step.sample_error:
            for outcome in _whole(worker, model, places, step):
                step = outcome
                yield step


def _look(worker: ShardWorker, places: Sequence[Piece]) -> Iterator[Examined]:
    """Yield the result after each place, so that a place that ends the process does not lose the other results."""
    found, error = Sampled(), ""
    job = worker.spec.job
    counted = Metrics.for_job(job)
    counted.evaluation = None  # the labels were checked before
    usage = NO_USAGE
    worker.claimed()  # what preflight asked is no part of the sample
    for place, piece in enumerate(places):
        try:
            found = _place(worker, piece, found, counted)
        except ProcessSpoilt as spoilt:
            error = str(spoilt)
        usage = usage.plus(worker.claimed())
        judged = (
            *(gate.judge_column(counted.columns[gate.column]) for gate in column_gates_of(job)),
            *(gate.judge_usage(usage) for gate in answers_gates_of(job)),
        )
        notes = (
            *found.cut,
            *([WRITES] if worker.wrote else []),
            *nonfinite_notes(counted.results().outputs, "the sample"),
            *(f"{gate.name} does not pass on the sample: {gate.sentence}" for gate in judged if not gate.passed),
        )
        yield Examined(worker.device, error, place, notes=notes, sampled=found)
        if error:
            return


def _whole(
    worker: ShardWorker, model: LoadedModel, places: Sequence[Piece], step: Examined
) -> Iterator[Examined | str]:
    """One batch of as many rows as the model will get at once, where they lie: a few rows may hide what many show.

    step: what is known so far; yielded before each call of the predictor, so that each has the time of one, and with
    what is learnt. A batch that breaks may be an accident: the next place has the say.
    """
    rows, broken = rows_at_once(worker, model, places), ""
    for piece in sorted(places, key=lambda piece: -_at_most(piece, rows)):
        if _at_most(piece, rows) <= SAMPLE_ROWS:
            break  # so much was scored before
        try:
            read, first = worker.sample(piece, rows)
        except (ShardError, StorageError):
            continue
        if not read.readable:
            continue
        try:
            for _ in calls(worker, read, first, [model], budget=worker.spec.budget):
                yield step
        except BatchesBroken as error:
            if broken:
                break
            broken = clip(str(error))
        except OverBudget as error:
            # The passes will quarantine the rows, and end the run.
            yield replace(
                step, notes=(*step.notes, f"of the first {read.table.num_rows:,} rows of {piece.uri} {error}")
            )
            return
        except (ShardError, StorageError):
            continue
        except ProcessSpoilt as spoilt:
            yield replace(step, sample_error=str(spoilt))
            return
        else:
            yield replace(step, notes=(*step.notes, broken)) if broken else step
            return
    if broken:
        yield broken


def _at_most(piece: Piece, rows: int) -> int:
    """How many of so many rows a piece may have."""
    return rows if piece.rows == UNKNOWN else min(piece.rows, rows)


def _place(worker: ShardWorker, piece: Piece, found: Sampled, counted: Metrics) -> Sampled:
    """The result so far, with that of one more place."""
    try:
        read, first = read_sample(worker.spec.storage, worker.spec.job, piece, worker.spec.schema, SAMPLE_ROWS)
    except (ShardError, StorageError) as error:
        return replace(found, unread=(*found.unread, clip(str(error))))
    table = read.table
    found = replace(found, rows=found.rows + table.num_rows, places=found.places + 1)
    witnesses = [_Witness(model.scorer) for model in worker.models]
    models = [replace(model, scorer=witness) for model, witness in zip(worker.models, witnesses, strict=True)]
    where = f"({read.readable} rows of {piece.uri})"
    try:
        scored = score_sample(worker, read, first, models)
    except BatchesBroken as error:
        if not any(witness.broken for witness in witnesses):
            return replace(found, cut=(*found.cut, f"{clip(str(error))} {where}"))
        scored = None
    for model, witness in zip(models, witnesses, strict=True):
        if witness.broken:
            named = f"{model.name}: " if model.name else ""
            found = replace(found, broken=(*found.broken, f"{named}{witness.broken} {where}"))
    if scored is None:
        return found
    kept = table if scored.kept is None else table.take(pa.array(scored.kept))
    columns = {name: kept[name] for name in worker.spec.job.carried(worker.spec.schema.names)} | dict(
        zip(scored.outputs.column_names, scored.outputs.columns, strict=True)
    )
    return _counted(piece.uri, pa.table(columns), scored, found, counted)


def _counted(uri: str, written: pa.Table, scored: ScoredRows, found: Sampled, counted: Metrics) -> Sampled:
    """written: carried columns and outputs, as a part would have them."""
    counted.update(written, None)
    first = scored.failures[0] if scored.failures else None
    by = f", {first.model}" if first and first.model else ""
    return replace(
        found,
        failed=found.failed + len({failure.row for failure in scored.failures}),
        first_failure=found.first_failure or (f"{uri}{by}: {first.error}: {first.message}" if first else ""),
        nonfinite=tuple((name, state.nonfinite) for name, state in counted.outputs.items() if state.nonfinite),
        shown=found.shown or (_shown(uri, written) if written.num_rows else None),
    )


class _Witness:
    """A scorer that remembers the first outputs that were not as declared, because cutting the batch may hide them."""

    def __init__(self, scorer: ScoreRows) -> None:
        self._scorer = scorer
        self.broken = ""

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        try:
            return self._scorer(table)
        except OutputInvalid as error:
            self.broken = self.broken or clip(str(error))
            raise


def _shown(uri: str, written: pa.Table) -> Shown:
    count = min(SHOWN_ROWS, written.num_rows)
    rows = tuple(tuple(shown(column[row], _SHOWN_CHARS) for column in written.columns) for row in range(count))
    return Shown(uri, tuple(written.column_names), rows)
