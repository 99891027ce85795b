"""The engine that scores on the Ray cluster to which this process is connected.

Passes have a module of their own. Preflight, the audit and rescoring need no pool: they are plain tasks with a time
limit.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nightjar.inference import predictors
from nightjar.inference.engine.auditing import each_here
from nightjar.inference.engine.protocol import NO_EVENT, TICK_S, Take, try_model
from nightjar.inference.engine.ray.capacity import Demand, alive, check_cluster, total
from nightjar.inference.engine.ray.processes import capture, gather
from nightjar.inference.engine.ray.warming import taken
from nightjar.inference.errors import ClusterLost, JobError, NightjarError
from nightjar.inference.job.model import Job
from nightjar.inference.messages import clip
from nightjar.inference.process import host_of
from nightjar.inference.records import Event, Piece
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.child import WorkLost
from nightjar.inference.scoring.preflight import Loaded, Outcome, PreflightSteps, Ready, observed, preflight_steps
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.validation.rescore import Rescored
from nightjar.inference.validation.rescore import rescore as rescore_shards

T = TypeVar("T")
R = TypeVar("R")

_LOST = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.RayActorError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.NodeDiedError,
)
"""Ray's errors for a process that was lost: by itself, by Ray because the node's memory was short, or with its node."""

_STREAMED: dict[str, Any] = {"num_returns": "streaming", "_generator_backpressure_num_objects": 1}
"""Each answer has arrived before the next step begins, which may end the process, and lose what is still under way."""


def each_in_tasks(work: Callable[[T], R], given: Iterable[T], job: Job, called: str) -> Generator[R | None, None, None]:
    """`Engine.each` in plain tasks. The work needs neither a pool nor a model, and can be repeated without harm.

    Raises:
        ClusterLost: The cluster lost its tasks again and again, or none of them ended for `NO_EVENT` × `stall_s`.
    """
    remote: Any = ray.remote(num_cpus=1)(_call).options(name=f"nightjar {called}")
    shared, waiting = ray.put(work), enumerate(given)
    running, found = dict[Any, int](), dict[int, R]()
    done, room, patience_s = 0, max(1, int(total("CPU"))) * 2, NO_EVENT * job.retry.stall_s
    deadline = time.monotonic() + patience_s
    with _ended(running):
        while True:
            for index, one in itertools.islice(waiting, room - len(running)):
                running[remote.remote(shared, one)] = index
            if not running:
                return
            ready, _ = ray.wait(list(running), num_returns=1, timeout=TICK_S)
            for task in ready:
                found[running.pop(task)] = _answer(task, f"the {called}")
                deadline = time.monotonic() + patience_s
            while done in found:
                yield found.pop(done)
                done += 1
            if time.monotonic() > deadline:
                raise ClusterLost(
                    f"the {called} stood still for {NO_EVENT} × retry.stall_s = {job.retry.stall_s:g} s; is the "
                    "cluster busy with others, or the storage away? Repeat the command: what is scored is kept"
                )
            yield None


class RayEngine:
    """`Engine` on Ray. If a process dies, only the shard that it was scoring is charged."""

    check_capacity = staticmethod(check_cluster)
    in_tasks = staticmethod(each_in_tasks)

    def preflight(self, spec: WorkerSpec, places: Sequence[Piece], steps: PreflightSteps = preflight_steps) -> Loaded:
        @contextmanager
        def begin(places: Sequence[Piece]) -> Iterator[Take]:
            answers, end = _begun(spec, steps, list(places))
            if spec.revision:
                # A pass follows. Ray Data takes a second to import, and this process only waits here.
                from nightjar.inference.engine.ray import passes  # noqa: F401
            try:
                yield partial(_take, spec.job, answers)
            finally:
                end()

        try:
            return try_model(spec.job, places, begin)
        except NightjarError:
            # After a success the first pass does this at its end. On several nodes it takes seconds.
            gather(spec)
            raise

    def run_pass(
        self, spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt]
    ) -> Generator[list[Event], None, None]:
        from nightjar.inference.engine.ray.passes import run_pass  # Ray Data takes a second to import

        return run_pass(spec, shards, attempts)

    def each(
        self, work: Callable[[T], R], given: Sequence[T], job: Job, called: str
    ) -> Generator[R | None, None, None]:
        # One process of the cluster would take as long to start as this one to do it.
        each = each_here if len(given) == 1 else each_in_tasks
        return each(work, given, job, called)

    def rescore(self, spec: WorkerSpec, chosen: pa.Table) -> Generator[Rescored | None, None, None]:
        """In new processes, on other nodes than before if there are any."""
        demand = Demand(spec.job.resources)
        # A process loads the model once for its shards. Their results come one by one, so that a hang is noticed soon.
        options = {**demand.options(), "max_retries": 0, "max_calls": 1, "num_returns": "streaming"}
        again: Any = ray.remote(**options)(_rescore_lines)
        running: dict[Any, str] = {}
        for host, lines in _by_host(chosen, spec.job.resources.max_actors):
            where = _elsewhere(host, demand)
            task: Any = again.options(name="nightjar rescore", scheduling_strategy=where).remote(spec, lines)
            running[task] = host
        merged, patience_s = Rescored(), spec.job.retry.shard_s + NO_EVENT * spec.job.retry.stall_s
        deadline = time.monotonic() + patience_s
        with _ended(running):
            while running:
                ready, _ = ray.wait(list(running), num_returns=1, timeout=TICK_S)
                for task in ready:
                    try:
                        merged.merge(_answer(next(task), f"a process that scored shards of {running[task]} again"))
                    except StopIteration:
                        del running[task]
                    deadline = time.monotonic() + patience_s
                if time.monotonic() > deadline:
                    raise ClusterLost(
                        f"rescore: no shard was scored again within {patience_s:g} s; is the cluster busy?"
                    )
                yield None
        yield merged

    def close(self) -> None:
        """Do nothing: the code that connected to the cluster also disconnects."""


@contextmanager
def _ended(running: Iterable[Any]) -> Iterator[None]:
    """Cancel the tasks that are left at the end: nobody waits for them any more, and another run may have followed."""
    try:
        yield
    finally:
        if ray.is_initialized():  # else `cancel` would start a Ray
            for task in running:
                ray.cancel(task, force=True)


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


def _begun(spec: WorkerSpec, steps: PreflightSteps, places: list[Piece]) -> tuple[Any, Callable[[], None]]:
    """Begin preflight in the process that waits for it, or in a new one. Returns its answers, and what ends it."""
    demand = Demand(spec.job.resources)
    warm = taken(spec.job.retry.stall_s) if demand.plain else None
    if warm is not None:
        answers = warm.run.options(**_STREAMED).remote(_captured, steps, spec, places)
        return answers, partial(ray.kill, warm)
    task: Any = ray.remote(**demand.options(), max_retries=0, max_calls=1, **_STREAMED)(_captured)
    answers = task.options(name="nightjar preflight").remote(steps, spec, places)
    return answers, partial(ray.cancel, answers, force=True)


def _captured(steps: PreflightSteps, spec: WorkerSpec, places: list[Piece]) -> Iterator[Outcome | Ready]:
    logs = capture(spec)
    predictors.warm(spec.job)  # the limit is for the model, not for the import of its library
    yield Ready()
    yield from observed(spec.job, steps, partial(ShardWorker, spec), places)
    logs.close()


def _take(job: Job, answers: Any, patience_s: float) -> Outcome | Ready | None:
    """As `protocol.Take`."""
    if not ray.wait([answers], timeout=patience_s)[0]:
        raise TimeoutError
    try:
        found: Outcome | Ready = ray.get(next(answers))
    except StopIteration:
        return None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, JobError):
            raise JobError(clip(str(error.cause))) from error
        raise WorkLost(f"failed with {clip(str(error.cause))}", died=False) from error
    except ray.exceptions.RuntimeEnvSetupError as error:
        if not job.resources.runtime_env.pip:
            raise ClusterLost(f"Ray cannot set up a process of the cluster: {clip(str(error))}") from error
        raise JobError(f"resources.runtime_env.pip: Ray cannot install it: {clip(str(error))}") from error
    except ray.exceptions.NodeDiedError as error:
        raise ClusterLost(f"the node on which preflight loaded the model was lost: {clip(str(error))}") from error
    except _LOST as error:
        raise WorkLost("ended its process (exit, signal or out of memory)", died=True) from error
    return found


def _call(work: Callable[[T], R], given: T) -> R:
    return work(given)


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
    """Where to place work that shall not run on this host again, if another node has room for it."""
    others = [node for node in alive() if node["NodeManagerHostname"] != host and demand.fitting(node)]
    return NodeAffinitySchedulingStrategy(others[0]["NodeID"], soft=True) if others else "DEFAULT"
