"""Long-lived processes of a night (serve, worker) and a client of the API they report to."""

from __future__ import annotations

import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.filters import EventFilter, EventNameFilter
from prefect.events.schemas.events import ReceivedEvent
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from nightjar.flows.prefect_api.ownserver import listening
from nightjar.flows.prefect_api.server import start_api
from support import answering, wait_until

OFTEN = {"PREFECT_RUNNER_POLL_FREQUENCY": "1", "PREFECT_WORKER_QUERY_SECONDS": "1"}
"""How often a serving process or a worker asks for runs that are due, in seconds. Prefect's default is 10."""


@contextmanager
def client(api: str) -> Iterator[SyncPrefectClient]:
    """A client of the API at this URL."""
    # Settings were read from the environment before a test changed it.
    given = {PREFECT_API_URL: api, PREFECT_API_AUTH_STRING: os.environ.get("PREFECT_API_AUTH_STRING")}
    with temporary_settings(given), get_client(sync_client=True) as made:
        yield made


@contextmanager
def own_server() -> Iterator[str]:
    """The URL of the server that a command starts where no API is configured, once it answers."""
    with temporary_settings({PREFECT_API_URL: None}):
        api = start_api()
    with answering(api) as url:
        yield url


def deployments(api: str, *names: str) -> dict[str, DeploymentResponse]:
    """The deployments of these names, by name."""
    with client(api) as asked:
        found = asked.read_deployments(deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=list(names))))
    return {each.name: each for each in found}


def runs_of(api: str, deployment: DeploymentResponse) -> list[FlowRun]:
    """The flow runs of a deployment, in the order they are due."""
    wanted = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment.id]))
    with client(api) as asked:
        found = asked.read_flow_runs(flow_run_filter=wanted)
    return sorted(found, key=lambda run: str(run.expected_start_time))


def start_run(api: str, deployment: DeploymentResponse, **parameters: Any) -> FlowRun:
    """What the form of the page does: a run of the deployment, now, with changed parameters."""
    with client(api) as asked:
        return asked.create_flow_run_from_deployment(deployment.id, parameters=parameters)


def state_of(api: str, run: FlowRun) -> Any:
    """The state of a run now."""
    with client(api) as asked:
        return asked.read_flow_run(run.id).state


def ended(api: str, run: FlowRun, timeout_s: float = 180) -> FlowRun:
    """The run, once it has ended."""
    with client(api) as asked:
        try:
            wait_until(lambda: asked.read_flow_run(run.id).state.is_final(), timeout_s, f"{run.name} has ended")
        except AssertionError as error:
            error.add_note(f"it is {asked.read_flow_run(run.id).state!r}")
            raise
        return asked.read_flow_run(run.id)


@dataclass
class Server:
    """A Prefect server that a test may stop."""

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def prefect_server(home: Path, port: int = 0) -> Iterator[Server]:
    """A server on the database in `home`, at a free port if none is given; killed in the end."""
    with listening(port, port) as shared:
        port = shared.getsockname()[1]
        words = [sys.executable, "-m", "nightjar.flows.prefect_api.ownserver", str(shared.fileno()), str(os.getpid())]
        env = {**os.environ, "PREFECT_HOME": str(home)}
        process = subprocess.Popen(words, env=env, pass_fds=[shared.fileno()])
    started = Server(f"http://127.0.0.1:{port}/api", process)
    try:
        wait_until(lambda: _answers(started.url), 120, "the Prefect server answers")
        yield started
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


class _Line(socketserver.BaseRequestHandler):
    """Passes the bytes of one connection on to the server, and back."""

    def handle(self) -> None:
        assert isinstance(self.server, _Exchange)
        with socket.create_connection(self.server.upstream) as further:
            self.server.connected += [self.request, further]
            back = threading.Thread(target=self._pass_on, args=(further, self.request), daemon=True)
            back.start()
            self._pass_on(self.request, further)
            back.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # either side, or who cuts the line, may close it
            while chunk := source.recv(65536):
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_WR)


class _Exchange(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, upstream: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        self.upstream = upstream
        self.connected: list[socket.socket] = []

    def cut(self) -> None:
        """Close every connection and take no more, as where a server was killed."""
        self.shutdown()
        self.server_close()
        for each in self.connected:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def severable(api: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Another URL of this API, and what makes it go away for those who know that URL; other clients keep the API."""
    parts = urlsplit(api)
    assert parts.hostname
    assert parts.port
    exchange = _Exchange((parts.hostname, parts.port))
    threading.Thread(target=exchange.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{exchange.server_address[1]}/api", exchange.cut
    finally:
        exchange.cut()


@dataclass
class Service:
    """A process that goes on until it is told to end, and what it printed."""

    process: subprocess.Popen[bytes]
    log: Path
    ends_by: signal.Signals = signal.SIGINT

    def says(self, text: str) -> bool:
        """Whether it has printed this."""
        assert self.process.poll() is None, self.log.read_text()
        return text in self.log.read_text()

    def descendants(self, name: str) -> list[psutil.Process]:
        """Processes below it whose command line holds `name`."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        found = []
        for each in below:
            try:
                if name in " ".join(each.cmdline()):
                    found.append(each)
            except psutil.Error:
                continue
        return found


@contextmanager
def service(
    folder: Path, *words: str | Path, env: dict[str, str], program: str = "nightjar", cwd: Path | None = None
) -> Iterator[Service]:
    """`nightjar …` (or another program here) in the background; ended by SIGINT if not told otherwise."""
    log = folder / f"{'-'.join(map(str, words[:1])).replace('/', '_')}.log"
    binary = str(Path(sys.executable).parent / program)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [binary, *map(str, words)],
            env={**os.environ, "PYTHONUNBUFFERED": "1", **OFTEN, **env},
            stdout=file,
            stderr=file,
            cwd=cwd,
            start_new_session=True,
        )
    running = Service(process, log)
    try:
        yield running
    finally:
        end(process, by=running.ends_by)


def end(process: subprocess.Popen[bytes], patience_s: float = 45, by: signal.Signals = signal.SIGINT) -> None:
    """End it, as Ctrl-C would; whatever is left then is killed, by id."""
    below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(by)
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    finally:
        for each in below:
            if each.is_running() and each.status() != psutil.STATUS_ZOMBIE:
                wait_gone(each)


def wait_gone(process: psutil.Process) -> None:
    """A descendant ends by itself a little after its parent; if not, it is killed."""
    try:
        process.wait(20)
    except psutil.TimeoutExpired:
        process.kill()


def events(api: str, name: str) -> list[ReceivedEvent]:
    """The events of this name that the server has taken in."""
    with client(api) as asked:
        return asked.read_events(EventFilter(event=EventNameFilter(name=[name])), limit=50).events
