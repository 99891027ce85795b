"""The one owner of Ray in this package: preflight, passes over an actor pool, the audit as a pass.

A pass is one Ray Data job: a dataset of shard descriptors, mapped over actors that read, score and write,
yielding events that stream to the driver. No row enters the object store. The settings below make a pass
finite and lose nothing but what died: with Ray's defaults, a row that kills its process is retried for ever.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import ray
import ray.data
import ray.exceptions
from ray.data import ActorPoolStrategy, DataContext
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nightjar.inference.assignment import Assignment, WorkerSpec
from nightjar.inference.audit import Audited, audit_block
from nightjar.inference.errors import ClusterError, JobError, NightjarError, PassEnded, ProcessSpoilt, RunFailed
from nightjar.inference.job import Job
from nightjar.inference.plan import shard_of_line
from nightjar.inference.rescore import Rescored
from nightjar.inference.rescore import rescore as rescore_shards
from nightjar.inference.shards import Crumb, Event, Piece, clip, decode, encode
from nightjar.inference.storage import Storage
from nightjar.inference.suspects import Attempt, Rows
from nightjar.inference.trial import Loaded, try_model
from nightjar.inference.worker import ShardWorker

BLOCKS_PER_ACTOR = 64
MAX_BLOCKS = 1024
BUFFERED = 64
FEW = 4
"""So many suspects share one actor: Ray Data takes each crumb at once from one, at 10 Hz from several."""
AUDIT_BLOCKS = 256
AUDIT_SHARDS = 32
"""At least so many blocks an audit has, and at most so many shards a block: each has the same time to end."""
TICK_S = 0.5
LAST_WORDS_S = 1.0
NO_EVENT = 3
"""A pass without any event for so many times `retry.stall_s` is ended: reading, one micro-batch and writing may each
take that long, and workers end what takes longer."""

_CLOSING_S = 5.0

_COPIES = 3
"""Of the shards' descriptors in the object store at once: discovered, planned, in blocks."""

_log = logging.getLogger(__name__)


def check_cluster(job: Job, pools: int = 1, descriptors: int = 0) -> None:
    """Whether the cluster can place the smallest pool the job allows, so many times over, and hold what it is told.

    descriptors: bytes of the shards' descriptors, all that lies in the object store.

    Raises:
        ClusterError: names the key to change, with the numbers.
    """
    need = job.resources
    alive = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node["Resources"] for node in alive if node["Alive"]]
    placeable = sum(_fits(node, need.cpus, need.gpus) for node in nodes)
    if placeable < need.min_actors * pools:
        have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise ClusterError(
            f"resources: {f'{pools} × ' if pools > 1 else ''}{need.min_actors} actors of {need.cpus:g} CPUs and "
            f"{need.gpus:g} GPUs each do not fit: "
            f"this cluster has {len(nodes)} nodes ({have}), room for {placeable}. "
            f"Lower resources.actors, cpus or gpus{' or --parallel' if pools > 1 else ''}, or choose another cluster "
            "with --ray"
        )
    store = _total("object_store_memory")
    if descriptors * _COPIES > store:
        raise ClusterError(
            f"input.shard_rows: the descriptors of this plan's shards take {descriptors / 2**20:,.0f} MiB, and the "
            f"cluster's object store has {store / 2**20:,.0f} MiB. Make the shards larger, or start Ray with a larger "
            "--object-store-memory"
        )


def _fits(node: dict[str, float], cpus: float, gpus: float) -> int:
    room = [node.get(kind, 0.0) / each for kind, each in (("CPU", cpus), ("GPU", gpus)) if each > 0]
    return int(min(room, default=1024))


def preflight(spec: WorkerSpec, places: Sequence[Piece]) -> Loaded:
    """Load the model once, in one process without restarts, and score a few rows.

    places: of the input, as of `trial.samples`.

    Raises:
        JobError: the model cannot be loaded, its process died over that, or no row anywhere could be scored.
    """
    loaded = _try(spec, places)
    if loaded.hung:
        # One row may be why, and the passes find that; at another place it is the model.
        others = places[loaded.place + 1 :]
        if _try(spec, others or places[loaded.place :], last=not others).hung:
            raise JobError(f"{spec.job.model.loaded_by}: {loaded.sample_error}; see whether it hangs, or allow more")
    return loaded


def _try(spec: WorkerSpec, places: Sequence[Piece], last: bool = False) -> Loaded:
    need = spec.job.resources
    trial: Any = ray.remote(
        num_cpus=need.cpus, num_gpus=need.gpus, max_retries=0, max_calls=1, num_returns="streaming"
    )(try_model)
    steps: Any = trial.options(name="nightjar preflight").remote(spec, list(places), last)
    key, stall_s = spec.job.model.loaded_by, spec.job.retry.stall_s
    loaded: Loaded | None = None
    try:
        for step in _patiently(steps, stall_s):
            outcome = ray.get(step)
            if isinstance(outcome, str):
                raise JobError(f"{key}: {outcome}")
            loaded = outcome
    except ray.exceptions.RayTaskError as error:
        raise JobError(f"{key}: {clip(str(error.cause))}") from error
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
        if loaded is None:
            raise JobError(
                f"{key}: loading the model ended its process (exit, signal or out of memory) before it was ready; "
                "load it once in a plain Python process to see why"
            ) from error
        # A row that kills its process is the passes' business: they find it and quarantine it.
        return Loaded(loaded.device, "scoring the first rows ended the process")
    except TimeoutError:
        took = f"took longer than retry.stall_s = {stall_s:g} s and was ended"
        if loaded is not None:
            return Loaded(loaded.device, f"scoring the first rows {took}", loaded.place, hung=True)
        raise JobError(
            f"{key}: loading the model {took}; see whether it hangs, whether the cluster is busy with others, or "
            "allow more"
        ) from None
    assert loaded is not None
    return loaded


def _patiently(steps: Any, stall_s: float) -> Iterator[Any]:
    """The task's results as they come; ends the task and raises TimeoutError when none comes for `stall_s`."""
    while True:
        ready, _ = ray.wait([steps], timeout=stall_s)
        if not ready:
            ray.cancel(steps, force=True)
            raise TimeoutError
        try:
            yield next(steps)
        except StopIteration:
            return


class _Sealed:
    """A spec on its way to the actors. Ray writes what a dataclass holds into its own records, secrets, too."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec


class _Actor:
    """A `ShardWorker` as Ray Data's map_batches wants it: one block of assignments in, events out."""

    def __init__(self, sealed: _Sealed) -> None:
        self._worker = ShardWorker(sealed.spec)

    def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
        try:
            for event in self._worker.process(_assignments(block)):
                table = pa.table({"event": [json.dumps(encode(event))]})
                yield table
                if isinstance(event, Crumb):
                    # With one block buffered, a second one is taken only when the first has arrived: no crumb is
                    # still on its way while its row is scored, so the death is never blamed on the row before.
                    yield table
        except ProcessSpoilt:
            # What was said last is still on its way; if it is lost, this is a death like any other.
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
    """What an attempt has beyond its number; empty for all but suspects, so that a million shards stay small."""
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

    Ends when Ray has nothing more to say: what was started and has no receipt by then has died. Closing the
    iterator ends the pass.

    Raises:
        PassEnded: Ray gave up on the pass itself.
    """
    need = spec.job.resources
    blocks = _blocks(shards, attempts, need.max_actors)
    suspects = any(attempt.crumbs for attempt in attempts)
    most = 1 if any(attempt.singly for attempt in attempts) or (suspects and len(blocks) <= FEW) else need.max_actors
    _configure(spec.job.retry.stall_s, buffered=1 if suspects else BUFFERED)
    try:
        for events in _stream(_pass(spec, blocks, most, suspects)):
            yield [decode(json.loads(text)) for text in events]
    finally:
        # A task that lost its process leaves its exception in a reference cycle with the pool. Until that is
        # collected the pool's actors live on and hold their CPUs, and the next pass waits for these for ever.
        gc.collect()


def _pass(spec: WorkerSpec, blocks: list[pa.Table], most: int, suspects: bool) -> Any:
    """The dataset whose execution is the pass, over at most so many actors; nothing waits behind a suspect."""
    need = spec.job.resources
    pool = ActorPoolStrategy(
        min_size=min(need.min_actors, most, len(blocks)),
        max_size=min(most, len(blocks)),
        max_tasks_in_flight_per_actor=1 if suspects else 2,
    )
    # Not from_arrow: that asks a task for each block's size, and waits for ever where every CPU is taken.
    # Not map_batches: that wants a batch size for GPUs, and would join suspects to blocks of so many rows.
    return ray.data.from_blocks(blocks).map_batches_internal(
        _Actor,
        fn_constructor_args=(_Sealed(spec),),
        batch_size=None,
        batch_format="pyarrow",
        compute=pool,
        num_cpus=need.cpus,
        num_gpus=need.gpus,
        max_restarts=-1,
        max_task_retries=0,
    )


def _stream(dataset: Any) -> Generator[list[str], None, None]:
    """The dataset's events, read in a thread so that the driver can tick while nothing happens."""
    arrived: queue.Queue[list[str] | Exception | None] = queue.Queue(maxsize=256)
    closed = threading.Event()

    def consume() -> None:
        try:
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                arrived.put(batch["event"].to_pylist())
                if closed.is_set():
                    return
            arrived.put(None)
        except Exception as error:  # noqa: BLE001 (raised again where the events are wanted)
            arrived.put(error)

    thread = threading.Thread(target=consume, daemon=True, name="nightjar-events")
    thread.start()
    try:
        while True:
            try:
                item = arrived.get(timeout=TICK_S)
            except queue.Empty:
                yield []
                continue
            if item is None:
                return
            if isinstance(item, Exception):
                raise PassEnded(f"Ray ended the pass: {clip(str(item))}") from item
            yield item
    finally:
        closed.set()
        while not arrived.empty():
            arrived.get_nowait()
        thread.join(_CLOSING_S)


def audit(storage: Storage, revision: str, job: Job, outcomes: pa.Table) -> Iterator[Audited | None]:
    """Audit committed shards on the cluster; yields None on a tick, and at last everything merged in order.

    Plain tasks: an audit needs neither a pool nor a model, and repeating one harms nothing.

    Raises:
        RunFailed: the cluster lost its tasks again and again, or let none of them end for `NO_EVENT` × `stall_s`.
    """
    audit_task = ray.remote(num_cpus=1)(_audit_lines)
    waiting = _audit_blocks(outcomes)
    running: dict[Any, int] = {}
    found: dict[int, Audited] = {}
    merged, blocks = Audited(), 0
    room = max(1, int(_total("CPU"))) * 2
    deadline = time.monotonic() + NO_EVENT * job.retry.stall_s
    while True:
        for index, block in itertools.islice(waiting, room - len(running)):
            running[audit_task.options(name="nightjar audit").remote(block, storage, revision, job)] = index
        if not running:
            break
        done, _ = ray.wait(list(running), num_returns=1, timeout=TICK_S)
        for task in done:
            found[running.pop(task)] = _answer(task, "the audit")
            deadline = time.monotonic() + NO_EVENT * job.retry.stall_s
        while blocks in found:
            merged.merge(found.pop(blocks))
            blocks += 1
        if time.monotonic() > deadline:
            raise RunFailed(
                f"the audit stood still for {NO_EVENT} × retry.stall_s = {job.retry.stall_s:g} s; is the cluster busy "
                "with others, or the storage away? Repeat the command: what is scored is kept"
            )
        yield None
    yield merged


def _answer(task: Any, what: str) -> Any:
    """A task's result; RunFailed when the cluster lost it as often as Ray tries it again."""
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, NightjarError):
            raise error.cause from error
        raise
    except ray.exceptions.RayError as error:
        raise RunFailed(f"the cluster lost {what}: {clip(str(error))}") from error


def rescore(spec: WorkerSpec, chosen: pa.Table) -> Iterator[Rescored | None]:
    """Score shards again in new processes, on other nodes than before where there are any; None on a tick.

    chosen: lines of `outcomes.OUTCOMES`.

    Raises:
        RunFailed: a process was lost over it, or nothing came for as long as a shard may take.
    """
    need = spec.job.resources
    again = ray.remote(num_cpus=need.cpus, num_gpus=need.gpus, max_retries=0, max_calls=1, num_returns="streaming")(
        rescore_shards
    )
    running: dict[Any, str] = {}
    for host, lines in _by_host(chosen, need.max_actors):
        where = _elsewhere(host, need.cpus, need.gpus)
        task: Any = again.options(name="nightjar rescore", scheduling_strategy=where).remote(spec, lines)
        running[task] = host
    merged, patience = Rescored(), spec.job.retry.shard_s + NO_EVENT * spec.job.retry.stall_s
    deadline = time.monotonic() + patience
    while running:
        ready, _ = ray.wait(list(running), num_returns=1, timeout=TICK_S)
        for task in ready:
            try:
                merged.merge(_answer(next(task), f"a process that scored shards of {running[task]} again"))
            except StopIteration:
                del running[task]
            deadline = time.monotonic() + patience
        if time.monotonic() > deadline:
            for task in running:
                ray.cancel(task, force=True)
            raise RunFailed(f"audit.rescore: no shard was scored again within {patience:g} s; is the cluster busy?")
        yield None
    yield merged


def _by_host(chosen: pa.Table, processes: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The lines by the host that scored them, in no more parts than processes (but one a host)."""
    by_host: dict[str, list[dict[str, Any]]] = {}
    for line in chosen.to_pylist():
        by_host.setdefault(line["worker"].rpartition(":")[0], []).append(line)
    for host, lines in by_host.items():
        parts = max(1, min(len(lines), processes * len(lines) // chosen.num_rows))
        for part in range(parts):
            yield host, lines[part::parts]


def _elsewhere(host: str, cpus: float, gpus: float) -> Any:
    """Where to place what shall not run on this host, if it can be helped."""
    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    others = [n for n in alive if n["NodeManagerHostname"] != host and _fits(n["Resources"], cpus, gpus)]
    return NodeAffinitySchedulingStrategy(others[0]["NodeID"], soft=True) if others else "DEFAULT"


def _audit_blocks(outcomes: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Blocks as a pure function of the shards: the order of merging must not vary."""
    count = max(1, min(outcomes.num_rows, max(AUDIT_BLOCKS, -(-outcomes.num_rows // AUDIT_SHARDS))))
    edges = [outcomes.num_rows * index // count for index in range(count + 1)]
    for index, (low, high) in enumerate(itertools.pairwise(edges)):
        yield index, outcomes.slice(low, high - low).combine_chunks()


def _total(resource: str) -> float:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get(resource, 0.0)


def _audit_lines(block: pa.Table, storage: Storage, revision: str, job: Job) -> Audited:
    return audit_block(storage, revision, job, block.to_pylist())


def _configure(stall_s: float, buffered: int) -> None:
    context = DataContext.get_current()
    # How many events an actor may be ahead of the driver; there is no public name for it.
    context._max_num_blocks_in_streaming_gen_buffer = buffered
    context.max_errored_blocks = -1
    # Each event is handed over when it is yielded, not when a block is full.
    context.target_max_block_size = 1
    context.execution_no_progress_timeout_s = NO_EVENT * stall_s
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.enable_auto_log_stats = False
    # It logs a traceback for each lost task, which the ledger tells better, and a handler that keeps such a
    # record keeps the pool's actors, too. What ends a pass is raised.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
