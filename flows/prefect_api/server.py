"""The Prefect API for a command: the configured one, or a server of the command's own that runs as long as the command.

The command's own server is this module, run as a program. It ends with the process that started it, however that ends,
so that a killed run leaves no process behind. It uses the user's usual database, so that `prefect server start` shows
the run later. A run's server has only the API; the server of `nightjar serve` also has the pages and the services:
scheduling, late runs, automations.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import httpx
from prefect.logging.configuration import setup_logging
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED,
    PREFECT_CLOUD_API_URL,
    PREFECT_LOGGING_LEVEL,
    get_current_settings,
    temporary_settings,
)

from nightjar.flows.prefect_api.api import require
from nightjar.inference.errors import ClusterError

_AHEAD = "PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS"
_SERVER_ENV = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # Runs are made ahead, because none is made while this server is down. A run that was made ahead starts late.
    # Prefect's default is three.
    _AHEAD: "14",
    # The database counts the slots of concurrency limits. If the leases for them were only in memory, they would be
    # lost with the server, and the slot of a run that was cut off would never be free again.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
_KEPT_LINES = 20
USUAL_PORT = 4200
START_S = 120.0
_POLL_S = 0.1
_EVENT_TRIES = 2
"""How often an event is sent again if the API does not take it. From the fourth time on Prefect waits before each."""

_OWN_INSTEAD = (
    ", or let the run start its own (`unset PREFECT_API_URL`, and `prefect config unset PREFECT_API_URL` if it is in "
    "the profile)"
)


@dataclass
class PrefectApi:
    """The API that runs report to. own: whether it is a server that ends with this command."""

    url: str
    own: bool
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES), repr=False)

    def listen(self) -> None:
        """Keep the last lines that the own server prints, until it ends."""
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text := line.decode(errors="replace").strip():
                self.said.append(text)

    def wait(self) -> None:
        """Return when the own server answers. A configured API was asked before.

        Raises:
            ClusterError: The own server did not start.
        """
        if not self.own:
            return
        began = time.monotonic()
        # One client for all requests, without certificates: reading these takes longer than a request.
        with httpx.Client(timeout=5, verify=False) as client:
            while problem := self._problem(client):
                self.check_alive()
                if time.monotonic() - began > START_S:
                    raise ClusterError(
                        f"the local Prefect server at {self.url} did not start within {START_S:g} s: {problem}. Repeat "
                        "the command when the machine is less busy, or start a server yourself (`prefect server "
                        "start`) and set PREFECT_API_URL"
                    )
                time.sleep(_POLL_S)

    def _problem(self, client: httpx.Client) -> str:
        """Why the own server does not answer; '' if it does. This is the cheapest request, because it is repeated
        often.
        """
        try:
            answer = client.get(f"{self.url}/health")
        except httpx.HTTPError as error:
            return str(error)
        return "" if answer.status_code == httpx.codes.OK else "it answered, but not as a Prefect API"

    def check_alive(self) -> None:
        """Raise a ClusterError if this is the own server and it has ended."""
        if self.process is not None and self.process.poll() is not None:
            said = self.said[-1] if self.said else "no message"
            raise ClusterError(f"the Prefect server that this command started has ended ({said}); repeat the command")


def start_api(*, complete: bool = False) -> PrefectApi:
    """Return the configured API if it answers; else start an own server, for which `wait` waits.

    complete: start it with pages and services, and at Prefect's usual port if that is free.

    Raises:
        ClusterError: The configured API does not answer, or does not let this command in.
    """
    configured = PREFECT_API_URL.value()
    if configured:
        require(configured, _OWN_INSTEAD)
        return PrefectApi(configured, own=False)
    go_past_proxies()
    with listening(USUAL_PORT if complete else 0) as shared:
        url = f"http://127.0.0.1:{shared.getsockname()[1]}/api"
        words = [str(shared.fileno()), str(os.getpid()), *(["complete"] if complete else [])]
        process = subprocess.Popen(
            [sys.executable, "-m", "nightjar.flows.prefect_api.server", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**server_env(), **os.environ, "PREFECT_UI_API_URL": url},
            pass_fds=[shared.fileno()],
            # So that Ctrl-C does not reach the server: the run still has to report that it was interrupted.
            start_new_session=True,
        )
    api = PrefectApi(url, own=True, process=process)
    # The output is always read, because a full pipe would stop the server at its next warning.
    threading.Thread(target=api.listen, daemon=True, name="nightjar-server-log").start()
    return api


def go_past_proxies() -> None:
    """Make this process, and those that it starts, reach the own server without a proxy."""
    # urllib and httpx read one spelling, other libraries read the other; so both get the hosts of both.
    for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
        hosts = (os.environ.get(name) or os.environ.get(other, "")).strip()
        if hosts == "*":  # `*` means every host, but only if it stands alone
            continue
        known = [host.strip() for host in hosts.split(",")]
        missing = [host for host in ("127.0.0.1", "localhost") if host not in known]
        os.environ[name] = ",".join(filter(None, [hosts, *missing]))


def server_env() -> dict[str, str]:
    """Settings of an own server that differ from Prefect's defaults. The user's profile and environment have
    precedence.
    """
    given = get_current_settings().to_environment_variables(exclude_unset=True)
    return {name: given.get(name, usual) for name, usual in _SERVER_ENV.items()}


def nights_ahead() -> int:
    """The number of nights of a job that fall due while the own server is down and are run when it is up again."""
    return int(server_env()[_AHEAD])


def listening(wanted: int = 0) -> socket.socket:
    """A socket that listens at this port of 127.0.0.1, or at any free port if it is taken.

    The server inherits it. If the server were told a number, another process could take that port first.
    """
    try:
        return socket.create_server(("127.0.0.1", wanted))
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


@contextmanager
def reporting_to(api: PrefectApi, verbose: bool) -> Iterator[PrefectApi]:
    """Run flows with this API, and with a quiet terminal unless `verbose`. Stops an own server at the end."""
    settings = {
        PREFECT_API_URL: api.url,
        PREFECT_LOGGING_LEVEL: "INFO",
        # About 15 s for each report to the API, not a minute: the ledger does not need the API.
        PREFECT_CLIENT_MAX_RETRIES: min(3, PREFECT_CLIENT_MAX_RETRIES.value()),
        # Without this each process of the cluster would ask, and its task would fail if the API is away just then.
        PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False,
    }
    try:
        with temporary_settings(settings), _giving_up_events_soon(api), _linking(not api.own):
            setup_logging()
            if not verbose:
                _quiet_terminal()
            try:
                yield api
            finally:
                drain()
    finally:
        if api.process is not None:
            stop(api.process)


_pages: ContextVar[bool] = ContextVar("pages", default=True)


@contextmanager
def _linking(pages: bool) -> Iterator[None]:
    token = _pages.set(pages)
    try:
        yield
    finally:
        _pages.reset(token)


def has_pages() -> bool:
    """Whether the API of the run that goes on here has pages, which a person can see when the run is over."""
    return _pages.get()


@contextmanager
def _giving_up_events_soon(api: PrefectApi) -> Iterator[None]:
    """Make an event fail at once if the API is away. Prefect keeps it and sends it again when the API is back.

    By default Prefect tries to send each event for 7 s, one after the other, and waits for all of them when the process
    ends. So a command whose API is gone would end minutes after its run. Prefect Cloud has a client of its own, which
    is left as it is.
    """
    from prefect.events.clients import PrefectEventsClient
    from prefect.events.worker import EventsWorker

    if api.url.startswith(PREFECT_CLOUD_API_URL.value()):
        yield
        return
    EventsWorker.set_client_override(PrefectEventsClient, reconnection_attempts=_EVENT_TRIES)
    try:
        yield
    finally:
        EventsWorker.set_client_override(None)


def _quiet_terminal() -> None:
    """Keep Prefect's logs off the terminal. They go to its API, and the run's page shows them."""
    logging.raiseExceptions = False  # logs that cannot be sent to the API are not printed either
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        if isinstance(handler, logging.StreamHandler) and type(handler).__module__.startswith("prefect."):
            handler.setLevel(logging.CRITICAL + 1)


def drain() -> None:
    """Send the logs and events that this process has queued, while the server is up."""
    # The thread has no event loop: where one runs, as in a notebook, Prefect would return an awaitable, and drain
    # nothing.
    sending = threading.Thread(target=_drain, daemon=True, name="nightjar-drain")
    sending.start()
    sending.join()


def _drain() -> None:
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for service in (APILogWorker, EventsWorker):
        service.drain_all(timeout=10)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server's process in order; after a while, by force."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_with(parent: int) -> None:
    """End this process when its parent ends, in any way, also if it ended before this call. Returns at once."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, daemon=True, name="nightjar-parent").start()


def main() -> None:
    """Serve the Prefect API until the parent process ends.

    Arguments: the number of an inherited file, which is a socket that listens; the parent's pid; `complete`. The pid is
    an argument, because after the imports this process may be an orphan already.
    """
    shared, parent, complete = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), "complete" in sys.argv[3:]
    end_with(parent)
    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral=not complete, final=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on")).run(sockets=[shared])


if __name__ == "__main__":
    main()
