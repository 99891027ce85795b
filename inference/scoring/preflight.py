"""Preflight in a worker: loads the model once and scores a few rows.

It is separate from the engine, so that preflight's process does not need Ray Data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import holds_floats
from nightjar.inference.errors import (
    BatchesBroken,
    JobError,
    NightjarError,
    ProcessSpoilt,
    ShardError,
    StorageError,
    traced,
)
from nightjar.inference.identity.packages import loaded_packages
from nightjar.inference.input.plan import Plan, shard_of_line
from nightjar.inference.input.sources.reading import read_sample, source_of
from nightjar.inference.input.sources.rows import RowsRead, selected
from nightjar.inference.job.checks import MetricCheck
from nightjar.inference.job.label_sections import accumulator_of
from nightjar.inference.job.model import Job
from nightjar.inference.messages import clip, counted, listed, nearest
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.metrics.states import nonfinite_notes
from nightjar.inference.records import UNKNOWN, Piece, Seen, Shard
from nightjar.inference.scoring.accumulating import columns_of, try_all
from nightjar.inference.scoring.assignment import BatchSize, LoadedModel, WorkerSpec
from nightjar.inference.scoring.attempts import JoinedPieces
from nightjar.inference.scoring.broken_batches import Cuts
from nightjar.inference.scoring.microbatches import drained, score_models
from nightjar.inference.scoring.neighbours import NOISE, Sample, Unfit, dependences
from nightjar.inference.scoring.scored_rows import ScoredRows
from nightjar.inference.scoring.worker import Assembly, ShardWorker
from nightjar.inference.witness import audit as witness

SAMPLE_ROWS = 32
_ASKED_ROWS = 8
"""The rows of a sample if each is a request, which may cost money. They are asked for at once, so they are one step."""

_SLOW_S = 30.0
"""If the sample takes longer, in seconds, it is not scored again beside other rows; nor if that might stall."""

PLACES = 8


@dataclass(frozen=True, slots=True)
class Loaded:
    """What preflight found."""

    device: str
    """Of the model."""
    sample_error: str = ""
    """Why the samples could not be scored, if they could not."""
    place: int = 0
    """The index of the place that was tried last."""
    hung: bool = False
    """Whether preflight took longer than the job allows."""
    notes: tuple[str, ...] = ()
    """What else a person should know about the model's code."""
    outside: tuple[Seen, ...] = ()
    """What the code used that the identity does not cover."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """The loaded distributions with their versions."""


def read_place(spec: WorkerSpec, piece: Piece) -> RowsRead:
    """Read the rows of a place on which to try the model. Raises as `read_sample`."""
    return read_sample(spec.storage, spec.job, piece, spec.schema, _ASKED_ROWS if spec.job.streams else SAMPLE_ROWS)


def loaded_by(job: Job) -> str:
    """The key of the model, with its file, for messages."""
    return f"{job.loaded_by} ({', '.join(job.paths)})" if job.paths else job.loaded_by


def samples(plan: Plan) -> list[Piece]:
    """Pieces of the input, far from each other, on which to try the model; the first piece of the input comes first."""
    rows = plan.table["rows"]
    readable = pc.indices_nonzero(pc.or_(pc.greater(rows, 0), pc.equal(rows, UNKNOWN)))
    if not len(readable):
        return []
    at = sorted({len(readable) * index // PLACES for index in range(PLACES)})
    lines = plan.table.take(readable.take(at)).to_pylist()
    most = -(-PLACES // len(lines))  # of a shard: few shards may have many small files
    found = [pieces[:: -(-len(pieces) // most)] for pieces in (shard_of_line(line).pieces for line in lines)]
    return list(chain.from_iterable(found))


PreflightSteps = Callable[[ShardWorker, Sequence[Piece]], Iterator[Loaded]]
"""What preflight does with the loaded model: `preflight_steps`, or a function that does more.

Yields what is known after each step. Raises `Unfit` if something is wrong with the model."""


Outcome = Loaded | JobError
"""What is known after a step of preflight, or what is wrong."""


class Ready:
    """The first answer of a process for preflight: from now on the model takes the time."""


def observed(
    job: Job, steps: PreflightSteps, load: Callable[[], ShardWorker], places: Sequence[Piece]
) -> Iterator[Outcome]:
    """Load the model and run the steps; add what the code used meanwhile, and at the end the loaded packages.

    If the model cannot be loaded or cannot score, yields the error, which names a key. An error that may pass says
    nothing of the model.
    """
    key = loaded_by(job)
    try:
        worker = load()
    except JobError as error:
        yield traced(JobError(clip(str(error))), error)
        return
    except NightjarError as error:
        yield JobError(f"{key}: {clip(str(error))}")
        return
    witness.note_names([each.options for each in job.models])
    found: Loaded | None = None
    try:
        for step in steps(worker, places):
            if witness.lacking():
                raise Unfit
            found = replace(step, outside=witness.seen())
            yield found
    except Unfit as unfit:
        refused = JobError(f"{key}: {'; '.join(witness.lacking()) or unfit}")
        refused.traceback = unfit.traceback
        yield refused
        return
    except NightjarError as error:
        if found is None or not error.repeatable:
            yield traced(JobError(clip(str(error))), error)
            return
        found = replace(found, sample_error=clip(str(error)))
    if found is not None:
        yield replace(found, packages=loaded_packages())


def preflight_steps(worker: ShardWorker, places: Sequence[Piece]) -> Iterator[Loaded]:
    """Yield `Loaded` before and after a place of the input is scored.

    Each model is tried by itself, because each must be able to score; the first that fails is reported. The next place
    is tried only if no row can be scored at the places before, because a bad file does not mean a bad model; rows that
    cannot be read are left out. If rows of a place fail only together, the next place decides; without one the model is
    refused.

    Raises:
        Unfit: Something is wrong with the model.
    """
    notes: list[str] = []
    # The sample of a place is read once, however many models and accumulators are tried with it.
    read = cache(partial(read_place, worker.spec))
    for model in worker.models:
        for step in _steps(worker, model, places, read):
            yield replace(step, notes=tuple(dict.fromkeys([*notes, *step.notes])))
        if step.sample_error:
            return
        notes += step.notes
    if worker.spec.job.accumulators and places:
        try_accumulators(worker, places[step.place], read)
        yield replace(step, notes=tuple(dict.fromkeys(notes)))


def try_accumulators(worker: ShardWorker, piece: Piece, read_of: _ReadSample) -> None:
    """Try the job's own accumulators on a sample of the piece, as all models score it.

    Raises:
        JobError: An accumulator is broken, or lacks a figure that a check names. Names the key.
    """
    spec = worker.spec
    try:
        read = read_of(piece)
        scored = score_sample(worker, read, piece.first_row, worker.models)
    except (ShardError, StorageError):
        return  # the passes find it
    sample = Assembly(spec, Shard("sample", (piece,)), JoinedPieces([piece], [read]), scored)
    rows = sample.table.select(columns_of(spec.job, spec.schema.names))
    if rows.num_rows:
        _check_figures(spec.job, try_all(spec, rows))


def _check_figures(job: Job, figures: Mapping[str, tuple[str, ...]]) -> None:
    """Check that the accumulators give the figures that checks name. figures: of each accumulator."""
    for key, check in job.checks_of(MetricCheck).items():
        if not (name := accumulator_of(check.metric)):
            continue
        known = [f"{name}.{each}" for each in figures[name]]
        if check.metric not in known:
            raise JobError(
                f"{key}.metric: {job.accumulators[name]} gives no {check.metric}, but {listed(known, 'and')}"
                f"{nearest(check.metric, known)}"
            )


_ReadSample = Callable[[Piece], RowsRead]


def _steps(worker: ShardWorker, model: LoadedModel, places: Sequence[Piece], read_of: _ReadSample) -> Iterator[Loaded]:
    device = worker.device
    named = f"{model.name}: " if model.name else ""
    unread, broken, refused, raised = "", "", [], ""
    for place, piece in enumerate(places):
        source_of(worker.spec.job, piece.uri)  # imports what reads it; the time of the rows is limited
        yield Loaded(device, place=place)
        try:
            read = read_of(piece)
        except (ShardError, StorageError) as error:
            # A file that cannot be read fails its own shards later, in the passes.
            unread = unread or clip(str(error))
            continue
        if not read.readable:
            unread = unread or (clip(read.unreadable(piece.uri)) if read.failures else "")
            continue
        began = time.monotonic()
        try:
            scored = score_sample(worker, read, piece.first_row, [model])
            failures = [failure for failure in scored.failures if failure.row not in read.failures]
            if len(failures) < read.readable:
                untried = ""
                try:
                    for _ in _dependences(worker, model, places[place:], read_of, scored, time.monotonic() - began):
                        yield Loaded(device, place=place)
                except _Untried as error:
                    untried = f"{named}{error}"
                except Unfit as unfit:
                    raise Unfit(f"{named}{unfit}") from None
                notes = broken, *_nonfinite(scored.outputs), untried
                yield Loaded(device, place=place, notes=tuple(filter(None, notes)))
                return
        except BatchesBroken as error:
            if broken:
                break
            broken = clip(str(error))
            continue
        except ProcessSpoilt as spoilt:
            # The passes will find this row, as they find a row that kills its process.
            yield Loaded(device, str(spoilt), place)
            return
        raised = raised or failures[0].traceback
        refused.append(f"{read.readable} rows of {piece.uri} can be scored: {failures[0].said}")
    if broken:
        raise Unfit(broken)
    if refused:
        more = f"; nor any at {counted(len(refused) - 1, 'other place')} of the input" if refused[1:] else ""
        raise Unfit(f"{named}none of the first {refused[0]}{more}", raised)
    yield Loaded(device, unread)


class _Untried(Exception):
    """Why nobody knows whether a row's output depends on more than the row."""


def _dependences(
    worker: ShardWorker,
    model: LoadedModel,
    places: Sequence[Piece],
    read_of: _ReadSample,
    scored: ScoredRows,
    took: float,
) -> Iterator[None]:
    """As `dependences`, on one micro-batch of rows of the first place, and of the next ones if it has too few.

    scored: the rows of the first place, in so many seconds.
    """
    job = worker.spec.job
    its = job.model_named(model.name)
    if its.framework.streams:
        return
    if its.rows == "dependent":
        raise _Untried(
            "rows depend on each other (model.rows: dependent): an output is that of its row among the "
            f"{its.batch_size} rows of its batch; where a batch fails and is scored in parts, among fewer"
        )
    if took > min(_SLOW_S, job.retry.stall_s / 4):
        raise _Untried(f"the sample took {took:.0f} s, so it was not tried whether its rows depend on each other")

    def score(table: pa.Table) -> pa.Table:
        untried = "whether rows depend on each other could not be tried"
        try:
            again = score_sample(worker, RowsRead(table), 0, [model])
        except BatchesBroken as error:
            raise _Untried(clip(f"{untried}: {error}")) from None
        for failure in again.failures:
            raise _Untried(clip(f"{untried}: {failure.said}"))
        return again.outputs

    sample = _micro_batch(model, places, read_of, [failure.row for failure in scored.failures])
    rows = sample.table.num_rows
    known = not scored.failures and rows <= scored.outputs.num_rows
    outputs = scored.outputs.slice(0, rows) if known else score(sample.table)
    noise = NOISE if its.framework.inexact else 0.0
    yield from dependences(sample, outputs, score, job.rescore.tolerance, noise)


def _micro_batch(model: LoadedModel, places: Sequence[Piece], read_of: _ReadSample, failed: Sequence[int]) -> Sample:
    """The first micro-batch, of as few places as have its rows. failed: rows of the first place to leave out."""
    tables: list[pa.Table] = []
    found: list[tuple[str, int]] = []
    wanted = min(SAMPLE_ROWS, model.size.most)
    for piece in places:
        if len(found) >= wanted:
            break
        with suppress(ShardError, StorageError):  # it fails its own shards later
            read = read_of(piece)
            good = np.setdiff1d(np.arange(read.table.num_rows), [*read.failures, *([] if tables else failed)])
            tables.append(selected(read.table.select(list(model.columns)), good))
            found += [(piece.uri, piece.first_row + read.index(int(row))) for row in good]
    table = pa.concat_tables(tables).unify_dictionaries()
    return Sample(table.slice(0, model.size.most), found[: model.size.most])


def score_sample(worker: ShardWorker, read: RowsRead, first: int, models: Sequence[LoadedModel]) -> ScoredRows:
    """Score the rows, and keep nothing of what memory shows. Raises BatchesBroken if a batch fails though each of its
    rows can be scored.
    """
    return drained(
        score_models(
            read.table,
            [replace(model, size=BatchSize(model.size.most), preparer=None) for model in models],
            skip=read.failures,
            at=lambda row: first + read.index(row),
            cuts=partial(Cuts, allowed=0, share=0.0),
            complete=worker.spec.job.output.rows == "all",
        )
    )


def _nonfinite(outputs: pa.Table) -> list[str]:
    names = [name for name in outputs.column_names if holds_floats(outputs[name].type)]
    return nonfinite_notes({name: ColumnState.of(outputs[name]) for name in names}, "the sample")
