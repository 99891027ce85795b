"""Passes over an actor pool.

A pass is one Ray Data job: a dataset of shard descriptors is mapped over actors that read, score and write, and yield
events that stream to the driver. No row enters the object store. The settings below make a pass finite, and lose only
what died. With Ray's defaults a row that kills its process would be retried for ever.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import logging
import os
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from ray.data import ActorPoolStrategy, DataContext

from nightjar.inference.engine.protocol import NO_EVENT
from nightjar.inference.engine.ray.capacity import Demand
from nightjar.inference.engine.ray.gathering import capture, gather
from nightjar.inference.engine.ray.internals import bound_events_ahead, mapped
from nightjar.inference.engine.stream import streamed
from nightjar.inference.errors import PassEnded, ProcessSpoilt
from nightjar.inference.input.plan import shard_of_line
from nightjar.inference.messages import clip
from nightjar.inference.records import (
    Crumb,
    Event,
    Failed,
    decode,
    encode,
)
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec
from nightjar.inference.scoring.suspects import Attempt, Rows
from nightjar.inference.scoring.worker import ShardWorker

BLOCKS_PER_ACTOR = 64
MAX_BLOCKS = 1024
BUFFERED = 64
FEW = 4
"""The most suspects that share one actor: Ray Data takes each crumb at once from one actor, but at 10 Hz from
several."""
LAST_WORDS_S = 1.0


class _Sealed:
    """A spec on its way to the actors, hidden because Ray writes a dataclass's fields, also secrets, into its
    records.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec


class _Actor:
    """A `ShardWorker` as a callable class for Ray Data: takes a block of assignments, yields events."""

    def __init__(self, sealed: _Sealed) -> None:
        self._logs = capture(sealed.spec)
        self._worker = ShardWorker(sealed.spec, turn_to=self._logs.turn_to)

    def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
        try:
            for event in self._worker.process(_assignments(block)):
                if isinstance(event, Failed):
                    self._logs.urge()
                table = pa.table({"event": [json.dumps(encode(event))]})
                yield table
                if isinstance(event, Crumb):
                    # With one block buffered, a second one is taken only when the first has arrived: no crumb is
                    # still on its way while its row is scored, so the death is never blamed on the row before.
                    yield table
        except ProcessSpoilt:
            # The last event is still on its way; if it is lost, this counts as an ordinary death.
            time.sleep(LAST_WORDS_S)
            os._exit(1)


def _assignments(block: pa.Table) -> Iterator[Assignment]:
    for line in block.to_pylist():
        how = json.loads(line["how"]) if line["how"] else {}
        attempt = Attempt(
            number=line["attempt"],
            crumbs=bool(how),
            singly=Rows(**how["singly"]) if how.get("singly") else None,
            skip=tuple(Rows(**rows) for rows in how.get("skip", ())),
        )
        yield Assignment(shard_of_line(line), attempt)


def _how(attempt: Attempt) -> str:
    """The rest of an attempt besides its number, encoded; empty except for suspects, so that a million shards stay
    small.
    """
    if not attempt.crumbs:
        return ""
    return json.dumps(
        {
            "singly": asdict(attempt.singly) if attempt.singly else None,
            "skip": [asdict(rows) for rows in attempt.skip],
        }
    )


def _blocks(shards: pa.Table, attempts: Sequence[Attempt], actors: int) -> list[pa.Table]:
    """Suspects alone, the others in a bounded number of blocks."""
    how = pa.array([_how(attempt) for attempt in attempts], pa.string())
    table = shards.append_column("attempt", pa.array([a.number for a in attempts], pa.int32())).append_column(
        "how", how
    )
    alone = [index for index, attempt in enumerate(attempts) if attempt.crumbs]
    others = table.filter(pa.compute.equal(how, ""))
    blocks = [table.slice(index, 1) for index in alone]
    count = min(others.num_rows, MAX_BLOCKS, BLOCKS_PER_ACTOR * actors)
    edges = [others.num_rows * i // count for i in range(count + 1)] if count else []
    blocks += [others.slice(low, high - low) for low, high in itertools.pairwise(edges)]
    return blocks


def run_pass(spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt]) -> Generator[list[Event], None, None]:
    """Score the shards (lines of `plan.SHARDS`), one attempt each; yields events in batches, [] on a tick.

    The pass ends when Ray has no more events: a shard that was started and has no receipt by then has died. Closing the
    iterator ends the pass.

    Raises:
        PassEnded: Ray gave up on the pass itself.
    """
    need = spec.job.resources
    blocks = _blocks(shards, attempts, need.max_actors)
    suspects = any(attempt.crumbs for attempt in attempts)
    most = 1 if any(attempt.singly for attempt in attempts) or (suspects and len(blocks) <= FEW) else need.max_actors
    # Ray Data logs a traceback for each lost task, which the ledger reports better; and a handler that keeps such a
    # record would keep the pool's actors. Errors that end a pass are raised.
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        for batch in streamed(functools.partial(_arrived, _pass(spec, blocks, most, suspects))):
            yield [] if batch is None else [decode(json.loads(text)) for text in batch["event"].to_pylist()]
    finally:
        # A task that lost its process leaves its exception in a reference cycle with the pool. Until the cycle is
        # collected, the pool's actors keep their CPUs, and the next pass would wait for these for ever.
        gc.collect()
        logger.setLevel(level)
        gather(spec)


def _pass(spec: WorkerSpec, blocks: list[pa.Table], most: int, suspects: bool) -> Any:
    """The dataset whose execution is the pass, with at most `most` actors; nothing waits behind a suspect."""
    need = spec.job.resources
    pool = ActorPoolStrategy(
        min_size=min(need.min_actors, most, len(blocks)),
        max_size=min(most, len(blocks)),
        max_tasks_in_flight_per_actor=1 if suspects else 2,
    )
    with DataContext.current(_context(spec.job.retry.stall_s, buffered=1 if suspects else BUFFERED)):
        return mapped(
            blocks,
            _Actor,
            _Sealed(spec),
            compute=pool,
            **Demand(need).options(),
            max_restarts=-1,
            max_task_retries=0,
        )


def _arrived(dataset: Any) -> Iterator[Any]:
    """The blocks of events, as they come."""
    try:
        yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    except Exception as error:
        raise PassEnded(f"Ray ended the pass: {clip(str(error))}") from error


def _context(stall_s: float, buffered: int) -> DataContext:
    """What Ray Data is told about a pass. A copy: datasets of others in this process keep their settings."""
    context = DataContext.get_current().copy()
    bound_events_ahead(context, buffered)
    context.max_errored_blocks = -1
    # Each event is handed over when it is yielded, not when a block is full.
    context.target_max_block_size = 1
    context.execution_no_progress_timeout_s = NO_EVENT * stall_s
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.enable_auto_log_stats = False
    return context
