"""Scores shards from start to receipt, in one process. It does not need Ray; the engine runs it in its actors.

Reading is one piece ahead of scoring, preparing one micro-batch if there is a GPU or more than one core, and writing
one shard behind, so that storage, CPU and model work at the same time. An error that can be caught becomes a `Failed`
event, and the worker goes on to the next shard.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from nightjar.inference import witness
from nightjar.inference.errors import (
    Fenced,
    NightjarError,
    OverBudget,
    ProcessSpoilt,
    ShardTooSlow,
)
from nightjar.inference.input.sources.reading import read_piece
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.ledger.ledger import Ledger
from nightjar.inference.messages import clip
from nightjar.inference.output import parts as sink
from nightjar.inference.predictors import Scorer, input_columns
from nightjar.inference.records import (
    Crumb,
    Event,
    Failed,
    Noticed,
    Part,
    Piece,
    Receipt,
    Started,
)
from nightjar.inference.scoring import memory
from nightjar.inference.scoring.ahead import Preparer
from nightjar.inference.scoring.assembly import Assembly
from nightjar.inference.scoring.assignment import (
    Assignment,
    Opened,
    WorkerSpec,
    batch_size,
    open_scorer,
)
from nightjar.inference.scoring.microbatches import ScoredRows, score_table
from nightjar.inference.scoring.position import At, Running
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.scoring.watchdog import Watchdog
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.storage.retrying import RetryingStorage


def this_worker() -> str:
    """The name of this process among the workers of a run: `host:pid`."""
    return f"{socket.gethostname()}:{os.getpid()}"


def host_of(worker: str) -> str:
    """The host of a worker, from its name."""
    return worker.rpartition(":")[0]


class ShardWorker:
    """Scores shards with a model that is loaded once."""

    def __init__(
        self, spec: WorkerSpec, scorer: Scorer | None = None, *, turn_to: Callable[[Started], None] = lambda _: None
    ) -> None:
        """turn_to: called with each attempt before its rows are scored; other attempts may be read or written then."""
        pa.set_cpu_count(spec.job.resources.cores)
        memory.use_system()
        self.spec = spec
        self._opened = Opened(scorer) if scorer else open_scorer(spec)
        self.scorer = self._opened.scorer
        self.size = batch_size(spec)
        self.name = this_worker()
        self._segment = spec.segment
        self._features = list(input_columns(spec.job, spec.schema))
        self._reader = ThreadPoolExecutor(1, "nightjar-read")
        self._writer = ThreadPoolExecutor(1, "nightjar-write")
        # On a single core a thread that prepares would only take the model's time.
        need = spec.job.resources
        self._preparer = Preparer(self.scorer) if need.gpus > 0 or need.cores > 1 else None
        self._watchdog = Watchdog(spec.job.retry.stall_s)
        self._at: At | None = None
        self._behind: tuple[Started, Future[Event]] | None = None
        self._said = 0.0
        self._turn_to = turn_to

    def features(self) -> pa.Schema:
        """The columns for the model and the preprocess."""
        return pa.schema([self.spec.schema.field(name) for name in self._features])

    def process(self, assignments: Iterable[Assignment]) -> Iterator[Event]:
        """Score the assignments in order, yielding events as they happen.

        Raises:
            ProcessSpoilt: A step hung or the device is lost. It was reported, and the process must end.
        """
        events = self._events(assignments)
        while True:
            try:
                with self._watchdog:
                    event = next(events)
            except StopIteration:
                return
            except ProcessSpoilt as spoilt:
                yield from self._last_words(spoilt)
                raise
            self._said = time.monotonic()
            if isinstance(event, (Receipt, Failed)):
                yield from (Noticed(seen.kind, seen.name, seen.by, self.name, seen.more) for seen in witness.news())
            yield event

    def _events(self, assignments: Iterable[Assignment]) -> Iterator[Event]:
        ahead = iter(assignments)
        following = yield from self._begin(next(ahead, None))
        while following is not None:
            running = following
            upcoming = next(ahead, None)
            # Nothing else is read or written while a suspect is scored, because it may kill the process.
            alone = running.alone or (upcoming is not None and upcoming.attempt.crumbs)
            following = None if alone else (yield from self._begin(upcoming))
            result = yield from self._score(running)
            yield from self._written()
            if result is not None:
                self._behind = running.started, result
            if alone:
                yield from self._written()
                following = yield from self._begin(upcoming)
        yield from self._written()

    def _written(self) -> Iterator[Event]:
        """Wait for the write that runs behind the scoring, if there is one."""
        if self._behind is None:
            return
        started, writing = self._behind
        self._at = At(started)
        event = writing.result()
        self._behind = None
        yield event

    def _last_words(self, spoilt: ProcessSpoilt) -> Iterator[Event]:
        """Report before this process ends: the result of the running write, and at which rows what ends the process."""
        if self._behind is not None and (self._at is None or self._behind[0] is not self._at.started):
            with suppress(TimeoutError):  # then the shard is charged, as one that was started and has no receipt
                yield self._behind[1].result(self.spec.job.retry.stall_s)
        if self._at is None:
            return
        started = self._at.started
        yield Failed(
            shard=started.shard,
            attempt=started.attempt,
            cause=spoilt.cause,
            message=clip(f"{spoilt}; its process was ended{self._at.where}"),
            died=True,
            uri=self._at.uri,
            row=self._at.row,
            rows=self._at.rows,
            worker=self.name,
        )

    def _begin(self, assignment: Assignment | None) -> Generator[Event, None, Running | None]:
        """Report that a shard is started, then read its first piece: a file may kill the process that reads it."""
        if assignment is None:
            return None
        retry = self.spec.job.retry
        # One storage per shard, so that each retry is counted with its shard.
        storage = RetryingStorage(self.spec.storage, retry.attempts, retry.backoff_s)
        started = Started(assignment.shard.id, assignment.attempt.number, self.name)
        at, began = time.time(), time.monotonic()
        yield started
        return Running(assignment, started, storage, self._read(storage, assignment.shard.pieces[0]), at, began)

    def _read(self, storage: Storage, piece: Piece) -> Future[RowsRead]:
        return self._reader.submit(read_piece, storage, self.spec.job, piece, self.spec.schema, self.spec.budget)

    def _score(self, running: Running) -> Generator[Event, None, Future[Event] | None]:
        """Score one shard, with crumbs if it is suspected. Returns its write, which may still be running."""
        shard = running.assignment.shard
        self._turn_to(running.started)
        assembly = Assembly(self.spec, shard)
        deadline = time.monotonic() + self.spec.job.retry.shard_s
        try:
            reading = running.first
            for piece, following in zip(shard.pieces, (*shard.pieces[1:], None), strict=True):
                self._at = At(running.started, piece.uri)
                read = reading.result()
                counted = replace(piece, rows=read.table.num_rows)  # the number may not have been known before
                if following and not running.alone:
                    reading = self._read(running.storage, following)
                scored = yield from self._score_piece(running, counted, read, assembly, deadline)
                self._at = At(running.started, piece.uri)
                if running.alone:
                    yield Crumb(shard.id, piece.uri, piece.first_row, 0)
                assembly.add(counted, read.table, scored)
                if following and running.alone:
                    reading = self._read(running.storage, following)
        except Exception as error:  # noqa: BLE001 (whatever it is, it costs this shard and is reported)
            yield self._failed(running, error)
            return None
        return self._writer.submit(self._write, running, assembly, self.size.forced)

    def _score_piece(
        self, running: Running, piece: Piece, read: RowsRead, assembly: Assembly, deadline: float
    ) -> Generator[Crumb, None, ScoredRows]:
        attempt = running.assignment.attempt
        died = {rows.row - piece.first_row: rows.as_failure() for rows in attempt.skip if rows.within(piece)}
        steps = score_table(
            read.table.select(self._features),
            self.scorer,
            self.size,
            self.spec.job.model.output_types(),
            skip={**read.failures, **died},
            singly=attempt.singly_in(piece),
            budget=None if self.spec.budget is None else self.spec.budget - assembly.failed,
            origin=piece.first_row,
            cuts=assembly.cuts,
            preparer=None if running.alone else self._preparer,
        )
        while True:
            try:
                step = next(steps)
            except StopIteration as stop:
                scored: ScoredRows = stop.value
                return scored
            self._at = At(running.started, piece.uri, piece.first_row + step.first, step.rows)
            yield from self._before_rows(attempt, self._at, deadline)
            self._watchdog.calling()

    def _before_rows(self, attempt: Attempt, at: At, deadline: float) -> Iterator[Crumb]:
        """Do what is due before a micro-batch: check the time, leave a suspect's crumb, give a sign of life."""
        now = time.monotonic()
        if now > deadline:
            raise ShardTooSlow(
                f"this attempt takes longer than retry.shard_s = {self.spec.job.retry.shard_s:g} s; it came to row "
                f"{at.row} of {at.uri}. See why the model is slow, lower input.shard_rows, or allow more"
            )
        if attempt.crumbs:
            yield Crumb(at.started.shard, at.uri, at.row, at.rows)
        elif now - self._said > self.spec.job.retry.stall_s / 4:
            # From here on a death blames no row, because the next micro-batches leave no crumb.
            yield Crumb(at.started.shard, at.uri, at.row, 0)

    def _write(self, running: Running, output: Assembly, forced: int) -> Event:
        storage = running.storage
        try:
            table, metrics = output.table(), output.metrics()
            self._check_epoch(storage)
            self._opened.check()
            if self.spec.job.identity.strict:
                witness.refuse()
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
            cuts=output.cuts.batches,
        )

    def _check_epoch(self, storage: Storage, *written: Part | None) -> None:
        """Check, before and after a part is written, that the writer was not replaced; then workers leave no parts
        behind.

        The check after is needed because a worker may stand still in between for as long as the successor needs.
        """
        newest = Ledger(storage, self.spec.revision).newest(self._segment)
        if newest is None:
            return
        if newest.epoch > self.spec.epoch:
            storage.delete(join(self.spec.revision, part.name) for part in written if part is not None)
            raise Fenced(f"epoch {self.spec.epoch} was replaced by epoch {newest.epoch}")
        # So that each look lists only what came since the last.
        self._segment = newest.number

    def _failed(self, running: Running, error: Exception) -> Failed:
        pieces = running.assignment.shard.pieces
        return Failed(
            shard=running.started.shard,
            attempt=running.started.attempt,
            cause=type(error).__name__,
            message=clip(str(error) or type(error).__name__),
            terminal=isinstance(error, NightjarError) and not error.repeatable,
            uri=pieces[0].uri,
            # Which file of several it is in is not said; those are split and tried again.
            row=error.row if isinstance(error, OverBudget) and len(pieces) == 1 else -1,
            worker=self.name,
        )
