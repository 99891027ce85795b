"""Scores a row again, in one local process, without Ray."""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import pyarrow as pa

from nightjar.inference.arrow_types import row_values
from nightjar.inference.errors import JobError, Missing, ProcessSpoilt, RunFailed, StorageError
from nightjar.inference.identity.identity import ScoringSet, changed_package, fix
from nightjar.inference.identity.snapshots import Snapshot, read_kept, take_model
from nightjar.inference.identity.unpacking import is_at_hand
from nightjar.inference.input.files import with_list
from nightjar.inference.input.plan import WINDOW, discover
from nightjar.inference.input.schemas import without_unseen
from nightjar.inference.input.sources.reading import describe, read_piece, source_of
from nightjar.inference.job.modeljob import ModelJob, model_jobs
from nightjar.inference.messages import nearest
from nightjar.inference.output import revisions as revs
from nightjar.inference.output.revisions import identity_of_plan
from nightjar.inference.predictors.adapter import naming
from nightjar.inference.records import UNKNOWN, Piece, RowFailure, Shard
from nightjar.inference.run.request import RunRequest, identity_of, worker_spec
from nightjar.inference.scoring.assignment import WorkerSpec, enter_copy, loaded_models, open_scorers
from nightjar.inference.scoring.child import Child, WorkLost
from nightjar.inference.scoring.microbatches import drained, score_models
from nightjar.inference.scoring.scored_rows import ScoredRows
from nightjar.inference.scoring.watchdog import Watchdog
from nightjar.inference.storage.protocol import Entry

_FINDING, _READING, _LOADING, _SCORING = "finding the row", "reading the rows", "loading the model", "scoring"
"""The steps of a replay. Only for a failure in the last step can a row be to blame."""

_VALUE_CHARS = 500
"""The longest value of a row that is shown, in characters: an image or a page of text is no help on a terminal."""

Values = tuple[tuple[str, str], ...]
"""Columns of a row by name, as text."""


@dataclass(frozen=True)
class Replayed:
    """The result of one row."""

    scored: bool
    """Whether the row has outputs this time, of each model that was to score it."""

    text: str
    """The result in words: that the row is scored, or why it is not, with tracebacks; and what changed since."""

    inputs: Values = ()
    """The model's input, the carried columns and the label; empty if the row could not be read."""

    outputs: Values = ()
    """The row's outputs; empty without any, and only those of some models if others failed."""


@dataclass(frozen=True)
class _Step:
    """A step of a replay begins. inputs: of the row, once it was read."""

    name: str
    inputs: Values = ()


def replay_row(
    request: RunRequest, shard_id: str, row: int, file: str | None, *, pdb: bool, live: bool = False, model: str = ""
) -> Replayed:
    """Score one row of a run alone, with the run's snapshot of code and model; with `live` with today's.

    model: the name of the one of several models that scores it; '' for all. The row is scored in a child process, so
    that a row that ends its process can be reported; with `pdb` in this process.

    Raises:
        JobError: there is no such run, shard or row, or the model cannot be loaded.
        ShardError: the file cannot be read, or is not the one that was scored.
        StorageError: the run or the file cannot be read.
        RunFailed: the child ended, or failed, before it came to score the row.
    """
    with suppress(JobError, StorageError):
        with_list(request.storage, request.job)  # its URLs may be signed
    if pdb:
        *_, replayed = _replay_here(request, shard_id, row, file, True, live, model)
        assert isinstance(replayed, Replayed)
        return replayed
    found: _Step | Replayed = _Step(_FINDING)
    with Child(_replay_here, request, shard_id, row, file, False, live, model) as child:
        try:
            for answer in child.answers():
                found = answer
        except WorkLost as lost:
            if isinstance(found, _Step):
                return _lost(request, row, found, lost)
    assert isinstance(found, Replayed)
    return found


def _lost(request: RunRequest, row: int, step: _Step, lost: WorkLost) -> Replayed:
    if lost.died and step.name == _SCORING:
        return Replayed(False, f"row {row} {lost.how}", step.inputs)
    if lost.died and step.name == _LOADING:
        uses = " and ".join(model.uses for model in request.job.models)
        raise JobError(
            f"{request.job.loaded_by}: loading {uses} {lost.how}; load it once in a plain Python process to see why"
        )
    raise RunFailed(f"{step.name} {lost.how}; row {row} was not scored")


def _replay_here(
    request: RunRequest, shard_id: str, row: int, file: str | None, pdb: bool, live: bool, model: str
) -> Iterator[_Step | Replayed]:
    """Yield each step as it begins, and at the end the row's result."""
    known = [each.name for each in request.job.models]
    if model and model not in known:
        there = ", ".join(filter(None, known)) or "one, without a name"
        raise JobError(f"--model {model}: the job has no such model{nearest(model, known) or f'; it has {there}'}")
    revision, shard = _shard(request, shard_id)
    piece = _piece(shard, row, file)
    request, changed = _as_then(request, revision, live)
    assert revision.state.planned is not None
    spec, theirs = _spec_for(request, piece, revision.state.planned.fingerprint)
    if not theirs and not changed:
        changed = "Note: the model, the code, the job or the input's columns changed since that run.\n"
    yield _Step(_READING)
    read, index = read_piece(spec.storage, spec.job, piece, spec.schema), row - piece.first_row
    if index >= read.rows:  # it was not known before
        raise JobError(f"--row {row}: {piece.uri} holds {_rows(0, read.rows)}")
    if not read.holds(index):
        raise JobError(f"--row {row}: it does not match input.where ({spec.job.input.where}), so no run scores it")
    index = read.position(index)
    if (unread := read.failures.get(index)) is not None:
        text = f"\n{unread.raw}" if unread.raw else ""
        yield Replayed(False, f"{changed}row {row} cannot be read: {unread.error}: {unread.message}{text}")
        return
    table = read.table.slice(index, 1)
    inputs = row_values(table, 0, _VALUE_CHARS)
    try:
        scored = yield from _score_row(spec, table, row, pdb, inputs, model or None)
    except RunFailed as lost:
        yield Replayed(False, f"{changed}row {row}: {lost}", inputs)
        return
    outputs = row_values(scored.outputs, 0, _VALUE_CHARS) if scored.outputs.num_rows else ()
    if scored.failures:
        said = "\n\n".join(map(_failure, scored.failures))
        yield Replayed(False, f"{changed}{said}".strip(), inputs, outputs)
        return
    yield Replayed(True, f"{changed}row {row} of {piece.uri} is scored", inputs, outputs)


def _shard(request: RunRequest, shard_id: str) -> tuple[revs.Revision, Shard]:
    """The newest revision that has this shard, and the shard. What was printed of an older one, which readers may still
    see, can be replayed for as long as it is there.
    """
    newest = revs.newest_revision(request.storage, request.run_uri)
    if newest is None or (newest.state.planned is None and newest.number == 1):
        runs = shlex.join(["nightjar", "runs", request.job_path, *request.place])
        raise JobError(f"there is no run {request.run_id!r} of this job in {request.output}; `{runs}` lists them")
    older = (revs.read_revision(request.storage, request.run_uri, each) for each in range(newest.number - 1, 0, -1))
    for revision in chain([newest], older):
        if (plan := revision.plan()) is not None and (shard := plan.shard(shard_id)) is not None:
            return revision, shard
    show = shlex.join(["nightjar", "show", request.job_path, *request.words])
    raise JobError(f"--shard {shard_id}: the run {request.run_id!r} has no such shard; `{show}` lists its shards")


def _spec_for(request: RunRequest, piece: Piece, fingerprint: str) -> tuple[WorkerSpec, bool]:
    """What scores the row, and whether it is what scored it in the run with this fingerprint."""
    if request.job.input.own:
        # The source of the run, too, as far as its code is kept.
        copied, _ = enter_copy(request.job, request.scoring.code, Path(request.cache), stand=False)
        request = replace(request, job=copied)
    description = describe(request.storage, request.job, Entry(piece.uri, piece.size, piece.version))
    own = without_unseen(description.schema, source_of(request.job, piece.uri).unseen)

    def is_theirs(schema: pa.Schema) -> bool:
        return bool(identity_of(request, schema).fingerprint == fingerprint)

    # The columns of most files may have decided what the model saw; this file's columns may differ.
    schema = own if is_theirs(own) else discover(request.storage, request.job, WINDOW).schema
    theirs = is_theirs(schema)
    return worker_spec(request, schema if theirs else own), theirs


def _failure(failure: RowFailure) -> str:
    by = f"the model {failure.model!r}: " if failure.model else ""
    return f"{failure.traceback or ''}\n{by}{failure.error}: {failure.message}".strip()


def _as_then(request: RunRequest, revision: revs.Revision, live: bool) -> tuple[RunRequest, str]:
    """The request with the run's snapshot of code and model, or with today's; and a note about that."""
    environment = request.job.resources.runtime_env.variables(os.environ)
    request = replace(request, environment=environment)
    kept = None if live else identity_of_plan(request.storage, revision.uri, revision.state)
    if kept is not None:
        with suppress(Missing):
            code, *models = (
                read_kept(request.storage, request.output, digest)
                for digest in (kept.code_digest, *kept.models.values())
            )
            return replace(request, scoring=_at_hand(request, ScoringSet(code, tuple(models), kept.packages))), ""
    now = replace(request, scoring=fix(request.storage, request.job))
    return now, "" if live else "Note: this is today's code and model; the run's own are not kept.\n"


def _at_hand(request: RunRequest, kept: ScoringSet) -> ScoringSet:
    """The run's snapshots. A model that was not copied may have moved to the path that the job names now."""
    job, live = request.job, "`--live` scores with what is there now"
    if name := changed_package(job, kept):
        raise JobError(f"model.uses: the installed package {name!r} is not what the run scored with; {live}")

    if not is_at_hand("model.uses", request.storage, kept.code, Path(request.cache)):
        large = ", ".join(file.source for file in kept.code.linked)
        raise JobError(f"model.uses: {large}: too large to be kept with a run, and not what it was then; {live}")
    # A job that has other models today than the run had is another run's.
    models = [_model_at_hand(request, *both) for both in zip(model_jobs(job), kept.models, strict=False)]
    return replace(kept, models=tuple(models))


def _model_at_hand(request: RunRequest, job: ModelJob, kept: Snapshot) -> Snapshot:
    if is_at_hand("model.path", request.storage, kept, Path(request.cache)):
        return kept
    with naming(job):
        now = take_model(request.storage, job.model.path)
        if now.digest != kept.digest:
            raise JobError(
                "model.path: the job's model is not the one that the run scored with, and of one over 64 MiB, or in a "
                "bucket, a run keeps no copy; `--live` scores with what is there now"
            )
    return now


def _score_row(
    spec: WorkerSpec, table: pa.Table, row: int, pdb: bool, inputs: Values, only: str | None
) -> Generator[_Step, None, ScoredRows]:
    yield _Step(_LOADING, inputs)
    models = loaded_models(spec, open_scorers(spec, only).loaded, only=only)
    yield _Step(_SCORING, inputs)
    if pdb:
        import pdb as debugger

        try:
            for model in models:
                model.scorer(table.select(list(model.columns)))
        except Exception:  # noqa: BLE001 (shown to the person at the prompt)
            debugger.post_mortem()
    steps = score_models(table, models, at=lambda at: row + at)
    with Watchdog(spec.job.retry.stall_s):
        try:
            return drained(steps)
        except ProcessSpoilt as spoilt:
            raise RunFailed(str(spoilt)) from spoilt


def _piece(shard: Shard, row: int, file: str | None) -> Piece:
    pieces = [p for p in shard.pieces if file is None or p.uri == file or p.uri.endswith("/" + file)]
    if not pieces:
        raise JobError(f"--file {file}: shard {shard.id} is of {', '.join(p.uri for p in shard.pieces[:5])}")
    within = [p for p in pieces if p.first_row <= row and (p.rows == UNKNOWN or row < p.first_row + p.rows)]
    if len(within) > 1:
        raise JobError(f"--row {row}: {len(within)} files of shard {shard.id} have it; name one with --file")
    if not within:
        spans = ", ".join(f"{p.uri} {_rows(p.first_row, p.rows)}" for p in shard.pieces[:5])
        raise JobError(f"--row {row}: shard {shard.id} holds {spans}")
    return within[0]


def _rows(first: int, count: int) -> str:
    if count == UNKNOWN:
        return "as many rows as reading it will show"
    return f"rows {first} to {first + count - 1}" if count > 0 else "no rows that can be read"
