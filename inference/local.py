"""Scoring in one local process, without Ray: a row again, or one shard to measure."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from nightjar.inference import revisions as revs
from nightjar.inference.assignment import WorkerSpec, batch_rows, load, worker_spec
from nightjar.inference.discovery import Discovery
from nightjar.inference.errors import JobError, NightjarError, ProcessSpoilt, RunFailed
from nightjar.inference.models import scoring_fingerprint
from nightjar.inference.plan import Plan
from nightjar.inference.predictors import input_columns
from nightjar.inference.request import RunRequest, check_model
from nightjar.inference.scoring import BatchSize, Scored, score_table
from nightjar.inference.shards import Piece, Shard
from nightjar.inference.sources import parquet
from nightjar.inference.watchdog import Watchdog


@dataclass(frozen=True)
class Replayed:
    """What became of one row. `scored`: it has outputs this time."""

    scored: bool
    text: str


@dataclass(frozen=True)
class Measured:
    """One shard scored here: rows, and seconds to load the model, and to read and score."""

    shard: str
    rows: int
    load_s: float
    score_s: float


def replay_row(request: RunRequest, shard_id: str, row: int, file: str | None, *, pdb: bool) -> Replayed:
    """Score one row of a run alone.

    The row is scored in a child process, so that one that ends its process is seen to do so; with `pdb` in
    this one.

    Raises:
        JobError: there is no such run, shard or row.
        ShardError: the file cannot be read, or is not the one that was scored.
    """
    if pdb:
        return _replay_here(request, shard_id, row, file, pdb=True)
    spawn = multiprocessing.get_context("spawn")
    answers, answer = spawn.Pipe(duplex=False)
    child = spawn.Process(target=_child, args=(answer, request, shard_id, row, file))
    child.start()
    answer.close()
    try:
        found: Replayed | NightjarError = answers.recv()
    except EOFError:
        child.join()
        code = child.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Replayed(False, f"row {row} ended its process ({how}), without an exception")
    child.join()
    if isinstance(found, NightjarError):
        raise found
    return found


def _child(answer: Connection, request: RunRequest, shard_id: str, row: int, file: str | None) -> None:
    try:
        answer.send(_replay_here(request, shard_id, row, file, pdb=False))
    except NightjarError as error:
        answer.send(error)


def _replay_here(request: RunRequest, shard_id: str, row: int, file: str | None, *, pdb: bool) -> Replayed:
    revision = revs.newest_revision(request.storage, request.run_uri)
    if revision is None or revision.state.planned is None:
        raise JobError(f"there is no run {request.run_id!r} of this job in {request.output}")
    fingerprint = revision.state.planned["fingerprint"]
    plan = revs.read_plan(request.storage, revision.uri, revision.state, fingerprint)
    shard = plan.shard(shard_id) if plan else None
    if shard is None:
        raise JobError(
            f"--shard {shard_id}: the run {request.run_id!r} has no such shard; its shards are in the report"
        )
    piece = _piece(shard, row, file)
    model_hash = check_model(request)
    spec = worker_spec(request, parquet.read_footer(request.storage, piece.uri).schema, model_hash)
    changed = (
        ""
        if scoring_fingerprint(request.job, model_hash, request.code) == fingerprint
        else ("Note: the model, the code or the job changed since that run.\n")
    )
    try:
        scored = _score_row(spec, piece, row, pdb=pdb)
    except RunFailed as lost:
        return Replayed(False, f"{changed}row {row}: {lost}")
    if scored.failures:
        failure = scored.failures[0]
        return Replayed(False, f"{changed}{failure.traceback or ''}\n{failure.error}: {failure.message}".strip())
    return Replayed(True, f"{changed}row {row} of {piece.uri} is scored: {scored.outputs.to_pylist()[0]}")


def _score_row(spec: WorkerSpec, piece: Piece, row: int, *, pdb: bool) -> Scored:
    table = parquet.read_piece(spec.storage, piece, spec.schema).slice(row - piece.first_row, 1)
    features = table.select(list(input_columns(spec.job, spec.schema)))
    scorer = load(spec)
    if pdb:
        import pdb as debugger

        try:
            scorer(features)
        except Exception:  # noqa: BLE001 (shown to the person at the prompt)
            debugger.post_mortem()
    steps = score_table(features, scorer, BatchSize(1), spec.job.model.output_types(), origin=row)
    with Watchdog(spec.job.retry.stall_s):
        return _finish(steps)


def _finish(steps: Any) -> Scored:
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        scored: Scored = stop.value
        return scored
    except ProcessSpoilt as spoilt:
        raise RunFailed(str(spoilt)) from spoilt


def _piece(shard: Shard, row: int, file: str | None) -> Piece:
    pieces = [p for p in shard.pieces if file is None or p.uri == file or p.uri.endswith("/" + file)]
    within = [p for p in pieces if p.first_row <= row < p.first_row + p.rows]
    if len(within) > 1:
        raise JobError(f"--row {row}: {len(within)} files of shard {shard.id} have it; name one with --file")
    if not within:
        spans = ", ".join(f"{p.uri} rows {p.first_row} to {p.first_row + p.rows - 1}" for p in shard.pieces[:5])
        raise JobError(f"--row {row}: shard {shard.id} holds {spans}")
    return within[0]


def measure_shard(request: RunRequest, discovery: Discovery, plan: Plan) -> Measured:
    """Score the first readable shard in this process, writing nothing.

    Raises:
        JobError: no shard can be read.
    """
    shard = next((shard for shard in plan.shards() if shard.rows > 0), None)
    if shard is None:
        raise JobError("input.uri: no shard can be read, so none can be measured")
    spec = worker_spec(request, discovery.schema, check_model(request))
    began = time.monotonic()
    scorer = load(spec)
    loaded = time.monotonic()
    columns = list(input_columns(spec.job, spec.schema))
    rows = 0
    for piece in shard.pieces:
        table = parquet.read_piece(request.storage, piece, spec.schema)
        rows += table.num_rows
        _finish(score_table(table.select(columns), scorer, BatchSize(batch_rows(spec)), spec.job.model.output_types()))
    return Measured(shard.id, rows, loaded - began, time.monotonic() - loaded)
