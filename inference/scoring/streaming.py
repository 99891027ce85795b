"""Scores several shards at once, for a model that is asked for one row at a time.

The rows of the next shard take the places that the slowest rows of this one leave free, so the model never waits for
the end of a shard. Each shard has a thread of its own, which reads it, asks for its rows, waits for the answers, and
writes it. All shards that are begun are charged if the process dies; suspects are scored alone, as by `ShardWorker`.

A step of a thread may take `retry.stall_s`. Waiting is no step: for answers it has its own limits, see
`_Shard._answered` and `_Stream._nothing_moves`, and whoever has the turn that is waited for has its own watchdog.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock, Thread
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import EndpointFailed, ProcessSpoilt, ShardTooSlow
from nightjar.inference.job.model import Job
from nightjar.inference.messages import clip, utf8
from nightjar.inference.predictors import Scorer, StreamingScorer
from nightjar.inference.predictors.adapter import is_device_lost
from nightjar.inference.predictors.language.requests import Answered
from nightjar.inference.records import Event, Receipt, Started
from nightjar.inference.scoring.assignment import Assignment, BatchSize, WorkerSpec
from nightjar.inference.scoring.attempts import JoinedPieces, Running
from nightjar.inference.scoring.microbatches import drained, score_models
from nightjar.inference.scoring.watchdog import Watchdog
from nightjar.inference.scoring.worker import Assembly, ShardWorker
from nightjar.inference.usage import NO_USAGE, NOTHING_SPENT, Spent
from nightjar.inference.witness import audit as witness

MOST_OPEN = 32
"""The most shards that are underway at once, however few rows they have: each is in memory, and lost with the
process."""

_LOOK_S = 0.5
"""Seconds between two looks whether anything still moves."""

_FREE_S = 0.05
"""Seconds between two looks whether there is room for a shard."""

_PLACE = "nightjar: row of the shard"
"""The column that says which row of its shard a row is."""


class StreamingWorker(ShardWorker):
    """Scores shards whose rows are requests. Several threads may call `process` at once, but not for suspects."""

    def __init__(self, spec: WorkerSpec, *scorers: Scorer, turn_to: Callable[[Started], None] = lambda _: None) -> None:
        """As `ShardWorker`."""
        super().__init__(spec, *scorers, turn_to=turn_to)
        self.preparing, self.writing = Lock(), Lock()
        """Held by the one shard whose rows go to the user's preprocess, which is not made for two threads; and by the
        one that is written."""

    @property
    def scorer(self) -> StreamingScorer:
        """That of the only model."""
        (scorer,) = self.scorers
        assert isinstance(scorer, StreamingScorer)
        return scorer

    def process(self, assignments: Iterable[Assignment]) -> Iterator[Event]:
        """As `Worker.process`."""
        block = list(assignments)
        suspects = block[0].attempt.crumbs  # which are scored batch by batch
        yield from super().process(block) if suspects else _Stream(self).events(block)

    def spent(self) -> Spent:
        """Nothing, also for suspects: the account of such a run would divide all of its time by theirs."""
        super().spent()
        return NOTHING_SPENT


class _GivenUp(BaseException):
    """The shard is given up for its cause. No row is to blame, so no part of the batch is tried again."""


class _Shard:
    """A shard that is underway, in a thread of its own.

    asked: done when its rows were asked for, or it has ended. ended: its receipt, or why it failed; or what ends the
    process.
    """

    def __init__(self, worker: StreamingWorker, running: Running) -> None:
        self.asked, self.ended = Future[None](), Future[Event]()
        self.at = running.at_rows(running.assignment.shard.pieces[0].uri)
        self.watchdog = Watchdog(worker.spec.job.retry.stall_s)
        self._worker, self._running = worker, running
        self._deadline = time.monotonic() + worker.spec.job.retry.shard_s
        self._begun: Future[Answered] | None = None
        self._over: Exception | None = None
        self._answers: dict[int, dict[str, Any]] = {}
        """By the row's place in the shard: the answer's outputs."""
        self._usage = NO_USAGE
        Thread(target=self._run, daemon=True, name="nightjar-shard").start()

    @property
    def waits(self) -> bool:
        """Whether it waits for answers."""
        return self._begun is not None and not self._begun.done()

    def give_up(self, why: Exception) -> None:
        """Ask for no more rows; the shard fails with this error."""
        self._over = why
        if self._begun is not None:
            self._begun.cancel()

    def _run(self) -> None:
        try:
            with self.watchdog:
                self.watchdog.calling()
                self.ended.set_result(self._event())
        except BaseException as error:  # noqa: BLE001 (whoever waits for the shard raises it)
            self.ended.set_exception(error)
        self._now_asked()

    def _now_asked(self) -> None:
        if not self.asked.done():
            self.asked.set_result(None)

    def _event(self) -> Event:
        """Do every step of the shard."""
        worker = self._worker
        error: BaseException | None
        try:
            assembly = self._assembled()
            with self._turn(worker.writing):
                return worker.write(self._running, assembly, worker.ceilings(), self._usage)
        except _GivenUp as given_up:
            error = given_up.__cause__
        except Exception as raised:  # noqa: BLE001 (whatever it is, it costs this shard and is reported)
            error = raised
        assert isinstance(error, Exception)
        if is_device_lost(error):
            raise ProcessSpoilt(type(error).__name__, clip(utf8(str(error)))) from error
        return worker.failed(self._running, error)

    def _assembled(self) -> Assembly:
        """Read the shard, ask for the rows that could be read, and put it together."""
        worker, running = self._worker, self._running
        shard, (model,), spec = running.assignment.shard, worker.models, worker.spec
        reads = []
        for reading in worker.read(running):
            self.watchdog.calling()
            reads.append(reading.result())
        joined = JoinedPieces(shard.pieces, reads)
        self.watchdog.calling()
        rows = joined.table.num_rows
        asking = replace(model, columns=(*model.columns, _PLACE), scorer=self._outputs, preparer=None)
        steps = score_models(
            joined.table.append_column(_PLACE, pa.arange(0, rows)),
            [replace(asking, size=BatchSize(max(1, rows)))],
            skip=joined.failures,
            budget=spec.budget,
            at=joined.at,
            known=worker.known_rows(joined),
        )
        scored = drained(steps, lambda _: self.watchdog.calling())
        self.watchdog.calling()
        return Assembly(spec, shard, joined, scored)

    def _outputs(self, table: pa.Table) -> dict[str, pa.Array]:
        """The outputs of rows. If the preprocess raises, or an output does not fit, halves of them are tried, down to
        the row that is at fault; a row that was answered is not asked again.
        """
        scorer, places = self._worker.scorer, table[_PLACE].to_pylist()
        if not self._answers.keys() >= set(places):
            with self._turn(self._worker.preparing):
                prepared = scorer.prepare(table.drop_columns([_PLACE]))
            try:
                answered = self._answered(scorer.submit(prepared))
            except Exception as error:
                raise _GivenUp from error
            self._usage = self._usage.plus(answered.usage)
            for at, place in enumerate(places):
                self._answers[place] = {name: values[at] for name, values in answered.outputs.items()}
        return scorer.collected([self._answers[place] for place in places])

    def _answered(self, begun: Future[Answered]) -> Answered:
        """Wait for answers, until the shard's time is over or it is given up."""
        self._begun = begun
        self._now_asked()
        try:
            while not wait([begun], _LOOK_S).done:
                self._check_over()
                self.watchdog.calling()
                if time.monotonic() > self._deadline:
                    raise ShardTooSlow(
                        f"this attempt takes longer than retry.shard_s = {self._worker.spec.job.retry.shard_s:g} s; "
                        "see why the model is slow, lower input.shard_rows, or allow more"
                    )
            self._check_over()
            return begun.result()
        finally:
            begun.cancel()

    def _check_over(self) -> None:
        if self._over is not None:
            raise self._over

    @contextmanager
    def _turn(self, lock: Lock) -> Iterator[None]:
        """Wait until this shard may have the lock, and keep it."""
        while not lock.acquire(timeout=_LOOK_S):
            self.watchdog.calling()
        try:
            self.watchdog.calling()
            if self._over is not None:
                raise _GivenUp from self._over
            yield
        finally:
            lock.release()
            self.watchdog.calling()


class _Stream:
    """The shards of one call."""

    def __init__(self, worker: StreamingWorker) -> None:
        self._worker = worker
        self._open: list[_Shard] = []
        self._said_at = self._moved_at = time.monotonic()
        self._done = worker.scorer.requests.done

    def events(self, assignments: Iterable[Assignment]) -> Iterator[Event]:
        """As `Worker.process`."""
        left = deque(assignments)
        try:
            while left or self._open:
                if left and self._has_room():
                    running = self._worker.begin(left.popleft())
                    yield running.started
                    self._worker.turn_to(running.started)
                    self._open.append(_Shard(self._worker, running))
                yield from self._settled()
        except ProcessSpoilt as spoilt:
            yield from self._last_words(spoilt)
            raise
        finally:
            for each in self._open:
                each.give_up(CancelledError())

    def _has_room(self) -> bool:
        """Whether to begin another shard: the last one is asked, and will leave places free."""
        asked = all(each.asked.done() for each in self._open)
        return asked and len(self._open) < MOST_OPEN and self._worker.scorer.requests.hungry

    def _settled(self) -> Iterator[Event]:
        """Wait until something is done, for a moment at most, and see to it."""
        if not self._open:
            time.sleep(_FREE_S)  # another call has all places
        waited: list[Future[Any]] = [each.asked for each in self._open if not each.asked.done()]
        wait([*waited, *(each.ended for each in self._open)], _LOOK_S, FIRST_COMPLETED)
        for each in [each for each in self._open if each.ended.done()]:
            event = each.ended.result()
            self._open.remove(each)
            self._said_at = time.monotonic()
            yield from witness.news()
            yield event
        for each in self._open:
            each.watchdog.look()
        if waited or self._worker.scorer.requests.done != self._done or not any(each.waits for each in self._open):
            self._done, self._moved_at = self._worker.scorer.requests.done, time.monotonic()
        if time.monotonic() - self._moved_at > self._worker.spec.job.retry.stall_s:
            self._nothing_moves()
        if self._open and time.monotonic() - self._said_at > self._worker.spec.job.retry.stall_s / 4:
            self._said_at = time.monotonic()
            yield replace(self._open[0].at, row=0)

    def _nothing_moves(self) -> None:
        """Give up the shards that wait: none had an answer for `retry.stall_s`. A process that has the model ends."""
        job = self._worker.spec.job
        said = f"no row was answered for retry.stall_s = {job.retry.stall_s:g} s"
        if not self._worker.scorer.requests.elsewhere:
            raise ProcessSpoilt("Stalled", said)
        for each in reversed(self._open):  # the first ones have the places, which others would take
            if each.waits:
                each.give_up(EndpointFailed(f"{job.loaded_by}: {said}"))

    def _last_words(self, spoilt: ProcessSpoilt) -> Iterator[Event]:
        """The shards that are written are not lost with this process; the others are charged."""
        for each in self._open:
            each.give_up(CancelledError())
        wait([each.ended for each in self._open if not each.watchdog.stalls], self._worker.spec.job.retry.stall_s)
        for each in self._open:
            ended = each.ended.done() and each.ended.exception() is None
            if ended and isinstance(event := each.ended.result(), Receipt):
                yield event
            else:
                yield from self._worker.last_words(spoilt, each.at)


def spans(job: Job) -> bool:
    """Whether the rows of several shards are underway at once."""
    return job.streams and not job.several


def worker_of(spec: WorkerSpec) -> type[ShardWorker]:
    """What scores the shards of a job in its actors."""
    return StreamingWorker if spans(spec.job) else ShardWorker
