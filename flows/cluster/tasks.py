"""Runs the flow's tasks on a Ray cluster. They take no CPUs, so that Ray Data, which they drive, has all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import psutil
import ray
import ray.exceptions
from prefect import Task
from prefect_ray.task_runners import PrefectRayFuture
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nightjar.inference.errors import ClusterLost, NightjarError
from nightjar.inference.ledger.holders import has_ended
from nightjar.inference.process import seldom_collected
from nightjar.inference.run.lease import Succession, taken_over

T = TypeVar("T")

LOST = "the Ray cluster of this run was lost"

polling, closed = threading.Lock(), threading.Event()
"""The lock is held by a thread that asks Ray about a task; the event is set when the connection is closed. A thread
inside Ray's code would crash the process while it is closed, and a later question would start another Ray."""

POLL_S = 10.0
"""The longest wait in seconds for such a thread before the connection is closed."""

_POLL_PAUSE_S = 0.05
"""Seconds between two such questions."""

_importing: list[Any] = []
"""The task that imports what the flow's tasks need: Ray gives its process to the next task of the same kind."""

_IMPORT_S = 30.0
"""The longest wait for it in seconds; then the flow's tasks begin anyway."""

_LOOK_S = 10.0
"""Seconds between two checks that the cluster still exists while a step is waited for."""

_HEARS_S = 60.0
"""Seconds that a step has to end after another writer replaced this one; then it is not waited for any more."""


@contextmanager
def importing(options: dict[str, Any]) -> Iterator[None]:
    """Import in this context, in a process of the connected cluster, and do not wait for it.

    options: Ray's options of the flow's tasks.
    """
    _importing.append(ray.remote(**options)(_import).remote())
    try:
        yield
    finally:
        _importing.clear()


def wait_for_imports() -> None:
    """Wait until the imports have ended. If a task began sooner, it would get another process, which begins anew."""
    deadline = time.monotonic() + _IMPORT_S
    # Short questions, because signals during Ray's own wait are lost.
    while _importing and time.monotonic() < deadline and not ray.wait(_importing, timeout=0)[0]:
        time.sleep(_POLL_PAUSE_S)


def _import() -> None:
    with seldom_collected():
        import prefect.artifacts
        import prefect.task_engine
        import prefect_ray

        from nightjar.inference.run import publishing, scoring

    del prefect, prefect_ray, publishing, scoring


def driving() -> dict[str, Any]:
    """Options for tasks that drive the run: they run on this process's node, so that another node's loss ends no task.

    They need no CPU, and Ray must not repeat a task, because Prefect shows each task once.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": here}


def lifelines() -> list[psutil.Process]:
    """The processes on this machine whose end means that the cluster is lost.

    One is this node's raylet: when it ends, the joined cluster is lost, even if another cluster answers at the address.
    The other is the head of the Ray that this process started, if any; Ray itself would notice its death only after a
    minute. Asking Ray is no alternative, because Ray then ends the whole process.
    """
    here = ray.get_runtime_context().get_node_id()
    own = (each for each in raylets() if any(here in word for word in each.info["cmdline"] or ()))
    heads = (each for each in psutil.Process().children() if each.name() == "gcs_server")
    return [*islice(own, 1), *heads]


def raylets() -> Iterator[psutil.Process]:
    """Ray's node processes on this machine."""
    return (each for each in psutil.process_iter(["name", "cmdline"]) if each.info["name"] == "raylet")


def call(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in the cluster, like the flow's tasks: with `ray://` Ray Data can be driven only from there.

    Raises:
        NightjarError: The error that the function raised.
    """
    task = ray.remote(**driving())(function)
    try:
        result: T = ray.get(task.remote(*arguments))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, NightjarError):
            raise error.cause from None
        raise
    return result


def run_task(succession: Succession, task: Task[Any, Any], *given: Any) -> Any:
    """Run a task in the cluster, and return its result. succession: of the run's ledger.

    Raises:
        NightjarError: The error that the task raised.
        ClusterLost: The task's process, or the whole cluster, was lost.
        Held: Another writer has taken the run over, and the task has not ended since.
    """
    future: Any = task.submit(*given)
    needed = lifelines()
    while not has_ended_within(future, _LOOK_S):
        # Ray itself reports this, with the task; but if another head has replaced the lost one, Ray may wait for ever.
        if any(map(has_ended, needed)) and not has_ended_within(future, _LOOK_S):
            raise ClusterLost(LOST)
        # The step's own process learns from the ledger that it was replaced, and ends. But this process, if it stood
        # still, may never learn of that end.
        if (other := succession.successor()) and not has_ended_within(future, _HEARS_S):
            raise taken_over(other)
    future.wait()
    if future.state.is_crashed():
        raise ClusterLost(how_lost(future.state.data, str(future.state.message)))
    return future.result()


def has_ended_within(future: PrefectRayFuture[Any], patience_s: float) -> bool:
    """Whether a task ends within this time, or Ray cannot be asked any more; then `future.wait()` learns the error.

    Ray is asked briefly and often, because signals during its own wait are lost.
    """
    deadline = time.monotonic() + patience_s
    while True:
        with polling:
            try:
                if not closed.is_set() and ray.wait([future.wrapped_future], timeout=0)[0]:
                    return True
            except Exception:  # noqa: BLE001 - with `ray://` a lost connection raises a bare one
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_PAUSE_S)


def how_lost(cause: object, message: str) -> str:
    """What became of a task's process. cause: Ray's error. message: Prefect's, of any other cause."""
    if isinstance(cause, ray.exceptions.OutOfMemoryError):
        why = "Ray ended it, because its node ran short of memory"
    elif isinstance(cause, ray.exceptions.NodeDiedError):
        why = "its node was lost"
    elif isinstance(cause, ray.exceptions.WorkerCrashedError):
        why = "from outside, by a signal, or by the system because memory ran short; Ray does not say which"
    else:
        why = message.splitlines()[0]
    return f"the process that drives the run was ended: {why}. The same command goes on with what is missing"
