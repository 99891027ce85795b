"""Scores several shards at once, for a model that is asked for one row at a time.

The rows of the next shard take the places that the slowest rows of this one leave free, so the model never waits for
the end of a shard. Each shard has a worker and a thread of its own, and all have the model in common. All shards that
are begun are charged if the process dies; suspects are scored alone, batch by batch, as by `ShardWorker`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Thread

from nightjar.inference.errors import EndpointFailed, ProcessSpoilt
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import Scorer, StreamingScorer
from nightjar.inference.records import Crumb, Event, Started
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec
from nightjar.inference.scoring.attempts import At
from nightjar.inference.scoring.microbatches import BatchSize
from nightjar.inference.scoring.prepared_batches import PreparingThread
from nightjar.inference.scoring.worker import ShardWorker

MOST_OPEN = 32
"""The most shards that are underway at once, however few rows they have: each is in memory, and lost with the
process."""

_LOOK_S = 0.05
"""Seconds between two looks whether there is room for a shard, and whether one hangs."""

_SIGN_S = 5.0
"""The most seconds without an event. Where the ledger is written by the same process, results wait there for the next
one."""

_ALL_ROWS = 1 << 40
"""A shard is one batch, of which each row is asked for by itself."""


class StreamingWorker(ShardWorker):
    """Scores shards whose rows are requests. Several threads may call `process` at once, but not for suspects."""

    def __init__(self, spec: WorkerSpec, *scorers: Scorer, turn_to: Callable[[Started], None] = lambda _: None) -> None:
        """As `ShardWorker`."""
        super().__init__(spec, *scorers, turn_to=turn_to)
        self._thread = self._thread or PreparingThread()  # the user's preprocess is not made for two threads

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
                yield from super().process([each])
            else:
                many.append(each)
        yield from self._at_once(many)

    def _at_once(self, assignments: Sequence[Assignment]) -> Iterator[Event]:
        """Score them. Yields what happens.

        Raises:
            ProcessSpoilt: A step of a shard hangs, or a model in this process does, or its device is lost. It was
                reported, and the process must end.
        """
        left, going, arrived = deque(assignments), list[_Shard](), SimpleQueue[Event]()
        said_at = time.monotonic()
        try:
            while left or going:
                if left and self._has_room(going):
                    going.append(_Shard(self, left.popleft(), arrived))
                    yield going[-1].running.started
                    going[-1].thread.start()
                ended = [each for each in going if each.ended.done()]
                for event in _taken(arrived):
                    said_at = time.monotonic()
                    yield event
                for each in ended:
                    going.remove(each)
                    each.ended.result()
                for each in going:
                    each.look()
                if going and time.monotonic() - said_at > min(self.spec.job.retry.stall_s / 4, _SIGN_S):
                    said_at = time.monotonic()
                    yield Crumb(going[0].running.started.shard, going[0].at.uri, 0, 0)
        except ProcessSpoilt:
            # What is scored is not lost with this process; the other shards are charged, as if it had died.
            wait([each.ended for each in going if each.is_written], self.spec.job.retry.stall_s)
            yield from _taken(arrived)
            raise
        finally:
            for each in going:
                each.over = True

    def _has_room(self, going: Sequence[_Shard]) -> bool:
        """Whether to begin another shard: the rows of the last one are asked for, and will leave places free."""
        asked = all(each.asked for each in going)
        return asked and len(going) < MOST_OPEN and self.scorer.requests.hungry


def _taken(arrived: SimpleQueue[Event]) -> Iterator[Event]:
    """The events that have arrived, after a moment in which some may."""
    try:
        yield arrived.get(timeout=_LOOK_S)
        while True:
            yield arrived.get_nowait()
    except Empty:
        return


class _Shard(ShardWorker):
    """Scores one shard in a thread of its own.

    asked: whether its rows were asked for. over: whether nobody wants it any more. ended: done when its last event has
    arrived, with the error that ends the process.
    """

    at: At

    def __init__(self, whole: StreamingWorker, assignment: Assignment, arrived: SimpleQueue[Event]) -> None:
        super().__init__(whole.spec, turn_to=whole.turn_to, beside=whole)
        self.models = tuple(replace(each, size=BatchSize(_ALL_ROWS)) for each in self.models)
        self.reader = whole.reader
        self.running = self.begin(assignment)
        self.at = At(self.running.started, assignment.shard.pieces[0].uri)
        self.thread = Thread(target=self._run, daemon=True, name="nightjar-shard")
        self.ended, self._arrived = Future[None](), arrived
        self.asked = self.over = False
        self._requests = whole.scorer.requests
        self._answered_at = 0.0
        self.watchdog.waiting = self._waiting

    @property
    def is_written(self) -> bool:
        """Whether its part is being written, and that does not hang."""
        return self._behind is not None and not self.watchdog.stalls

    def look(self) -> None:
        """Raises ProcessSpoilt: A step hangs, which is reported."""
        try:
            self.watchdog.look()
        except ProcessSpoilt as spoilt:
            for event in self.last_words(spoilt, self.at):
                self._arrived.put(event)
            raise

    def events(self, _: Iterable[Assignment]) -> Iterator[Event]:
        result = yield from self.score_shard(replace(self.running, reads=self.read(self.running)))
        if result is not None:
            self._behind = self.running.started, result
            yield from self.written()

    def _run(self) -> None:
        try:
            for event in self.process(()):
                self._arrived.put(event)
            self.ended.set_result(None)
        except BaseException as error:  # noqa: BLE001 (whoever waits for the shard raises it)
            self.ended.set_exception(error)
        self.writer.shutdown(wait=False)

    def _timed(self, event: Event) -> Event:
        return event  # the time of several shards is not that of one

    def _waiting(self, answered: bool) -> None:
        """As `WAITING`. An endpoint that answers no row of any shard costs the shards, and not this process."""
        job, now = self.spec.job, time.monotonic()
        if self.over:
            raise CancelledError
        self.check_time(self.at)
        if answered or not self.asked:
            self._answered_at = now
        self.asked = True
        if self._requests.elsewhere and now - self._answered_at > job.retry.stall_s:
            raise EndpointFailed(f"{job.loaded_by}: no row was answered for retry.stall_s = {job.retry.stall_s:g} s")
        if answered or self._requests.elsewhere:
            self.watchdog.calling()


def spans(job: Job) -> bool:
    """Whether the rows of several shards are underway at once."""
    return job.streams and not job.several


def worker_of(spec: WorkerSpec) -> type[ShardWorker]:
    """What scores the shards of a job in its actors."""
    return StreamingWorker if spans(spec.job) else ShardWorker
