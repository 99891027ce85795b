"""`check`: preflight without a run, on rows of several files.

It is stricter than a run's preflight, which is content when the model works at any place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from nightjar.inference.arrow_types import shown, type_name
from nightjar.inference.engine import opened
from nightjar.inference.errors import (
    BatchesBroken,
    IndexInvalid,
    JobError,
    LengthInvalid,
    NightjarError,
    OutputInvalid,
    ProcessSpoilt,
    SchemaMismatch,
    ShardError,
    StorageError,
    Transient,
)
from nightjar.inference.input.plan import Discovery, make_plan
from nightjar.inference.input.sources.reading import read_sample
from nightjar.inference.input.sources.rows import RowsRead, selected
from nightjar.inference.job.model import Job
from nightjar.inference.messages import clip, counted
from nightjar.inference.metrics.states import Metrics, nonfinite_notes
from nightjar.inference.output import targets
from nightjar.inference.output.parts import output_schema, readers_schema
from nightjar.inference.records import Piece
from nightjar.inference.run.refusals import check_labels, refuse_external_reads, told
from nightjar.inference.run.request import RunRequest, worker_spec
from nightjar.inference.run.results import Sample
from nightjar.inference.run.resume import probe_output
from nightjar.inference.run.waiting import awaited
from nightjar.inference.scoring.assignment import WorkerSpec, read_schema
from nightjar.inference.scoring.preflight import SAMPLE_ROWS, Loaded, preflight_steps, read_place, samples, score_sample
from nightjar.inference.scoring.scored_rows import ScoredRows
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.usage import NO_USAGE
from nightjar.inference.validation.evidence import judge_input
from nightjar.inference.validation.gates import Evidence, Found, evaluate
from nightjar.inference.validation.gates.rules import sample_gates
from nightjar.inference.witness.seen import sentences


@dataclass(frozen=True)
class Checked:
    """The result of `check`."""

    device: str
    """The devices of the models, separated by commas, as `cuda:0`; of an endpoint its host."""

    sampled: Sampled
    """The scored samples."""

    columns: tuple[tuple[str, str], ...]
    """Name and Arrow type of each column of a part."""

    warnings: tuple[str, ...]
    """What a person should know before the night, a sentence each."""


def check_input(request: RunRequest, discovery: Discovery) -> None:
    """The part of `check` that needs neither cluster nor model.

    Raises:
        JobError: Something must be changed first.
    """
    targets.check(request.storage, request.job, discovery.schema, request.date)
    places = samples(make_plan(discovery, request.job, ""))
    check_readable(request, discovery.schema, places)
    check_labels(request.storage, request.job, discovery.schema, places)


def check_readable(request: RunRequest, schema: pa.Schema, places: Sequence[Piece]) -> None:
    """Check that rows can be read at one of these places at least. A bad file fails only its own shards, but what is
    wrong with each file fails the night. This needs no model and no cluster.

    schema: the input's columns.

    Raises:
        JobError: No row can be read at any place. Names the key, and the first file.
        Transient: The storage is away.
    """
    storage, job = request.storage, request.job
    columns = read_schema(job, schema)
    wrong: list[tuple[str, NightjarError]] = []
    for piece in places:
        try:
            read = read_sample(storage, job, piece, columns, SAMPLE_ROWS)
        except (ShardError, StorageError) as error:
            wrong.append((type(error).__name__, error))
            continue
        if read.readable or not read.failures:
            return  # it can be read, even if none of its rows matches `input.where`
        failure = read.failures[min(read.failures)]
        wrong.append((failure.error, JobError(read.unreadable(piece.uri))))
    if not wrong:
        return
    kind, first = wrong[0]
    if isinstance(first, Transient):
        raise first
    key = "input.schema" if kind == SchemaMismatch.__name__ and job.input.declared else job.input.key
    tried = f"the first rows of {counted(len(places), 'place')} of the input were tried, and none can be read"
    raise JobError(f"{key}: {tried}; the first: {clip(str(first))}")


def check(request: RunRequest, discovery: Discovery) -> Checked:
    """Preflight without a run: cluster, storage, and the model on rows of several files.

    Raises:
        JobError, ClusterError: Something must be changed first.
    """
    probe_output(request)
    made = make_plan(discovery, request.job, "")
    unknown = discovery.uncounted or request.job.input.where
    spec = worker_spec(request, discovery.schema, rows=None if unknown else discovery.rows)
    with opened(request.engine) as engine:
        engine.check_capacity(request.job)
        places = samples(made)
        loaded = engine.preflight(spec, places, examine)
        sampled = loaded.sampled if isinstance(loaded, Examined) else Sampled()
        refuse_broken(request.job, sampled)
    refuse_external_reads(request.job, loaded.outside)
    warnings = [*told(request, loaded), *([loaded.sample_error] if loaded.sample_error else [])]
    warnings += sentences(loaded.outside)
    warnings += [
        gate.sentence for gate in judge_input(request.storage, request.job, request.date, discovery) if not gate.passed
    ]
    if lacking := awaited(request.storage, request.job):
        warnings.append(f"a run begun now would be {lacking.sentence}")
    if discovery.unread:
        warnings.append(discovery.unread)
    warnings += sample_notes(spec, sampled)
    if request.job.input.where and isinstance(loaded, Examined) and not (sampled.rows or loaded.sample_error):
        warnings.append(
            "none of the sampled rows matches input.where, so the model was loaded and not tried; if no other row "
            "matches, the night does not pass the gate `complete`, unless a check `rows: {min: 0}` allows it"
        )
    columns = readers_schema(output_schema(request.job, discovery.schema))
    typed = tuple((each.name, type_name(each.type)) for each in columns)
    return Checked(loaded.device, sampled, typed, tuple(warnings))


_MISFITS = {kind.__name__ for kind in (OutputInvalid, LengthInvalid, IndexInvalid)}
"""Errors of rows whose outputs are not what the job declares."""

SHOWN_ROWS = 5
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Sample):
    """The result of scoring the first rows of several places of the input."""

    file: str | None = None
    """As in `Sample`."""

    broken: tuple[str, ...] = ()
    """A sentence for each place where outputs are not what the job declares; of several models about the first one."""

    cut: tuple[str, ...] = ()
    """A sentence for each place with batches that failed although each row can be scored."""

    first_failure: str = ""
    """The first row that cannot be scored: its file, its model if there are several, and the error."""

    unread: tuple[str, ...] = ()
    """Why places could not be read, a sentence each."""


@dataclass(frozen=True, slots=True)
class Examined(Loaded):
    """The result of preflight, with the scored samples."""

    sampled: Sampled = field(default_factory=Sampled)


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


def examine(worker: ShardWorker, places: Sequence[Piece]) -> Iterator[Loaded]:
    """Run `preflight_steps`; when the model works at one place, score every place."""
    for step in preflight_steps(worker, places):
        yield step
    if not step.sample_error:
        yield from _Look(worker).at_each(places)


class _Look:
    """Scores the first rows of each place, and keeps what is found."""

    def __init__(self, worker: ShardWorker) -> None:
        self._worker = worker
        self._found = Sampled()
        self._metrics = Metrics.for_job(worker.spec.job)
        self._place = 0
        self._usage = NO_USAGE
        worker.claimed()  # what preflight asked is no part of the sample

    def at_each(self, places: Sequence[Piece]) -> Iterator[Examined]:
        """Score the first rows of each place with all models.

        Yields the result after each place, so that a place that ends the process does not lose the other results.
        """
        for self._place, piece in enumerate(places):
            try:
                self._at(piece)
            except ProcessSpoilt as spoilt:
                yield self._so_far(str(spoilt))
                return
            yield self._so_far()

    def _at(self, piece: Piece) -> None:
        worker, spec = self._worker, self._worker.spec
        try:
            read = read_place(spec, piece)
        except (ShardError, StorageError) as error:
            self._found = replace(self._found, unread=(*self._found.unread, clip(str(error))))
            return
        found, where = self._found, f"({counted(read.readable, 'row')} of {piece.uri})"
        self._found = replace(found, rows=found.rows + read.table.num_rows, places=found.places + 1)
        try:
            scored = score_sample(worker, read, piece.first_row, worker.models)
        except BatchesBroken as error:
            self._found = replace(self._found, cut=(*found.cut, f"{clip(str(error))} {where}"))
            return
        if first := next((failure for failure in scored.failures if failure.error in _MISFITS), None):
            said = f"{first.model}: {first.message}" if first.model else first.message
            self._found = replace(self._found, broken=(*found.broken, f"{said} {where}"))
        self._keep(piece, read, scored)

    def _so_far(self, error: str = "") -> Examined:
        """What is known now."""
        worker, metrics = self._worker, self._metrics
        self._usage = self._usage.plus(worker.claimed())
        judged = evaluate(sample_gates(worker.spec.job), Evidence(Found(0, 0), metrics=metrics, usage=self._usage))
        notes = (
            *self._found.cut,
            *nonfinite_notes(metrics.columns, "the sample"),
            *(f"{gate.name} does not pass on the sample: {gate.sentence}" for gate in judged if not gate.passed),
        )
        return Examined(worker.device, error, self._place, notes=notes, sampled=self._found)

    def _keep(self, piece: Piece, read: RowsRead, scored: ScoredRows) -> None:
        """Add what was scored to what is known: carried columns and outputs, as a part would have them."""
        found, job, states = self._found, self._worker.spec.job, self._metrics.columns
        table = read.table if scored.kept is None else selected(read.table, scored.kept)
        written = table.select(list(job.carried(self._worker.spec.schema.names)))
        for name in scored.outputs.column_names:
            written = written.append_column(name, scored.outputs[name])
        for name in written.column_names:
            if name in states:
                states[name].update(written[name])
        first = scored.failures[0] if scored.failures else None
        by = f", {first.model}" if first and first.model else ""
        self._found = replace(
            found,
            failed=found.failed + len({failure.row for failure in scored.failures}),
            first_failure=found.first_failure or (f"{piece.uri}{by}: {first.said}" if first else ""),
            nonfinite={name: state.nonfinite for name, state in states.items() if state.nonfinite},
        )
        if found.file is None and (count := min(SHOWN_ROWS, written.num_rows)):
            values = (tuple(shown(column[row], _SHOWN_CHARS) for column in written.columns) for row in range(count))
            names = tuple(written.column_names)
            self._found = replace(self._found, file=piece.uri, names=names, values=tuple(values))
