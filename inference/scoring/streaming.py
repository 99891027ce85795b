"""Scores several shards at once, for a model that is asked for one row at a time.

The rows of the next shard take the places that the slowest rows of this one leave free, so the model never waits for
the end of a shard. A shard is written when its own rows are done. All shards that are begun are charged if the process
dies; suspects are scored alone, as by `ShardWorker`.

What reads, prepares and puts together is watched, as in `ShardWorker`; each of these is one step for a whole shard, and
may take `retry.stall_s`. Waiting for answers and for a write is no step: it has its own limits, see `_Stream._signs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import (
    EndpointFailed,
    NightjarError,
    OutputInvalid,
    ProcessSpoilt,
    ShardTooSlow,
    StorageError,
)
from nightjar.inference.job.model import Job
from nightjar.inference.messages import clip, utf8
from nightjar.inference.output.keptanswers import KeptAnswers
from nightjar.inference.predictors import Scorer, StreamingScorer
from nightjar.inference.predictors.adapter import is_device_lost
from nightjar.inference.predictors.language.requests import Answered
from nightjar.inference.records import Backoffs, Crumb, Event, Failed, Receipt, Started
from nightjar.inference.scoring.assembly import Assembly, JoinedPieces
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec
from nightjar.inference.scoring.attempts import At, Running
from nightjar.inference.scoring.batchsize import BatchSize
from nightjar.inference.scoring.microbatches import ScoredRows, drained, micro_batches
from nightjar.inference.scoring.models import LoadedModel, score_models
from nightjar.inference.scoring.prepared_batches import Preparer
from nightjar.inference.scoring.watchdog import Watchdog
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.retrying import RetryingStorage

MOST_OPEN = 32
"""The most shards that are underway at once, however few rows they have: each is in memory, and lost with the
process."""

_LOOK_S = 0.5
"""Seconds between two looks whether anything still moves."""

_SIGN_S = 5.0
"""The most seconds without an event. Where the ledger is written by the same process, results wait there for the next
one."""

_FREE_S = 0.05
"""Seconds between two looks whether there is room for a shard."""

_PLACE = "place"
"""The column that says which of the rows that were asked a row is, from 0 on."""


@dataclass(slots=True)
class _Open:
    """A shard that is underway."""

    running: Running
    deadline: float
    """On the monotonic clock."""
    joined: JoinedPieces | None = None
    """Its rows, when they are read."""
    kept: KeptAnswers | None = None
    """Its answers, if the job keeps them."""
    asked: Future[Answered] | None = None
    """The answers to its rows; None if there are no rows to ask."""
    rows: int = 0
    """The number of rows that are asked."""
    assembly: Assembly | None = None

    @property
    def at(self) -> At:
        return At(self.running.started, self.running.assignment.shard.pieces[0].uri)

    def cancel(self) -> None:
        """Ask for no more rows."""
        if self.asked is not None:
            self.asked.cancel()


class StreamingWorker(ShardWorker):
    """Scores shards whose rows are requests. Several threads may call `process` at once."""

    def __init__(self, spec: WorkerSpec, *scorers: Scorer, turn_to: Callable[[Started], None] = lambda _: None) -> None:
        """As `ShardWorker`."""
        super().__init__(spec, *scorers, turn_to=turn_to)
        self._alone, self._turn = Lock(), Lock()
        # Without a thread that prepares ahead: it would wait for its turn where no watchdog looks.
        (model,) = self.models
        preparer = Preparer(self.scorer, None, self.watch, lambda: self.turn(self.watchdog))
        self.models = (replace(model, preparer=preparer),)

    @contextmanager
    def turn(self, watchdog: Watchdog) -> Iterator[None]:
        """Wait until this thread may call the user's preprocess, which is not made for two, and keep the turn.

        watchdog: of this thread; that another one has its turn is no stall.
        """
        while not self._turn.acquire(timeout=_LOOK_S):
            watchdog.calling()
        try:
            watchdog.calling()
            yield
        finally:
            self._turn.release()
            watchdog.calling()

    @property
    def scorer(self) -> StreamingScorer:
        """That of the only model."""
        (scorer,) = self.scorers
        assert isinstance(scorer, StreamingScorer)
        return scorer

    def process(self, assignments: Iterable[Assignment]) -> Iterator[Event]:
        """As `Worker.process`."""
        many: list[Assignment] = []
        for each in assignments:
            if each.attempt.crumbs:
                yield from self.alone(each)
            else:
                many.append(each)
        if many:
            yield from _Stream(self).events(many)

    def alone(self, assignment: Assignment) -> Iterator[Event]:
        """Score one shard batch by batch, as `ShardWorker` does."""
        with self._alone:
            try:
                kept = self.scorer.journal = self.kept(assignment)
            except NightjarError as error:
                running = self.begin(assignment)
                yield from (running.started, self.failed(running, error))
                return
            try:
                for event in super().process([assignment]):
                    if kept is not None:
                        yield from self._flushed(kept, now=isinstance(event, Receipt | Failed))
                    yield event
            finally:
                self.scorer.journal = None

    def _flushed(self, kept: KeptAnswers, *, now: bool) -> Iterator[Event]:
        """Write answers of a shard that is scored batch by batch."""
        try:
            with self.watchdog, suppress(StorageError):  # what is not written now is written with the next answers
                self.watchdog.calling()
                kept.flush(now=now)
        except ProcessSpoilt as spoilt:
            yield from self.last_words(spoilt, self.at and At(self.at.started))
            raise

    def kept(self, assignment: Assignment) -> KeptAnswers | None:
        """The answers of a shard that were paid for, if the job keeps them."""
        spec, retry = self.spec, self.spec.job.retry
        if not spec.job.keeps_answers:
            return None
        storage = RetryingStorage(spec.storage, retry.attempts, retry.backoff_s)
        return KeptAnswers(storage, spec.revision, assignment.shard.id, spec.epoch)


class _Stream:
    """The shards of one call."""

    def __init__(self, worker: StreamingWorker) -> None:
        self._worker = worker
        self._spec: WorkerSpec = worker.spec
        self._watchdog = Watchdog(worker.spec.job.retry.stall_s)
        self._open: list[_Open] = []
        self._writing: list[Future[Event]] = []
        self._write: tuple[Started, float] | None = None  # that is underway, and since when
        self._moved_at = self._said_at = time.monotonic()
        self._done = worker.scorer.done

    def events(self, assignments: list[Assignment]) -> Iterator[Event]:
        """Score them. Yields what happens."""
        left = iter(assignments)
        following = next(left, None)
        try:
            while following or self._open or self._writing:
                while following and self._has_room():
                    yield from self._begin(following)
                    following = next(left, None)
                yield from self._settle()
                yield from self._signs()
        finally:
            for each in self._open:
                each.cancel()

    def _has_room(self) -> bool:
        if len(self._open) + len(self._writing) >= MOST_OPEN:
            return False
        return self._worker.scorer.hungry

    def _begin(self, assignment: Assignment) -> Iterator[Event]:
        """Read a shard, and begin to ask for its rows."""
        running = self._worker.begin(assignment)
        yield running.started
        self._worker.turn_to(running.started)
        each = _Open(running, time.monotonic() + self._spec.job.retry.shard_s)
        self._open.append(each)
        done = yield from self._step(each, self._ask)
        if done and each.rows < 0:
            self._open.remove(each)
            yield from self._worker.alone(assignment)
        # Reading and preprocessing a whole shard may take long, and no row of it could be answered meanwhile.
        self._moved_at = time.monotonic()

    def _step(
        self, each: _Open, work: Callable[[_Open], None], *, hanging: bool = False
    ) -> Generator[Event, None, bool]:
        """Do a step of a shard. Returns whether it was done; otherwise the shard has failed.

        hanging: as in `_end`, if the step takes too long.

        Raises:
            ProcessSpoilt: As `_end`.
        """
        try:
            with self._watchdog:
                self._watchdog.calling()
                work(each)
        except ProcessSpoilt as spoilt:
            yield from self._end(spoilt, hanging=hanging)
        except Exception as error:  # noqa: BLE001 (whatever it is, it costs this shard and is reported)
            if is_device_lost(error):
                yield from self._end(ProcessSpoilt(type(error).__name__, clip(utf8(str(error)))))
            yield from self._fail(each, error)
            return False
        return True

    def _ask(self, each: _Open) -> None:
        """Read a shard, and begin the requests for the rows that could be read. `rows` is -1 if the user's preprocess
        raised, so that the rows that it raised for must be found.
        """
        worker, running = self._worker, each.running
        (model,), scorer = worker.models, worker.scorer
        pieces = running.assignment.shard.pieces
        reads = []
        for reading in worker.read(running.storage, pieces):
            self._watchdog.calling()
            reads.append(reading.result())
        each.joined = JoinedPieces(pieces, reads)
        self._watchdog.calling()
        each.kept = worker.kept(running.assignment)
        table = each.joined.table.select(list(model.columns))
        for rows in micro_batches(table, _whole(table.num_rows), sorted(each.joined.failures)):
            self._watchdog.calling()
            try:
                with worker.turn(self._watchdog):
                    prepared = scorer.prepare(rows.table)
            except Exception as error:
                if isinstance(error, NightjarError) and not isinstance(error, OutputInvalid):
                    raise
                each.rows = -1
                return
            each.asked, each.rows = scorer.submit(prepared, each.kept), len(rows.rows)

    def _settle(self) -> Iterator[Event]:
        """Wait until something is done, for a moment at most, and see to it."""
        waited: list[Future[Any]] = [*self._writing, *(each.asked for each in self._open if each.asked is not None)]
        if not waited and not self._open:
            time.sleep(_FREE_S)  # another call has all places
        elif all(each.asked is not None for each in self._open):
            wait(waited, _LOOK_S, FIRST_COMPLETED)
        for each in [each for each in self._open if each.asked is None or each.asked.done()]:
            if not (yield from self._step(each, self._put_together)):
                continue
            yield from self._keep_all(each)  # the receipt may be lost on its way
            self._open.remove(each)
            self._writing.append(self._worker.writer.submit(self._written, each, self._worker.backoffs()))
        for future in [future for future in self._writing if future.done()]:
            self._writing.remove(future)
            yield from self._report(future.result())

    def _put_together(self, each: _Open) -> None:
        """Put a shard together whose rows are done."""
        assert each.joined is not None
        scored = self._scored(each, each.joined)
        each.assembly = Assembly(self._spec, each.running.assignment.shard)
        for piece, read, part in each.joined.parts(scored):
            self._watchdog.calling()
            each.assembly.add(piece, read, part)
        each.joined = None  # what waits to be written needs its rows no more

    def _written(self, each: _Open, backoffs: Sequence[Backoffs]) -> Event:
        """Write a shard, in the writing thread, which may have shards of other calls before this one."""
        assert each.assembly is not None
        self._write = each.running.started, time.monotonic()
        usage = each.asked.result().usage if each.asked is not None else None
        try:
            return self._worker.write(each.running, each.assembly, backoffs, usage)
        finally:
            self._write = None

    def _fail(self, each: _Open, error: Exception) -> Iterator[Event]:
        """A shard failed; what was answered is kept for the next attempt."""
        each.cancel()
        yield from self._keep_all(each)
        self._open.remove(each)
        yield from self._report(self._worker.failed(each.running, error))

    def _keep_all(self, each: _Open) -> Iterator[Event]:
        """Keep what was answered so far."""
        if each.kept is None:
            return
        try:
            with self._watchdog, suppress(StorageError):  # it may be what failed
                self._watchdog.calling()
                each.kept.flush(now=True)
        except ProcessSpoilt as spoilt:
            yield from self._end(spoilt, hanging=True)

    def _scored(self, each: _Open, joined: JoinedPieces) -> ScoredRows:
        """What became of the rows, in the form in which every other model's come."""
        worker, (model,) = self._worker, self._worker.models
        answered = each.asked.result() if each.asked is not None else None
        read = np.ones(joined.table.num_rows, dtype=bool)
        read[list(joined.failures)] = False
        places = pa.table({_PLACE: np.cumsum(read) - 1})

        def collected(asked: pa.Table) -> Any:
            # If an output of theirs does not fit, halves of the rows are asked for, down to the row that is at fault.
            assert answered is not None
            part = answered.part(asked[_PLACE].to_numpy())
            return worker.scorer.collected(part, asked.num_rows)

        known = LoadedModel(model.name, model.prefix, (_PLACE,), model.types, collected, _whole(each.rows))
        steps = score_models(
            places,
            [known],
            skip=joined.failures,
            budget=self._spec.budget,
            origin=joined.origin,
            index=joined.index,
        )
        return drained(steps)

    def _signs(self) -> Iterator[Event]:
        """Give a sign of life if there was none for a while; end what takes too long.

        Raises:
            ProcessSpoilt: A model in this process had no row done for `retry.stall_s`, or a write takes longer. It was
                reported, and the process must end.
        """
        now, stall_s = time.monotonic(), self._spec.job.retry.stall_s
        if (write := self._write) is not None:
            started, began = write
            if now - began > stall_s:
                yield from self._end(self._watchdog.stalled(), At(started), hanging=True)
        if (done := self._worker.scorer.done) != self._done or not self._open:
            self._done, self._moved_at = done, now
        for each in [each for each in self._open if now > each.deadline]:
            yield from self._fail(each, self._too_slow())
        for each in [each for each in self._open if each.kept is not None]:
            yield from self._step(each, _keep, hanging=True)
        if now - self._moved_at > stall_s:
            said = f"no row was answered for retry.stall_s = {stall_s:g} s"
            if not self._worker.scorer.elsewhere:
                yield from self._end(ProcessSpoilt("Stalled", said))
            self._moved_at = time.monotonic()
            for each in reversed(self._open):  # the first ones have the places, which others would take
                each.cancel()
            for each in list(self._open):
                yield from self._fail(each, EndpointFailed(f"{self._spec.job.loaded_by}: {said}"))
        if self._open and now - self._said_at > min(stall_s / 4, _SIGN_S):
            self._said_at = now
            at = self._open[0].at
            yield Crumb(at.started.shard, at.uri, 0, 0)

    def _end(self, spoilt: ProcessSpoilt, at: At | None = None, *, hanging: bool = False) -> Iterator[Event]:
        """This process must end: all shards whose rows are underway are charged. at: the one whose write hangs.
        hanging: the storage does, so nothing more is written.

        Raises:
            ProcessSpoilt: Always.
        """
        # One that is not written by then is charged, as one that was started and has no receipt.
        wait(self._writing, 0 if hanging else self._spec.job.retry.stall_s)
        writing, self._writing = self._writing, []
        for future in writing:
            if future.done():
                yield future.result()
        yield from self._worker.last_words(spoilt, at)
        while self._open:
            each = self._open[0]
            each.cancel()
            if not hanging:
                yield from self._keep_all(each)
            self._open.remove(each)
            yield from self._worker.last_words(spoilt, each.at)
        raise spoilt

    def _too_slow(self) -> ShardTooSlow:
        return ShardTooSlow(
            f"this attempt takes longer than retry.shard_s = {self._spec.job.retry.shard_s:g} s; see why the model is "
            "slow, lower input.shard_rows, or allow more"
        )

    def _report(self, event: Event) -> Iterator[Event]:
        """An event, after what the user's code used meanwhile."""
        self._said_at = time.monotonic()
        if isinstance(event, (Receipt, Failed)):
            yield from self._worker.notices()
        yield event


def _keep(each: _Open) -> None:
    """Keep the answers that came since the last time."""
    assert each.kept is not None
    each.kept.flush()


def _whole(rows: int) -> BatchSize:
    """The size of a micro-batch that is a whole shard, which may have no row to ask."""
    return BatchSize(max(1, rows))


def spans(job: Job) -> bool:
    """Whether the rows of several shards are underway at once."""
    return job.streams and not job.several


def worker_of(spec: WorkerSpec) -> type[ShardWorker]:
    """What scores the shards of a job in its actors."""
    return StreamingWorker if spans(spec.job) else ShardWorker
