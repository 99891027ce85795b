"""The connection to a run's cluster: one of its own on this machine, or an existing one by address.

By default Ray is told to start a new cluster; otherwise it would join any cluster that it finds on the machine.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import ray
import ray.exceptions
from prefect_ray.context import remote_options
from ray.exceptions import RayError

import nightjar.flows
import nightjar.inference
from nightjar.flows.cluster import is_connected, joined, local, named
from nightjar.flows.cluster.internals import SIGNS_IN, off_stdout, sign_in
from nightjar.flows.cluster.local import essence, is_rays, start
from nightjar.flows.cluster.tasks import (
    LOST,
    POLL_S,
    closed,
    driving,
    importing,
    polling,
    raylets,
    run_task,
    wait_for_imports,
)
from nightjar.inference.engine.ray import ALONE
from nightjar.inference.engine.ray.capacity import alive
from nightjar.inference.engine.ray.warming import warmed
from nightjar.inference.errors import ClusterError, ClusterLost
from nightjar.inference.job.model import Job
from nightjar.inference.process import environment
from nightjar.inference.run.lease import Succession
from nightjar.inference.run.request import RunRequest
from nightjar.inference.scoring import memory


def shipped(env: dict[str, str], staging: Path) -> dict[str, Any]:
    """The runtime environment for other machines: this package. The job's code is sent separately, as a snapshot."""
    package = staging / "nightjar"
    for module in (nightjar.flows, nightjar.inference):
        assert module.__file__ is not None
        source = Path(module.__file__).parent
        shutil.copytree(source, package / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return {"env_vars": env, "py_modules": [str(package)]}


_REACH_S = 10.0
"""The longest time in seconds to connect to a cluster, and again to be answered in its protocol."""

_TRIES = "3"
"""How often Ray tries to reach a cluster's head; each try may take most of a minute."""

_NO_PROXY = [("grpc.enable_http_proxy", 0)]
"""Connect without a proxy, as Ray itself does."""


def reach(address: str) -> None:
    """Fail at once if nobody listens at the address, and sign in as `ray start` would. Ray itself would wait for
    minutes.

    Raises:
        ClusterError: No run can use the address.
    """
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", _TRIES)
    # A head uses the token that it finds on its machine; a client uses it only when told to.
    logging.getLogger(SIGNS_IN).setLevel(logging.ERROR)
    try:
        sign_in()
    except RayError as error:
        raise unusable(address, essence(error)) from error
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise unusable(address, str(error)) from error
    if os.environ.get("RAY_USE_TLS", "0") == "0":
        _greet(address, host, port)
    if not address.startswith("ray://") and next(raylets(), None) is None:
        # Ray itself would search for a node for a minute.
        raise ClusterError(
            f"--ray {address}: this machine is not a node of a Ray cluster, and only a node can drive a run: join it "
            f"without capacity (`ray start --address={address} --num-cpus=0`), or go through ray://{host}:10001"
        )


def _greet(address: str, host: str, port: str) -> None:
    """Check that the server speaks gRPC, as Ray's head and client server do; with any other Ray would try for
    minutes.
    """
    with grpc.insecure_channel(f"{host}:{port}", options=_NO_PROXY) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_REACH_S)
        except grpc.FutureTimeoutError:
            raise unusable(address, "something listens there, but it does not speak Ray's protocol") from None


def unusable(address: str, why: str) -> ClusterError:
    """The error for a cluster that cannot be used, in one sentence with the cause."""
    return ClusterError(
        f"no usable Ray cluster at {address}: {why.rstrip('.')}. Start one with `ray start --head`, check the address, "
        "its Ray and Python versions and its token (RAY_AUTH_MODE, RAY_AUTH_TOKEN), or leave --ray out"
    )


_failed = threading.Event()
"""Set when an error was raised, wherever it was caught. Then Ray's logs are kept."""


@contextmanager
def cluster(address: str | None, job: Job, env: dict[str, str], verbose: bool) -> Iterator[None]:
    """Connect to the run's cluster for this context; a nested context uses the same connection.

    address: `host:port`, `auto` or `ray://host:port`; None for `NIGHTJAR_RAY`, and without that for an own local
    cluster. env: environment variables for the workers.

    Raises:
        ClusterError: There is no usable cluster at the address.
        ClusterLost: The cluster was lost meanwhile.
    """
    with ExitStack() as connected:
        if not is_connected():
            connected.enter_context(_connected(named(address), job, env, verbose))
        elif not joined.is_set():
            closed.clear()  # an earlier run set it, and the caller has connected since
        connected.push(_note_failure)
        try:
            yield
        except ray.exceptions.RayTaskError:
            raise
        except (ray.exceptions.RayError, grpc.RpcError) as error:
            # A call of this process itself failed; failures of tasks are in their results. If the head was replaced,
            # Ray says that it needs a token.
            raise ClusterLost(LOST) from error
        except ConnectionError as error:
            # The same with `ray://`.
            raise ClusterLost(f"{LOST}: {str(error).partition('.')[0]}") from error


@contextmanager
def on_cluster(
    address: str | None, request: RunRequest, env: dict[str, str], verbose: bool
) -> Iterator[Callable[..., Any]]:
    """Connect to a run's cluster, and yield what runs a task there, with its arguments, and returns its result."""
    with cluster(address, request.job, env, verbose), remote_options(**driving()):
        wait_for_imports()
        yield partial(run_task, Succession(request.storage, request.run_uri, request.flow_run))


@contextmanager
def _connected(address: str | None, job: Job, env: dict[str, str], verbose: bool) -> Iterator[None]:
    options: dict[str, Any] = {
        "namespace": "nightjar",
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.CRITICAL,
        "configure_logging": True,
    }
    if not verbose:
        # The run's end says that the connection was lost, so the client's messages are not needed.
        logging.getLogger("ray.util.client").setLevel(logging.CRITICAL)
        logging.getLogger("ray.util.client.logsclient").disabled = True  # this one sets its level itself
        warnings.filterwarnings("ignore", module=r"ray\.util\.client")
    with off_stdout(verbose), _own(job, env, options) if address is None else _elsewhere(address, job, env, options):
        _failed.clear()
        closed.clear()
        joined.set()
        try:
            yield
        finally:
            joined.clear()
            alone = polling.acquire(timeout=POLL_S)
            closed.set()
            if alone:
                polling.release()


@contextmanager
def _own(job: Job, env: dict[str, str], options: dict[str, Any]) -> Iterator[None]:
    # Ray's processes inherit the environment; Ray would write the content of a runtime_env to its logs.
    theirs = {**memory.environment(job), ALONE: "1"}
    # Imports begin early only here: the cores of an existing cluster may be busy with somebody else's work.
    with environment(env), local.local_ray(theirs, options, _failed.is_set), warmed(job), importing(driving()):
        yield


@contextmanager
def _elsewhere(address: str, job: Job, env: dict[str, str], options: dict[str, Any]) -> Iterator[None]:
    reach(address)
    # Ray sends what is staged while it connects, so a command that is killed later leaves nothing behind.
    with tempfile.TemporaryDirectory(prefix="nightjar-") as staging:
        taken = shipped({**memory.environment(job), **env}, Path(staging))
        _join(address, {**options, "runtime_env": taken})
    try:
        yield
    finally:
        ray.shutdown()


def _note_failure(error: type[BaseException] | None, *_: object) -> None:
    if error is not None:
        _failed.set()


def describe_cluster(address: str | None) -> str:
    """The cluster that a run would use, in words. A local cluster is not started for this.

    Raises:
        ClusterError: There is no usable cluster at the address.
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
            # The head starts a process for each client, and waits 30 s for it; a busy head gets a second try.
            start(address, options)
    except Exception as error:
        if not is_rays(error):
            raise
        raise unusable(address, essence(error)) from error
