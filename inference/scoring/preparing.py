"""The CPU stage: reads shards, and runs the user's preprocess and the staged models, for actors that do the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from nightjar.inference import witness
from nightjar.inference.errors import JobError, NightjarError, OutputInvalid
from nightjar.inference.predictors import batches, input_columns
from nightjar.inference.records import Event, Prepared, Preparing, Started
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec, batch_size, open_stage
from nightjar.inference.scoring.attempts import Worker
from nightjar.inference.scoring.microbatches import micro_batches
from nightjar.inference.scoring.position import At, Running
from nightjar.inference.scoring.prepared_shards import Batch, Parcel

PARCEL_BYTES = 512 << 20
"""What a parcel may hold before nothing is added to it: the actor prepares the rest, which bounds the object store."""


class PreparingWorker(Worker):
    """Prepares shards. While `Prepared` is yielded, `handed` is the shard that it tells of, and `packed` its parcel as
    one row.
    """

    def __init__(self, spec: WorkerSpec, *, turn_to: Callable[[Started], None] = lambda _: None) -> None:
        assert spec.job.stage is not None
        super().__init__(spec, spec.job.stage.cores, turn_to)
        self._opened = open_stage(spec)
        self.spec = spec = self._opened.reading(spec)
        self._sizes = [batch_size(spec, index) for index in range(len(spec.job.each))]
        self.handed: tuple[Assignment, Parcel] | None = None
        self.packed: pa.Array | None = None

    def events(self, assignments: Iterable[Assignment]) -> Iterator[Event]:
        """For each assignment `Preparing`, and then `Prepared`, when `handed` is set, or `Failed`."""
        for assignment in assignments:
            running = self.begun(assignment)
            started = running.started
            yield Preparing(started.shard, started.attempt, self.name)
            self.turn_to(started)
            try:
                parcel = yield from self._prepared(running)
                self.watchdog.calling()
                try:
                    packed = parcel.packed()  # which may run code of the user's objects
                except JobError:
                    # Of an odd row, since preflight saw none: the actor prepares this shard itself.
                    parcel = replace(parcel, batches={})
                    packed = parcel.packed()
                self._opened.check()
                witness.refuse(strict=self.spec.job.identity.strict)
            except Exception as error:  # noqa: BLE001 (whatever it is, it costs this shard and is reported)
                yield self.failed(running, error)
                continue
            yield from self.noticed()
            self.handed, self.packed = (assignment, parcel), packed
            del parcel, packed  # which would be held while the next shard is prepared
            yield Prepared(started.shard, started.attempt, self.name)
            self.handed = self.packed = None

    def _prepared(self, running: Running) -> Generator[Event, None, Parcel]:
        pieces = running.assignment.shard.pieces
        deadline = time.monotonic() + self.spec.job.retry.shard_s
        stretch = yield from self.gathered(running, pieces, self.read(running.storage, pieces), deadline)
        shipped: dict[str, list[Batch]] = {}
        weight, skipped = 0, sorted(stretch.failures)
        for job, step, size in zip(self.spec.job.each, self._opened.loaded, self._sizes, strict=True):
            if not job.begins_apart:
                continue
            found = shipped[job.model.called] = []
            table = stretch.table.select(list(input_columns(job, self.spec.schema)))
            for piece in micro_batches(table, size, skipped):
                if weight >= PARCEL_BYTES:
                    break
                ahead = piece.ahead()
                self.at = At(running.started, *stretch.place(ahead.first, ahead.rows), job.model.called)
                yield from self.in_time(self.at, deadline)
                self.watchdog.calling()
                try:
                    content = step.preprocess(piece.table)
                except Exception as error:
                    if isinstance(error, NightjarError) and not isinstance(error, OutputInvalid):
                        raise
                    # The actor tries these rows again, and finds those that raise.
                    continue
                found.append(Batch(piece.rows, content))
                weight += batches.weight(content)
        self.at = At(running.started, pieces[-1].uri)
        return Parcel(stretch.reads, shipped, running.at, running.storage.retries)
