"""Work that needs no pool, as plain Ray tasks with a time limit: the audit, scoring again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nightjar.inference.engine.protocol import NO_EVENT, TICK_S
from nightjar.inference.engine.ray.capacity import Demand, alive, total
from nightjar.inference.engine.ray.processes import capture
from nightjar.inference.errors import ClusterLost, NightjarError
from nightjar.inference.job.model import Job
from nightjar.inference.messages import clip
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.attempts import host_of
from nightjar.inference.validation.rescore import Rescored
from nightjar.inference.validation.rescore import rescore as rescore_shards

T = TypeVar("T")
R = TypeVar("R")


def each(work: Callable[[T], R], given: Iterable[T], job: Job, called: str) -> Generator[R | None, None, None]:
    """Do work once for each thing given, in plain tasks; yields the results in order, and None on a tick.

    Such work needs neither a pool nor a model, and can be repeated without harm.

    Raises:
        ClusterLost: The cluster lost its tasks again and again, or none of them ended for `NO_EVENT` × `stall_s`.
    """
    remote: Any = ray.remote(num_cpus=1)(_call).options(name=f"nightjar {called}")
    shared, waiting = ray.put(work), enumerate(given)
    running: dict[Any, int] = {}
    found: dict[int, R] = {}
    done, room = 0, max(1, int(total("CPU"))) * 2
    deadline = time.monotonic() + NO_EVENT * job.retry.stall_s
    while True:
        for index, one in itertools.islice(waiting, room - len(running)):
            running[remote.remote(shared, one)] = index
        if not running:
            return
        ready, _ = ray.wait(list(running), num_returns=1, timeout=TICK_S)
        for task in ready:
            found[running.pop(task)] = _answer(task, f"the {called}")
            deadline = time.monotonic() + NO_EVENT * job.retry.stall_s
        while done in found:
            yield found.pop(done)
            done += 1
        if time.monotonic() > deadline:
            raise ClusterLost(
                f"the {called} stood still for {NO_EVENT} × retry.stall_s = {job.retry.stall_s:g} s; is the cluster "
                "busy with others, or the storage away? Repeat the command: what is scored is kept"
            )
        yield None


def _answer(task: Any, what: str) -> Any:
    """A task's result. Raises ClusterLost if the cluster lost the task as often as Ray repeats it."""
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, NightjarError):
            raise error.cause from error
        raise
    except ray.exceptions.RayError as error:
        raise ClusterLost(f"the cluster lost {what}: {clip(str(error))}") from error


def rescore(spec: WorkerSpec, chosen: pa.Table) -> Generator[Rescored | None, None, None]:
    """Score shards again in new processes, on other nodes than before if there are any; yields None on a tick.

    chosen: lines of `outcomes.OUTCOMES`.

    Raises:
        ClusterLost: A process was lost, or no result came for as long as a shard may take.
    """
    demand = Demand(spec.job.resources)
    again = ray.remote(**demand.options(), max_retries=0, max_calls=1, num_returns="streaming")(_rescore_lines)
    running: dict[Any, str] = {}
    for host, lines in _by_host(chosen, spec.job.resources.max_actors):
        where = _elsewhere(host, demand)
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
            raise ClusterLost(f"rescore: no shard was scored again within {patience:g} s; is the cluster busy?")
        yield None
    yield merged


def _rescore_lines(spec: WorkerSpec, lines: list[dict[str, Any]]) -> Iterator[Rescored]:
    logs = capture(spec)
    yield from rescore_shards(spec, lines)
    logs.close()


def _by_host(chosen: pa.Table, processes: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The lines by the host that scored them, in no more parts than processes (but one a host)."""
    by_host: dict[str, list[dict[str, Any]]] = {}
    for line in chosen.to_pylist():
        by_host.setdefault(host_of(line["worker"]), []).append(line)
    for host, lines in by_host.items():
        parts = max(1, min(len(lines), processes * len(lines) // chosen.num_rows))
        for part in range(parts):
            yield host, lines[part::parts]


def _elsewhere(host: str, demand: Demand) -> Any:
    """Where to place what shall not run on this host, if it can be helped."""
    others = [node for node in alive() if node["NodeManagerHostname"] != host and demand.fitting(node)]
    return NodeAffinitySchedulingStrategy(others[0]["NodeID"], soft=True) if others else "DEFAULT"


def _call(work: Callable[[T], R], given: T) -> R:
    return work(given)
