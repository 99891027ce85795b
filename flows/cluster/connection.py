"""The connection to a run's cluster: one of its own on this machine, or an existing one by address.

The default always asks Ray for a cluster of its own: left to itself it would join whatever cluster it finds on the
machine.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import grpc
import psutil
import ray
from prefect.exceptions import TerminationSignal
from prefect_ray.task_runners import PrefectRayFuture
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nightjar.flows.cluster import is_connected, joined, local, named
from nightjar.flows.cluster.internals import has_ended, keep_off_stdout
from nightjar.flows.cluster.reaching import raylets, reach, unusable
from nightjar.flows.cluster.shipping import shipped
from nightjar.flows.cluster.starting import essence, is_rays, start
from nightjar.inference.engine.ray.capacity import alive
from nightjar.inference.errors import ClusterError, ClusterLost, NightjarError, PassEnded, ShardsFailed
from nightjar.inference.job.model import Job
from nightjar.inference.scoring import memory

T = TypeVar("T")

LOST = "the Ray cluster of this run was lost"
_QUESTION_S = 0.5
"""So long Ray is asked for a task's end at a time."""

_ANSWER_S = 10.0
"""So long a question that lasts longer is waited for, when the cluster is let go of."""

_failed = threading.Event()
"""Set when something was raised meanwhile that Ray may have to do with, wherever it was caught: then Ray's logs are
wanted."""
_RAYS = (ClusterError, ClusterLost, PassEnded, ShardsFailed)
"""Errors of ours that Ray's logs may explain: a process that was killed for its memory, a node that went."""
_OURS = (NightjarError, KeyboardInterrupt, SystemExit, TerminationSignal)
"""What explains itself: a gate, a wrong job, a person who stopped the run."""
_asking: set[threading.Thread] = set()
"""Those that wait for tasks of the cluster."""
_let_go = threading.Event()
"""Set when they have to end: the connection is about to be taken down."""


@contextmanager
def cluster(address: str | None, job: Job, env: dict[str, str], verbose: bool) -> Iterator[None]:
    """Connected to the run's cluster for as long as the context lasts; within another, to the same.

    address: `host:port`, `auto` or `ray://host:port`; None for `NIGHTJAR_RAY`, and without that for an own local
    cluster. env: settings the workers need.

    Raises:
        ClusterError: there is no usable cluster at the address.
        ClusterLost: it was lost meanwhile.
    """
    with ExitStack() as connected:
        if not is_connected():
            connected.enter_context(_connected(named(address), job, env, verbose))
        connected.push(_note_failure)
        try:
            yield
        except ray.exceptions.RayTaskError:
            raise
        except (ray.exceptions.RayError, grpc.RpcError) as error:
            # A call of this process's own: what becomes of tasks, their results say. Of a head that was replaced Ray
            # says that it wants a token.
            raise ClusterLost(LOST) from error
        except ConnectionError as error:
            # The same through `ray://`.
            raise ClusterLost(f"{LOST}: {str(error).partition('.')[0]}") from error


@contextmanager
def _connected(address: str | None, job: Job, env: dict[str, str], verbose: bool) -> Iterator[None]:
    options: dict[str, Any] = {
        "namespace": "nightjar",
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.CRITICAL,
        "configure_logging": True,
    }
    keep_off_stdout(verbose)
    if not verbose:
        # What the client says of a connection that is lost, the run's end says, too.
        logging.getLogger("ray.util.client").setLevel(logging.CRITICAL)
        logging.getLogger("ray.util.client.logsclient").disabled = True  # this one sets its level itself
        warnings.filterwarnings("ignore", module=r"ray\.util\.client")
    with _own(job, env, options) if address is None else _elsewhere(address, job, env, options):
        _failed.clear()
        _let_go.clear()
        joined.set()
        try:
            yield
        finally:
            joined.clear()
            # A thread that is inside Ray's code while the connection is taken down faults, and the process with it.
            _let_go.set()
            for thread in list(_asking):
                thread.join(_ANSWER_S)


def _own(job: Job, env: dict[str, str], options: dict[str, Any]) -> AbstractContextManager[None]:
    # Ray's processes inherit it; what stands in a runtime_env is written to logs.
    os.environ.update(env)
    return local.local_ray(memory.environment(job), options, _failed.is_set)


@contextmanager
def _elsewhere(address: str, job: Job, env: dict[str, str], options: dict[str, Any]) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="nightjar-") as staging:
        reach(address)
        taken = shipped({**memory.environment(job), **env}, Path(staging))
        _join(address, {**options, "runtime_env": taken})
        try:
            yield
        finally:
            ray.shutdown()


def ended(task: PrefectRayFuture[Any]) -> threading.Event:
    """Set once the task has ended. A signal that arrives inside Ray's own wait is lost: this waits in a thread.

    Never set if the cluster is let go of before that.
    """
    done = threading.Event()

    def ask() -> None:
        try:
            while not has_ended(task) and not _let_go.is_set():
                task.wait(_QUESTION_S)
        finally:
            _asking.discard(threading.current_thread())
            if not _let_go.is_set():
                done.set()

    thread = threading.Thread(target=ask, daemon=True, name="nightjar-wait")
    _asking.add(thread)
    thread.start()
    return done


def _note_failure(error: type[BaseException] | None, *_: object) -> None:
    if error is not None and (issubclass(error, _RAYS) or not issubclass(error, _OURS)):
        _failed.set()


def driving() -> dict[str, Any]:
    """How to submit tasks that drive: on this process's own node, so that losing another costs only what it scores.

    They need no CPU of their own, and Ray must not run one again that Prefect shows once.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": here}


def lifelines() -> list[psutil.Process]:
    """The processes that this driver's cluster stands or falls with, as far as they are to be seen here.

    Its node's: once it has ended, the cluster that this process joined is lost, even if another one answers at its
    address. And the head of a Ray of its own. Ray cannot be asked: what it has for that ends the whole process then.
    """
    here = ray.get_runtime_context().get_node_id()
    own = (each for each in raylets() if any(here in word for word in each.info["cmdline"] or ()))
    return [*islice(own, 1), *local.lifelines()]


def call(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in the cluster, as the flow's tasks are: through `ray://` nothing else can drive Ray Data.

    Raises:
        NightjarError: whatever the function raised.
    """
    task = ray.remote(**driving())(function)
    try:
        result: T = ray.get(task.remote(*arguments))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, NightjarError):
            raise error.cause from None
        raise
    return result


def describe_cluster(address: str | None) -> str:
    """What a run would find there, in words; a local one is not started for it.

    Raises:
        ClusterError: there is no usable cluster at the address.
    """
    if address is None:
        return f"no cluster is named: each run starts one of its own on this machine ({os.cpu_count()} CPUs)"
    reach(address)
    _join(address, {"log_to_driver": False, "logging_level": logging.CRITICAL})
    try:
        nodes = alive()
        total = {kind: sum(node["Resources"].get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU")}
    finally:
        ray.shutdown()
    return f"{address}: {len(nodes)} nodes, {total['CPU']:g} CPUs, {total['GPU']:g} GPUs"


def _join(address: str, options: dict[str, Any]) -> None:
    try:
        try:
            start(address, options)
        except ConnectionAbortedError:
            if not address.startswith("ray://"):
                raise
            # The head starts a process for each client and gives it 30 s: a busy one is asked once more.
            start(address, options)
    except Exception as error:
        if not is_rays(error):
            raise
        raise unusable(address, essence(error)) from error
