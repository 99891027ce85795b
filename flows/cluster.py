"""Which Ray a run uses: one of its own on this machine, or an existing one by address.

The one owner of Ray in this package. The default always asks Ray for a cluster of its own: left to itself it
would join whatever cluster it finds on the machine.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import grpc
import psutil
import ray
from prefect.task_runners import TaskRunner
from prefect_ray import RayTaskRunner
from ray._private import worker as ray_worker
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nightjar.flows.shipping import shipped
from nightjar.inference import memory
from nightjar.inference.engine.capacity import alive
from nightjar.inference.errors import ClusterError, NightjarError, RunFailed
from nightjar.inference.job import Job

T = TypeVar("T")

_print_to_stdstream = ray_worker.print_to_stdstream

ADDRESS = "NIGHTJAR_RAY"
"""Environment variable: the cluster of runs that name none."""

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
LOST = "the Ray cluster of this run was lost"
_REACH_S = 10.0
_joined = threading.Event()
"""Set while this process hangs on a cluster that it joined here."""
_TRIES = "3"
"""How often Ray tries to reach a cluster's head; each may take most of a minute."""


class ClusterRunner(RayTaskRunner):  # type: ignore[misc]
    """Submits to the Ray of this process. Which one that is, the flow settles once it has read its job."""

    def __enter__(self) -> Self:
        # Past RayTaskRunner's own, which would start a Ray or join whichever it finds.
        TaskRunner.__enter__(self)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        TaskRunner.__exit__(self, *exc_info)


def named(address: str | None) -> str | None:
    """The cluster that is asked for, here or by `NIGHTJAR_RAY`; None for one of the run's own."""
    return address or os.environ.get(ADDRESS) or None


def check_reports(address: str | None, api_url: str) -> None:
    """Whether what drives the run can report to this API: through `ray://` it runs on another machine.

    Raises:
        ClusterError: the API is on this machine's loopback.
    """
    wanted = named(address) or ""
    host = wanted.removeprefix("ray://").rpartition(":")[0].strip("[]")
    if wanted.startswith("ray://") and host not in _LOOPBACK and urlsplit(api_url).hostname in _LOOPBACK:
        raise ClusterError(
            f"--ray {wanted}: what drives the run is on that machine and cannot reach Prefect at {api_url}; set "
            "PREFECT_API_URL to a server that both reach"
        )


@contextmanager
def cluster(address: str | None, job: Job, env: dict[str, str], verbose: bool) -> Iterator[None]:
    """Connected to the run's cluster for as long as the context lasts; within another, to the same.

    address: `host:port`, `auto` or `ray://host:port`; None for `NIGHTJAR_RAY`, and without that for an own local
    cluster. env: settings the workers need.

    Raises:
        ClusterError: there is no usable cluster at the address.
        RunFailed: it was lost meanwhile.
    """
    with ExitStack() as connected:
        # Asked of Ray only if it is not known: through `ray://` that is a call, too.
        if not _joined.is_set() and not ray.is_initialized():
            connected.enter_context(_connected(named(address), job, env, verbose))
        try:
            yield
        except ray.exceptions.RayTaskError:
            raise
        except (ray.exceptions.RayError, grpc.RpcError) as error:
            # A call of this process's own: what becomes of tasks, their results say. Of a head that was replaced Ray
            # says that it wants a token.
            raise RunFailed(LOST) from error
        except ConnectionError as error:
            # The same through `ray://`.
            raise RunFailed(f"{LOST}: {str(error).partition('.')[0]}") from error


@contextmanager
def _connected(address: str | None, job: Job, env: dict[str, str], verbose: bool) -> Iterator[None]:
    options: dict[str, Any] = {
        "namespace": "nightjar",
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.CRITICAL,
        "configure_logging": True,
    }
    _keep_off_stdout(verbose)
    if not verbose:
        # What the client says of a connection that is lost, the run's end says, too.
        logging.getLogger("ray.util.client").setLevel(logging.CRITICAL)
        logging.getLogger("ray.util.client.logsclient").disabled = True  # this one sets its level itself
        warnings.filterwarnings("ignore", module=r"ray\.util\.client")
    with tempfile.TemporaryDirectory(prefix="nightjar-") as staging:
        if address is None:
            # Ray's processes inherit it; what stands in a runtime_env is written to logs.
            os.environ.update(env)
            with _inherited(memory.environment(job)):
                _start(address="local", include_dashboard=False, **options)
        else:
            _reach(address)
            taken = shipped({**memory.environment(job), **env}, Path(staging))
            _start(address=address, runtime_env=taken, **options)
        _joined.set()
        try:
            yield
        finally:
            _joined.clear()
            ray.shutdown()


@contextmanager
def _inherited(settings: dict[str, str]) -> Iterator[None]:
    """So is the environment of processes started meanwhile; this process's next run may have other settings."""
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def driving() -> dict[str, Any]:
    """How to submit tasks that drive: on this process's own node, so that losing another costs only what it scores.

    They need no CPU of their own, and Ray must not run one again that Prefect shows once.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": here}


def own_node() -> psutil.Process | None:
    """Ray's node process that this driver hangs on; None where it is not to be seen, as through `ray://`.

    Once it has ended, the cluster that this process joined is lost, even if another one answers at its address.
    Ray cannot be asked: what it has for that ends the whole process then.
    """
    here = ray.get_runtime_context().get_node_id()
    return next((each for each in _raylets() if any(here in word for word in each.info["cmdline"] or ())), None)


def has_ended(node: psutil.Process) -> bool:
    """Whether a node's process is there no more, or only because nobody asked how it ended."""
    try:
        return not node.is_running() or bool(node.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


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
    _reach(address)
    _start(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    try:
        nodes = alive()
        total = {kind: sum(node["Resources"].get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU")}
    finally:
        ray.shutdown()
    return f"{address}: {len(nodes)} nodes, {total['CPU']:g} CPUs, {total['GPU']:g} GPUs"


def _reach(address: str) -> None:
    """Fail at once where nobody listens, and sign in as `ray start` would: Ray waits many minutes for either."""
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", _TRIES)
    # A head uses the token it finds on its machine; a client does only when told to.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise _unusable(address, str(error)) from error
    if os.environ.get("RAY_USE_TLS", "0") == "0":
        _greet(address, host, port)
    if not address.startswith("ray://") and next(_raylets(), None) is None:
        # Ray would look for one for a minute.
        raise ClusterError(
            f"--ray {address}: this machine is no node of a Ray cluster, and only a node can drive a run: join it "
            f"without capacity (`ray start --address={address} --num-cpus=0`), or go through ray://{host}:10001"
        )


_NO_PROXY = [("grpc.enable_http_proxy", 0)]
"""As Ray's own connections: a cluster is no site behind the company's proxy."""


def _greet(address: str, host: str, port: str) -> None:
    """Ray's head and its client server both speak gRPC: with whoever does not, Ray would try for minutes."""
    with grpc.insecure_channel(f"{host}:{port}", options=_NO_PROXY) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_REACH_S)
        except grpc.FutureTimeoutError as error:
            raise _unusable(address, "something listens there, but it does not speak Ray's protocol") from error


def _raylets() -> Iterator[psutil.Process]:
    """Ray's node processes on this machine."""
    return (each for each in psutil.process_iter(["name", "cmdline"]) if each.info["name"] == "raylet")


def _start(address: str, **options: Any) -> None:
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        _connect(address, options)
        if threading.current_thread() is threading.main_thread():
            # Ray's own handler would end the process without a word.
            signal.signal(signal.SIGTERM, on_sigterm)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
        said = _essence(error)
        if address == "local":
            raise ClusterError(f"Ray could not start on this machine: {said}") from error
        raise _unusable(address, said) from error


def _keep_off_stdout(verbose: bool) -> None:
    """What Ray has to say of nodes goes to standard error, and only if asked for.

    It prints that to standard output whatever `log_to_driver` says, into the middle of `--json`, and has no setting
    for it.
    """

    def tell(data: dict[str, Any], ignore_prefix: bool) -> None:
        if verbose:
            _print_to_stdstream({**data, "is_err": True}, ignore_prefix)

    ray_worker.print_to_stdstream = tell


def _connect(address: str, options: dict[str, Any]) -> None:
    try:
        ray.init(address=address, **options)
    except ConnectionAbortedError:
        if not address.startswith("ray://"):
            raise
        # The head starts a process for each client and gives it 30 s: a busy one is asked once more.
        ray.init(address=address, **options)


def _essence(error: Exception) -> str:
    """What Ray says, on one line: its first one, but for versions, which it lists below that."""
    text = str(error).strip() or type(error).__name__
    if text.startswith("Version mismatch"):
        return ", ".join(line.strip() for line in text.splitlines() if line.strip()).replace(":,", ":")
    first, *more = text.splitlines()
    # A heading says nothing: what it is about stands at the end of what follows.
    return f"{first} {more[-1].strip()}" if first.endswith(":") and more else first


def _unusable(address: str, why: str) -> ClusterError:
    return ClusterError(
        f"no usable Ray cluster at {address}: {why.rstrip('.')}. Start one with `ray start --head`, check the address, "
        "its Ray and Python versions and its token (RAY_AUTH_MODE, RAY_AUTH_TOKEN), or leave --ray out"
    )
