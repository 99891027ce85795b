"""Passes over an actor pool.

A pass is one Ray Data job: a dataset of shard descriptors is mapped over actors that read, score and write, and yield
events that stream to the driver. No row enters the object store. With a CPU stage a second pool comes before it, which
hands each prepared shard over as one block; its events pass through the actors of the model. The settings below make a
pass finite, and lose only what died: with Ray's defaults a row that kills its process would be retried for ever. The
dataset is made by `from_blocks`: `from_arrow` runs a task for each block's size, and waits for ever if every CPU is
taken.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from ray.data import ActorPoolStrategy, DataContext, from_blocks

from nightjar.inference.engine.protocol import NO_EVENT, TICK_S
from nightjar.inference.engine.ray import ALONE
from nightjar.inference.engine.ray.capacity import Demand, stage_workers
from nightjar.inference.engine.ray.internals import bound_events_ahead, do_without_helpers, mapped
from nightjar.inference.engine.ray.processes import Accepting, Preparing, Scoring, Sealed, gather
from nightjar.inference.errors import PassEnded
from nightjar.inference.jsonform import to_json
from nightjar.inference.messages import clip
from nightjar.inference.records import UNKNOWN, Event, decode
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.streaming import spans
from nightjar.inference.scoring.suspects import Attempt

T = TypeVar("T")

_AHEAD = 256
"""The most items that may wait to be taken."""

_CLOSING_S = 5.0
"""Seconds to wait for a thread that is to stop."""


def streamed(make: Callable[[], Iterable[T]]) -> Generator[T | None, None, None]:
    """Yield the items of `make()`, which runs in a thread of its own, and None on a tick. Closing it ends the thread.

    Raises:
        Exception: The error that `make()` raised, after the items before it.
    """
    arrived: queue.Queue[tuple[T] | Exception | None] = queue.Queue(maxsize=_AHEAD)
    closed = threading.Event()

    def consume() -> None:
        try:
            for item in make():
                arrived.put((item,))
                if closed.is_set():
                    return
            arrived.put(None)
        except Exception as error:  # noqa: BLE001 (raised again where the items are wanted)
            arrived.put(error)

    thread = threading.Thread(target=consume, daemon=True, name="nightjar-events")
    thread.start()
    try:
        while True:
            try:
                item = arrived.get(timeout=TICK_S)
            except queue.Empty:
                yield None
                continue
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item[0]
    finally:
        closed.set()
        while not arrived.empty():
            arrived.get_nowait()
        thread.join(_CLOSING_S)


BLOCKS_PER_ACTOR = 64
MAX_BLOCKS = 1024
BUFFERED = 64
"""The most events by which an actor may be ahead of the driver."""
HANDED_AHEAD = 8
"""The same for a worker of the CPU stage: every second event is a shard, which may take half a gigabyte."""
GIVEN_AHEAD = 12
"""The most tasks that an actor behind the CPU stage has: every second one is a shard, the others are events. They
bridge the time until the driver gives it more, which on busy cores is half a second."""
AT_ONCE = 2
"""The shards that such an actor has in memory: one is with the model; meanwhile another is unpacked or written."""
_SPANNING: dict[str, Any] = {
    "max_tasks_in_flight_per_actor": 4,
    "max_concurrent_calls_per_actor": 2,
    "enable_true_multi_threading": True,
}
"""For a model that is asked for one row at a time: the rows of the next block take the places that the slowest rows of
this one leave free. Two more blocks are there before one of the two has ended."""
FEW = 4
"""The most suspects that share one actor: Ray Data takes each crumb at once from one actor, but at 10 Hz from
several."""
_WITHOUT_GPU = "DEFAULT"
"""Places the workers of the CPU stage first where there is no GPU. Ray Data would spread them over all nodes, where
they take CPUs beside the GPUs while other hosts stand idle."""
_FINITE: dict[str, Any] = {"max_restarts": -1, "max_task_retries": 0}
"""A lost actor is replaced, and its task is not repeated: the next pass has what is missing."""


def _blocks(shards: pa.Table, attempts: Sequence[Attempt], actors: int) -> list[pa.Table]:
    """Suspects alone, the others in a bounded number of blocks: the large ones first, so that no worker begins a large
    shard when the others have nothing left to do.
    """
    # Of all but suspects the attempt's number is enough, so that a million shards stay small.
    how = pa.array([json.dumps(to_json(each)) if each.crumbs else "" for each in attempts], pa.string())
    numbers = pa.array([each.number for each in attempts], pa.int32())
    table = shards.append_column("attempt", numbers).append_column("how", how)
    if attempts[0].crumbs:
        return [table.slice(index, 1) for index in range(len(attempts))]
    return _largest_first(table, min(MAX_BLOCKS, BLOCKS_PER_ACTOR * actors))


def _largest_first(shards: pa.Table, most: int) -> list[pa.Table]:
    """Blocks of about as many rows each. A shard whose rows are counted as it is read counts as the largest one."""
    rows = shards["rows"].to_numpy()
    rows = np.maximum(np.where(rows == UNKNOWN, rows.max(), rows), 1)
    # By powers of two: shards that are about as large stay in the order of their files.
    order = np.argsort(-np.floor(np.log2(rows)), kind="stable")
    shards, rows, count = shards.take(order), rows[order], min(shards.num_rows, most)
    after = np.cumsum(rows)
    block = (2 * after - rows) * count // (2 * after[-1])  # in which the middle of a shard is
    edges = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), shards.num_rows]
    return [shards.slice(low, high - low) for low, high in itertools.pairwise(edges)]


def run_pass(spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt]) -> Generator[list[Event], None, None]:
    """As `Engine.run_pass`. Suspects never go through the CPU stage: an actor does all their steps."""
    workers = 0 if attempts[0].crumbs else stage_workers(spec.job)
    made = functools.partial(_staged, workers=workers) if workers else _fused
    if os.environ.get(ALONE):
        do_without_helpers()
    # Ray Data logs a traceback for each lost task, which the ledger reports better; and a handler that keeps such a
    # record would keep the pool's actors. Errors that end a pass are raised.
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        for batch in streamed(functools.partial(_arrived, made(spec, shards, attempts))):
            yield [] if batch is None else [decode(json.loads(text)) for text in batch["event"].to_pylist()]
    finally:
        # A task that lost its process leaves its exception in a reference cycle with the pool. Until the cycle is
        # collected, the pool's actors keep their CPUs, and the next pass would wait for these for ever.
        gc.collect()
        logger.setLevel(level)
        gather(spec)


def _fused(spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt]) -> Any:
    """The dataset in which an actor does every step of a shard; nothing waits behind a suspect."""
    need = spec.job.resources
    blocks = _blocks(shards, attempts, need.max_actors)
    suspects = attempts[0].crumbs
    most = 1 if any(attempt.singly for attempt in attempts) or (suspects and len(blocks) <= FEW) else need.max_actors
    pool = ActorPoolStrategy(
        min_size=min(need.min_actors, most, len(blocks)),
        max_size=min(most, len(blocks)),
        **(_SPANNING if spans(spec.job) and not suspects else {"max_tasks_in_flight_per_actor": 1 if suspects else 2}),
    )
    with DataContext.current(_context(spec.job.retry.stall_s, buffered=1 if suspects else BUFFERED)):
        return mapped(from_blocks(blocks), Scoring, Sealed(spec), compute=pool, **Demand(need).options(), **_FINITE)


def _staged(spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt], workers: int) -> Any:
    """The dataset in which workers of the CPU stage read and prepare, and actors score what these hand over."""
    need, step = spec.job.resources, spec.job.stage
    assert step is not None
    blocks = _blocks(shards, attempts, workers)
    workers = min(workers, len(blocks))
    before = ActorPoolStrategy(
        min_size=min(step.min_workers, workers), initial_size=workers, max_size=workers, max_tasks_in_flight_per_actor=2
    )
    most = min(need.max_actors, shards.num_rows)
    pool = ActorPoolStrategy(
        min_size=min(need.min_actors, most),
        max_size=most,
        max_tasks_in_flight_per_actor=GIVEN_AHEAD,
        max_concurrent_calls_per_actor=AT_ONCE,
        enable_true_multi_threading=True,
    )
    with DataContext.current(_context(spec.job.retry.stall_s, buffered=HANDED_AHEAD)):
        installed = {name: given for name, given in Demand(need).options().items() if name == "runtime_env"}
        asked = {**installed, "num_cpus": step.cpus, "scheduling_strategy": _WITHOUT_GPU, **_FINITE}
        prepared = mapped(from_blocks(blocks), Preparing, Sealed(spec), compute=before, **asked)
        return mapped(prepared, Accepting, Sealed(spec), compute=pool, **Demand(need).options(), **_FINITE)


def _arrived(dataset: Any) -> Iterator[Any]:
    """The blocks of events, as they come."""
    try:
        yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    except Exception as error:
        raise PassEnded(f"Ray ended the pass: {clip(str(error))}") from error


def _context(stall_s: float, buffered: int) -> DataContext:
    """The settings of a pass, as a copy: datasets of others in this process keep their settings."""
    context = DataContext.get_current().copy()
    bound_events_ahead(context, buffered)
    context.max_errored_blocks = -1
    # Each event is handed over when it is yielded, not when a block is full.
    context.target_max_block_size = 1
    context.execution_no_progress_timeout_s = NO_EVENT * stall_s
    # Else each task starts a thread that measures memory.
    context.memory_usage_poll_interval_s = None
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.enable_auto_log_stats = False
    return context
