"""What runs in Ray's processes: workers that take blocks of assignments and yield events, and what they print."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nightjar.inference.engine.ray.capacity import alive
from nightjar.inference.errors import ProcessSpoilt
from nightjar.inference.input.plan import shard_of_line
from nightjar.inference.jsonform import of_json
from nightjar.inference.logs.capture import Capture, keep_rest
from nightjar.inference.records import Crumb, Event, encode
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec
from nightjar.inference.scoring.prepared_batches import PACKED
from nightjar.inference.scoring.staged import AcceptingWorker, PreparingWorker
from nightjar.inference.scoring.streaming import worker_of
from nightjar.inference.scoring.suspects import Attempt

_PATIENCE_S = 10.0
"""Seconds that a pass waits at its end for other nodes; later output of theirs is kept after the next pass."""


def capture(spec: WorkerSpec) -> Capture:
    """Keep what this worker's process prints; nothing if there is no revision, as in `check`."""
    return Capture(spec.storage, spec.revision, spec.epoch, secrets=spec.secrets)


def gather(spec: WorkerSpec) -> None:
    """Keep the rest of what the run's processes printed, on all nodes. Call it when the processes have ended."""
    if not spec.revision:
        return
    keep_rest(spec.storage, spec.revision, spec.secrets)
    here = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in alive() if node["NodeID"] != here]
    if not others:
        return
    rest: Any = ray.remote(num_cpus=0, max_retries=0)(keep_rest)
    asked = [
        rest.options(name="nightjar logs", scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            spec.storage, spec.revision, spec.secrets
        )
        for node in others
    ]
    # The output of a lost node that was not kept in time is lost.
    with contextlib.suppress(ray.exceptions.RayError):
        ray.wait(asked, num_returns=len(asked), timeout=_PATIENCE_S)


LAST_WORDS_S = 1.0

HANDED = pa.schema([("event", pa.string()), ("assignment", pa.binary()), ("parcel", PACKED)])
"""What the CPU stage yields: events, and with `Prepared` the assignment and its parcel."""


class Sealed:
    """A spec on its way to the actors, hidden because Ray writes a dataclass's fields, also secrets, into its
    records.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec


class Scoring:
    """A `ShardWorker` as a callable class for Ray Data: takes a block of assignments, yields events."""

    def __init__(self, sealed: Sealed) -> None:
        self.logs = capture(sealed.spec)
        self.worker = worker_of(sealed.spec)(sealed.spec, turn_to=self.logs.turn_to)

    def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
        return _as_blocks(self.worker.process(assignments(block)))


class Preparing:
    """A `PreparingWorker` as a callable class for Ray Data: takes a block of assignments, yields lines of `HANDED`."""

    def __init__(self, sealed: Sealed) -> None:
        self._logs = capture(sealed.spec)
        self._worker = PreparingWorker(sealed.spec, turn_to=self._logs.turn_to)

    def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
        with _ending():
            for event in self._worker.process(assignments(block)):
                assignment, packed = self._worker.handed or (None, None)
                columns = [
                    pa.array([_as_text(event)]),
                    pa.array([assignment and pickle.dumps(assignment)], pa.binary()),
                    pa.nulls(1, PACKED) if packed is None else packed,
                ]
                yield pa.Table.from_arrays(columns, schema=HANDED)


class Accepting:
    """An `AcceptingWorker` as a callable class for Ray Data: takes lines of `HANDED`, passes their events on, and
    scores what was prepared. Several threads may call it at once.
    """

    def __init__(self, sealed: Sealed) -> None:
        self._logs = capture(sealed.spec)
        self._worker = AcceptingWorker(sealed.spec, turn_to=self._logs.turn_to)

    def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
        yield block.select(["event"])
        for assignment, packed in zip(block["assignment"], block["parcel"], strict=True):
            if packed.is_valid:
                yield from _as_blocks(self._worker.accept(pickle.loads(assignment.as_py()), packed))


def _as_blocks(events: Iterable[Event]) -> Iterator[pa.Table]:
    """The events of a worker, each as a block."""
    with _ending():
        for event in events:
            table = pa.table({"event": [_as_text(event)]})
            yield table
            if isinstance(event, Crumb):
                # With one block buffered, a second one is taken only when the first has arrived: no crumb is
                # still on its way while its row is scored, so the death is never blamed on the row before.
                yield table


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """End the process if it is spoilt, when its last event has been yielded."""
    try:
        yield
    except ProcessSpoilt:
        # The last event is still on its way; if it is lost, this counts as an ordinary death.
        time.sleep(LAST_WORDS_S)
        os._exit(1)


def _as_text(event: Event) -> str:
    return json.dumps(encode(event))


def assignments(block: pa.Table) -> Iterator[Assignment]:
    for line in block.to_pylist():
        how = line["how"]
        attempt = of_json(Attempt, json.loads(how)) if how else Attempt(line["attempt"])
        yield Assignment(shard_of_line(line), attempt)
