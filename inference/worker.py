"""One shard from start to receipt, in one process. No Ray here: the engine runs this in its actors.

Reading runs ahead by one piece and writing behind by one shard, so that storage and model overlap. What can
be caught becomes a `Failed` event and the worker goes on to the next shard.
"""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightjar.inference import sink
from nightjar.inference.errors import Fenced, ShardError
from nightjar.inference.gates import budget_rows
from nightjar.inference.job import Job
from nightjar.inference.ledger import Ledger
from nightjar.inference.metrics import Metrics
from nightjar.inference.models import fetch_model
from nightjar.inference.predictors import Scorer, input_columns, load_scorer
from nightjar.inference.request import RunRequest
from nightjar.inference.retrying import RetryingStorage
from nightjar.inference.scoring import Ahead, BatchSize, RowFailure, Scored, auto_batch_rows, score_table
from nightjar.inference.shards import Crumb, Event, Failed, Part, Piece, Receipt, Shard, Started, clip
from nightjar.inference.sources import parquet
from nightjar.inference.storage import Storage, join
from nightjar.inference.suspects import Attempt, Rows

_PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


@dataclass(frozen=True)
class WorkerSpec:
    """Everything a worker needs, sent once.

    schema: the columns to read, in order, as the first readable file has them. epoch, segment: the writer's
    tenure, and the newest ledger segment it knew. budget: rows the whole run may lose.
    """

    job: Job
    job_path: str
    run_id: str
    revision: str
    storage: Storage
    schema: pa.Schema
    epoch: int
    segment: int
    budget: int
    model_hash: str
    model_cache: str


def worker_spec(
    request: RunRequest,
    schema: pa.Schema,
    model_hash: str,
    *,
    revision: str = "",
    epoch: int = 0,
    segment: int = 0,
    rows: int = 0,
) -> WorkerSpec:
    """What a request's workers are sent. Without a revision nothing can be written, only scored.

    schema: all columns of the input. rows: of the whole run, from which its budget of lost rows follows.
    """
    return WorkerSpec(
        job=request.job,
        job_path=request.job_path,
        run_id=request.run_id,
        revision=revision,
        storage=request.storage,
        schema=read_schema(request.job, schema),
        epoch=epoch,
        segment=segment,
        budget=budget_rows(request.job.retry.max_quarantined, rows),
        model_hash=model_hash,
        model_cache=request.model_cache,
    )


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at one shard."""

    shard: Shard
    attempt: Attempt = field(default_factory=Attempt)


def read_schema(job: Job, schema: pa.Schema) -> pa.Schema:
    """The columns a worker reads: what the model sees, what is carried, the label; in file order."""
    wanted = {*input_columns(job, schema), *job.carry, *([job.label] if job.label else [])}
    return pa.schema([item for item in schema if item.name in wanted])


def load(spec: WorkerSpec) -> Scorer:
    """Fetch the model to this node if it is remote, and load it."""
    path = fetch_model(spec.storage, spec.job.model.path, spec.model_hash, Path(spec.model_cache))
    return load_scorer(spec.job, path)


def batch_rows(spec: WorkerSpec) -> int:
    """Rows per micro-batch, a pure function of job and schema."""
    size = spec.job.model.batch_size
    if isinstance(size, int):
        return size
    columns = input_columns(spec.job, spec.schema)
    features = pa.schema([spec.schema.field(name) for name in columns])
    return auto_batch_rows(features, spec.job.resources.gpus > 0)


class ShardWorker:
    """Scores shards with a model loaded once."""

    def __init__(self, spec: WorkerSpec, scorer: Scorer | None = None) -> None:
        pa.set_cpu_count(max(1, int(spec.job.resources.cpus)))
        # A shard's columns are freed and allocated again all the time. Arrow's own allocators give the pages back in
        # between, and a tenth of the time goes into having them zeroed anew; the system's keeps them.
        pa.set_memory_pool(pa.system_memory_pool())
        self.spec = spec
        self.scorer = scorer or load(spec)
        self.size = BatchSize(batch_rows(spec))
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._segment = spec.segment
        self._features = list(input_columns(spec.job, spec.schema))
        self._reader = ThreadPoolExecutor(1, "nightjar-read")
        self._writer = ThreadPoolExecutor(1, "nightjar-write")

    def features(self) -> pa.Schema:
        """The columns the model side is given."""
        return pa.schema([self.spec.schema.field(name) for name in self._features])

    def process(self, assignments: Iterable[Assignment]) -> Iterator[Event]:
        """Score the assignments in order, yielding events as they happen."""
        writing: Future[Event] | None = None
        ahead = iter(assignments)
        following = yield from self._begin(next(ahead, None))
        while following is not None:
            running = following
            upcoming = next(ahead, None)
            # A suspect rides alone: nothing else is read or written while it may take the process with it.
            alone = running.alone or (upcoming is not None and upcoming.attempt.crumbs)
            following = None if alone else (yield from self._begin(upcoming))
            result = yield from self._score(running)
            if writing is not None:
                yield writing.result()
            writing = result
            if alone and writing is not None:
                yield writing.result()
                writing = None
            if alone:
                following = yield from self._begin(upcoming)
        if writing is not None:
            yield writing.result()

    def _begin(self, assignment: Assignment | None) -> Generator[Event, None, _Running | None]:
        """Say that a shard is started, then read its first piece: a file may kill its reader, too."""
        if assignment is None:
            return None
        retry = self.spec.job.retry
        # One storage a shard, so that each fault is counted with the shard that met it.
        storage = RetryingStorage(self.spec.storage, retry.attempts, retry.backoff_s)
        started = Started(assignment.shard.id, assignment.attempt.number, self.name)
        at, began = time.time(), time.monotonic()
        yield started
        return _Running(assignment, started, storage, self._read(storage, assignment.shard.pieces[0]), at, began)

    def _read(self, storage: Storage, piece: Piece) -> Future[pa.Table]:
        return self._reader.submit(parquet.read_piece, storage, piece, self.spec.schema)

    def _score(self, running: _Running) -> Generator[Event, None, Future[Event] | None]:
        """Score one shard, leaving crumbs if it is suspected; returns its write, still going on."""
        shard, attempt = running.assignment.shard, running.assignment.attempt
        output = _Output(self.spec, shard)
        try:
            reading = running.first
            for piece, following in zip(shard.pieces, (*shard.pieces[1:], None), strict=True):
                table = reading.result()
                if following and not running.alone:
                    reading = self._read(running.storage, following)
                scored = yield from self._score_piece(shard, piece, table, attempt, output.failed)
                if running.alone:
                    yield Crumb(shard.id, piece.uri, piece.first_row, 0)
                output.add(piece, table, scored)
                if following and running.alone:
                    reading = self._read(running.storage, following)
        except Exception as error:  # noqa: BLE001 (whatever it is, it costs this shard and is reported)
            yield self._failed(running, error)
            return None
        return self._writer.submit(self._write, running, output, self.size.forced)

    def _score_piece(
        self, shard: Shard, piece: Piece, table: pa.Table, attempt: Attempt, failed: int
    ) -> Generator[Crumb, None, Scored]:
        steps = score_table(
            table.select(self._features),
            self.scorer,
            self.size,
            self.spec.job.model.output_types(),
            skip={rows.row - piece.first_row: _killer(rows) for rows in attempt.skip if _within(rows, piece)},
            singly=_singly(attempt, piece),
            budget=self.spec.budget - failed,
            origin=piece.first_row,
        )
        while True:
            try:
                step = next(steps)
            except StopIteration as stop:
                scored: Scored = stop.value
                return scored
            if attempt.crumbs and isinstance(step, Ahead):
                yield Crumb(shard.id, piece.uri, piece.first_row + step.first, step.rows)

    def _write(self, running: _Running, output: _Output, forced: int) -> Event:
        storage = running.storage
        try:
            table, metrics = output.table(), output.metrics()
            self._check_epoch(storage)
            quarantine = output.write_quarantine(storage)
            data = sink.write_data(
                storage, self.spec.revision, output.name("data"), table, running.started.shard, metrics
            )
            self._check_epoch(storage, data, quarantine)
        except Exception as error:  # noqa: BLE001 (whatever it is, it costs this shard and is reported)
            return self._failed(running, error)
        return Receipt(
            shard=running.started.shard,
            attempt=running.started.attempt,
            epoch=self.spec.epoch,
            worker=self.name,
            rows_in=output.rows_in,
            rows_out=table.num_rows,
            rows_quarantined=output.failed,
            data=data,
            quarantine=quarantine,
            seconds=round(time.monotonic() - running.began, 3),
            started_at=round(running.at, 3),
            retries=storage.retries,
            batch_rows=forced,
        )

    def _check_epoch(self, storage: Storage, *written: Part | None) -> None:
        """A replaced writer's workers leave nothing behind: looked at before a part appears, and after.

        After it, because a worker may stand still between the two for as long as the successor needs.
        """
        newest = Ledger(storage, self.spec.revision).newest(self._segment)
        if newest is None:
            return
        if newest.epoch > self.spec.epoch:
            storage.delete(join(self.spec.revision, part.name) for part in written if part is not None)
            raise Fenced(f"epoch {self.spec.epoch} was replaced by epoch {newest.epoch}")
        # So that each look lists only what came since the last.
        self._segment = newest.number

    def _failed(self, running: _Running, error: Exception) -> Failed:
        return Failed(
            shard=running.started.shard,
            attempt=running.started.attempt,
            cause=type(error).__name__,
            message=clip(str(error) or type(error).__name__),
            terminal=isinstance(error, Fenced) or (isinstance(error, ShardError) and error.terminal),
            uri=running.assignment.shard.pieces[0].uri,
            worker=self.name,
        )


@dataclass(frozen=True, slots=True)
class _Running:
    assignment: Assignment
    started: Started
    storage: RetryingStorage
    first: Future[pa.Table]
    at: float
    began: float

    @property
    def alone(self) -> bool:
        return self.assignment.attempt.crumbs


class _Output:
    """What one attempt has scored so far, piece by piece."""

    def __init__(self, spec: WorkerSpec, shard: Shard) -> None:
        self.spec = spec
        self.shard = shard
        self.rows_in = 0
        self.failed = 0
        self._tables: list[pa.Table] = []
        self._labels: list[pa.ChunkedArray] = []
        self._bad: list[tuple[str, int, RowFailure, str]] = []
        self._bad_inputs: list[pa.Table] = []
        self._schema = sink.output_schema(spec.job, spec.schema)

    def name(self, kind: str) -> str:
        return sink.part_name(kind, self.shard.id, self.spec.epoch)

    def add(self, piece: Piece, table: pa.Table, scored: Scored) -> None:
        job = self.spec.job
        self.rows_in += table.num_rows
        kept = table if scored.kept is None else _take(table, pa.array(scored.kept))
        columns: list[Any] = [kept[name] for name in job.carry] + list(scored.outputs.columns)
        if job.output.lineage:
            rows = pa.arange(piece.first_row, piece.first_row + table.num_rows)
            columns += sink.lineage(piece.uri, rows if scored.kept is None else rows.take(pa.array(scored.kept)))
        self._tables.append(pa.Table.from_arrays(columns, schema=self._schema))
        if job.label:
            self._labels.append(kept[job.label])
        if scored.failures:
            self._add_failures(piece, table, scored.failures)

    def _add_failures(self, piece: Piece, table: pa.Table, failures: tuple[RowFailure, ...]) -> None:
        self.failed += len(failures)
        self._bad_inputs.append(_take(table, pa.array([failure.row for failure in failures], pa.int64())))
        for failure in failures:
            row = piece.first_row + failure.row
            self._bad.append((piece.uri, row, failure, self._replay(piece, row)))

    def _replay(self, piece: Piece, row: int) -> str:
        which = ("--file", piece.uri) if len(self.shard.pieces) > 1 else ()
        run = ("nightjar", "replay", self.spec.job_path, self.spec.run_id)
        return shlex.join([*run, "--shard", self.shard.id, "--row", str(row), *which])

    def table(self) -> pa.Table:
        """The shard's output, in input order, one chunk per column and file."""
        table = pa.concat_tables(self._tables) if self._tables else self._schema.empty_table()
        return table.unify_dictionaries()

    def metrics(self) -> Metrics:
        # Over the whole shard at once, so that the sums do not depend on micro-batches.
        metrics = Metrics.for_job(self.spec.job)
        for index, table in enumerate(self._tables):
            metrics.update(table, self._labels[index] if self._labels else None)
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


def _take(table: pa.Table, rows: pa.Array) -> pa.Table:
    """Some rows of a table. Arrow cannot take from view types yet: they go by way of the large plain ones."""
    columns = []
    for column in table.columns:
        plain = _PLAIN.get(column.type)
        columns.append(column.take(rows) if plain is None else column.cast(plain).take(rows).cast(column.type))
    return pa.Table.from_arrays(columns, schema=table.schema)


def _within(rows: Rows, piece: Piece) -> bool:
    return rows.uri == piece.uri and piece.first_row <= rows.row < piece.first_row + piece.rows


def _singly(attempt: Attempt, piece: Piece) -> range:
    if attempt.singly is None or not _within(attempt.singly, piece):
        return range(0)
    first = attempt.singly.row - piece.first_row
    return range(first, first + attempt.singly.rows)


def _killer(rows: Rows) -> RowFailure:
    return RowFailure(
        rows.row,
        "ProcessDied",
        "scoring this row ended its process without an exception (exit, signal or out of memory)",
        "",
    )
