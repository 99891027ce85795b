"""The CPU stage before the model's actors: the workers that prepare shards, and the actors behind them.

A prepared shard is one call of an actor, and calls overlap: one thread has the model and scores one shard after the
other; meanwhile another call unpacks the next shard, and another waits until the part of the one before is written. A
call yields the events of its own shard alone. So an actor never holds more shards than it has calls at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from nightjar.inference.errors import JobError, NightjarError, OutputInvalid, ProcessSpoilt
from nightjar.inference.job.modeljob import model_jobs
from nightjar.inference.predictors import Scorer, model_columns
from nightjar.inference.records import Crumb, Event, Prepared, Preparing, Started
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec, batch_size, open_stage
from nightjar.inference.scoring.attempts import JoinedPieces, Running, Worker
from nightjar.inference.scoring.known_rows import earlier_rows
from nightjar.inference.scoring.microbatches import Slice, drained, micro_batches
from nightjar.inference.scoring.prepared_batches import Batch, Parcel, Pickled, unpacked
from nightjar.inference.scoring.watchdog import answering
from nightjar.inference.scoring.worker import Assembly, ShardWorker, with_time
from nightjar.inference.witness import audit as witness

PARCEL_BYTES = 512 << 20
"""What a parcel may hold before nothing is added to it: the actor prepares the rest, which bounds the object store."""


class PreparingWorker(Worker):
    """A worker of the CPU stage: reads shards, and runs the user's preprocess of each model."""

    def __init__(self, spec: WorkerSpec, *, turn_to: Callable[[Started], None] = lambda _: None) -> None:
        assert spec.job.stage is not None
        super().__init__(spec, spec.job.stage.cores, turn_to)
        self._opened = open_stage(spec)
        self.spec = spec = self._opened.reading(spec)
        self._earlier = earlier_rows(spec)
        self._sizes = [batch_size(each, spec.schema) for each in model_jobs(spec.job)]
        self.handed: tuple[Assignment, pa.Array] | None = None
        """While `Prepared` is yielded: the shard's assignment, and its packed parcel as one row."""

    def events(self, assignments: Iterable[Assignment]) -> Iterator[Event]:
        """For each assignment `Preparing`, and then `Prepared`, when `handed` is set, or `Failed`."""
        for assignment in assignments:
            running = self.begin(assignment)
            started = running.started
            yield Preparing(started.shard, started.attempt, self.name)
            self.turn_to(started)
            try:
                parcel = yield from self._prepared(running)
                packed = parcel.packed()
                self._opened.check()
                witness.refuse(strict=self.spec.job.identity.strict)
            except Exception as error:  # noqa: BLE001 (whatever it is, it costs this shard and is reported)
                yield self.failed(running, error)
                continue
            yield from witness.news()
            self.handed = assignment, packed
            del parcel, packed  # which would be held while the next shard is prepared
            yield Prepared(started.shard, started.attempt, self.name)
            self.handed = None

    def _prepared(self, running: Running) -> Generator[Event, None, Parcel]:
        pieces = running.assignment.shard.pieces
        deadline = time.monotonic() + self.spec.job.retry.shard_s
        joined = yield from self.join_pieces(replace(running, reads=self.read(running)), deadline)
        shipped: dict[str, list[Batch]] = {}
        weight, skipped = 0, sorted(joined.failures)
        for job, step, size in zip(model_jobs(self.spec.job), self._opened.loaded, self._sizes, strict=True):
            if job.preprocess is None:
                continue
            found, unpicklable = list[Batch](), list[str]()
            table = joined.table.select(list(model_columns(job, self.spec.schema)))
            rows: Sequence[int] = range(table.num_rows)
            if self._earlier is not None:
                rows = self._earlier.known(job.model.name, table, joined.failures).to_score
            for piece in micro_batches(Slice.of(table, rows), size, skipped):
                if weight >= PARCEL_BYTES:
                    break
                ahead = piece.ahead(job.model.name)
                self.at = running.at_rows(*joined.place(ahead.first, ahead.rows), ahead.model)
                yield from self.in_time(self.at, deadline)
                self.watchdog.calling()
                # Where it fails, the actor tries these rows again, and finds those that raise.
                try:
                    content = step.preprocess(piece.table)
                except Exception as error:
                    if isinstance(error, NightjarError) and not isinstance(error, OutputInvalid):
                        raise
                    continue
                try:
                    pickled = Pickled(content)
                except OutputInvalid as error:
                    unpicklable.append(str(error))
                    continue
                found.append(Batch(piece.rows, pickled))
                weight += pickled.size
            if len(unpicklable) > 1 and not found:  # of a single batch, one row may be to blame: the actor finds it
                raise JobError(unpicklable[0])
            shipped[job.model.name] = found
        self.at = running.at_rows(pieces[-1].uri)
        return Parcel(joined.reads, shipped, running.at, running.storage.retries)


T = TypeVar("T")

_LOOKS = 20
"""How often within `retry.stall_s` a call looks whether a step hangs; at least once a second."""


class AcceptingWorker(ShardWorker):
    """An actor's worker behind the CPU stage: scores prepared shards, several calls at once."""

    def __init__(self, spec: WorkerSpec, *scorers: Scorer, turn_to: Callable[[Started], None] = lambda _: None) -> None:
        """As `ShardWorker`. The models are loaded in the thread that will call them, because what a framework or the
        user's code sets may hold for one thread only.
        """
        self._model = ThreadPoolExecutor(1, "nightjar-model")
        self._model.submit(super().__init__, spec, *scorers, turn_to=turn_to).result()
        self._look_s = min(1.0, spec.job.retry.stall_s / _LOOKS)
        self._over = False

    def accept(self, assignment: Assignment, packed: pa.ListScalar) -> Iterator[Event]:
        """Score and write one shard. Calls may overlap, each in a thread of its own. packed: its parcel.

        Raises:
            ProcessSpoilt: A step hung or the device is lost. It was reported, and the process must end. Other calls
                have written what was scored; the shards of the rest are charged, as if the process had died.
        """
        running = self.begin(assignment)
        yield running.started
        at: Crumb | None = running.at_rows(assignment.shard.pieces[-1].uri)
        try:
            try:
                parcel = self._result(self.reader.submit(unpacked, packed))
                # The two stages may run on two hosts, which only have wall time in common.
                began = running.began - max(0.0, running.at - parcel.started_at)
                running = replace(running, at=parcel.started_at, began=began, retries=parcel.retries)
                scoring = self._model.submit(self._score_parcel, running, parcel)
                del parcel
                at = None  # the model's thread says at which rows it is
                yield from self._signs(scoring, running)
                if not scoring.done() or (write := scoring.result()) is None:
                    return
                at = running.at_rows()
                event = self._result(self.writer.submit(write))
            except Exception as error:  # noqa: BLE001 (whatever it is, it costs this shard and is reported)
                event = self.failed(running, error)
        except ProcessSpoilt as spoilt:
            self._over = True
            yield from self.last_words(spoilt, at or self.at)
            # One thread writes, so what comes after all other parts comes when they are written.
            wait([self.writer.submit(int)], self.spec.job.retry.stall_s)
            raise
        yield from witness.news()
        yield event

    def _result(self, step: Future[T]) -> T:
        """Wait for a step that takes at most `retry.stall_s` from when it begins."""
        begun = 0.0
        while not step.done():
            wait([step], self._look_s)
            if not begun and step.running():
                begun = time.monotonic()
            if begun and time.monotonic() - begun > self.spec.job.retry.stall_s:
                raise self.watchdog.stalled()
        return step.result()

    def _signs(self, scoring: Future[T], running: Running) -> Iterator[Event]:
        """Wait until a shard had its turn with the model, or this process is over; yields signs while it moves."""
        before, said_at, shard = self.at, time.monotonic(), running.assignment.shard
        while not scoring.done() and not self._over:
            wait([scoring], self._look_s)
            if scoring.running():
                self.watchdog.look()
                moved, before = self.at is not before, self.at
                if moved and time.monotonic() - said_at > self.spec.job.retry.stall_s / 4:
                    said_at = time.monotonic()
                    yield running.at_rows(shard.pieces[0].uri, shard.pieces[0].first_row)

    def _score_parcel(self, running: Running, parcel: Parcel) -> Callable[[], Event] | None:
        """Score a shard, in the model's thread. Returns what makes its result; None if this process is over."""
        if self._over:
            return None
        shard = running.assignment.shard
        self.turn_to(running.started)
        self.at = running.at_rows(shard.pieces[-1].uri)
        joined = JoinedPieces(shard.pieces, parcel.reads)
        deadline = time.monotonic() + self.spec.job.retry.shard_s
        try:
            with self.watchdog, answering(self.scorers, self.watchdog), self.watch.during("rest"):
                scored = drained(self.score_joined(running, joined, parcel.batches, deadline))
        except SystemExit as left:
            self._over = True
            raise ProcessSpoilt("SystemExit", f"the model's code calls sys.exit({left.code!r})") from None
        except ProcessSpoilt:
            self._over = True  # before the next shard has its turn
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, it costs this shard and is reported)
            self.claimed()  # the next shard's receipt must not have it
            return partial(with_time, self.failed(running, error), self.spent())
        ceilings, usage, spent = self.ceilings(), self.claimed(), self.spent()  # before the next shard has its turn

        def finish() -> Event:
            """Put the shard together and write it, in the writing thread."""
            assembly = Assembly(self.spec, shard, joined, scored)
            return with_time(self.write(running, assembly, ceilings, usage), spent)

        return finish
