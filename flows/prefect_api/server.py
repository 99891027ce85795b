"""Which Prefect API is reported to: the configured one, or a server of the command's own for as long as it runs.

The own server is this module run as a program. It ends with the process that started it, however that ends,
so that a killed run leaves nothing behind; its database is the user's usual one, so that the run can be
looked at later with `prefect server start`. A run's server has the API only; that of `nightjar serve` has
the pages and the services as well: scheduling, late runs, automations.
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
from dataclasses import dataclass, field

import httpx
from prefect.logging.configuration import setup_logging
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED,
    PREFECT_LOGGING_LEVEL,
    get_current_settings,
    temporary_settings,
)

from nightjar.flows.prefect_api.api import require
from nightjar.inference.errors import ClusterError

_AHEAD = "PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS"
_SERVER_ENV = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # A night is run late if its run was made before it fell due, and while this server is down nobody makes one.
    # Prefect makes three ahead.
    _AHEAD: "14",
    # Slots of concurrency limits are counted in the database; kept in memory, the leases behind them would be
    # forgotten with the server, and the slot of a run that was cut off would never be free again.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
_KEPT_LINES = 20
USUAL_PORT = 4200
START_S = 120.0
_POLL_S = 0.1
_OWN_INSTEAD = (
    ", or let the run start its own (`unset PREFECT_API_URL`, and `prefect config unset PREFECT_API_URL` if it is in "
    "the profile)"
)


@dataclass
class PrefectApi:
    """Where runs are reported. `own`: a server that ends with this command."""

    url: str
    own: bool
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES), repr=False)

    def listen(self) -> None:
        """Keep the last lines that the own server says, until it ends."""
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text := line.decode(errors="replace").strip():
                self.said.append(text)

    def wait(self) -> None:
        """Return once the own server answers; the configured one was asked before.

        Raises:
            ClusterError: it did not start.
        """
        if not self.own:
            return
        began = time.monotonic()
        # One client for all questions, and no certificates for it: reading them takes longer than asking.
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
        """Asked every moment while it starts, and of nobody but ourselves: the cheapest question will do."""
        try:
            answer = client.get(f"{self.url}/health")
        except httpx.HTTPError as error:
            return str(error)
        return "" if answer.status_code == httpx.codes.OK else "it answered, but not as a Prefect API"

    def check_alive(self) -> None:
        """Raise a ClusterError if it is the own server, and has ended."""
        if self.process is not None and self.process.poll() is not None:
            said = self.said[-1] if self.said else "no message"
            raise ClusterError(f"the Prefect server that this command started has ended ({said}); repeat the command")


def start_api(*, complete: bool = False) -> PrefectApi:
    """The configured API, which answers, or an own server that has begun to start: `wait` waits for it.

    complete: with pages and services, and at Prefect's usual port if that is free.

    Raises:
        ClusterError: the configured API does not answer, or does not let this command in.
    """
    configured = PREFECT_API_URL.value()
    if configured:
        require(configured, _OWN_INSTEAD)
        return PrefectApi(configured, own=False)
    port = _free_port(USUAL_PORT if complete else 0)
    url = f"http://127.0.0.1:{port}/api"
    go_past_proxies()
    words = [str(port), str(os.getpid()), *(["complete"] if complete else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "nightjar.flows.prefect_api.server", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**server_env(), **os.environ, "PREFECT_UI_API_URL": url},
        # Ctrl-C is for the run, which still has to report that it was interrupted.
        start_new_session=True,
    )
    api = PrefectApi(url, own=True, process=process)
    # Read all the time: a full pipe would stop the server at its next warning.
    threading.Thread(target=api.listen, daemon=True, name="nightjar-server-log").start()
    return api


def go_past_proxies() -> None:
    """The own server is no site behind the company's proxy, for this process and for those it starts."""
    # urllib and httpx read one spelling, others the other: each also gets what only the other one had.
    for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
        hosts = (os.environ.get(name) or os.environ.get(other, "")).strip()
        if hosts == "*":  # means every host, but only if it stands alone
            continue
        known = [host.strip() for host in hosts.split(",")]
        missing = [host for host in ("127.0.0.1", "localhost") if host not in known]
        os.environ[name] = ",".join(filter(None, [hosts, *missing]))


def server_env() -> dict[str, str]:
    """Settings of an own server that are not Prefect's defaults. What the user set, profile or environment, counts."""
    given = get_current_settings().to_environment_variables(exclude_unset=True)
    return {name: given.get(name, usual) for name, usual in _SERVER_ENV.items()}


def nights_ahead() -> int:
    """So many nights of a job that fall due while the own server is down are run when it is up again."""
    return int(server_env()[_AHEAD])


def _free_port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return _free_port(0)
        return int(probe.getsockname()[1])


@contextmanager
def reporting_to(api: PrefectApi, verbose: bool) -> Iterator[PrefectApi]:
    """Settings under which flows run: this API, and a quiet terminal unless `verbose`. Stops an own server."""
    settings = {
        PREFECT_API_URL: api.url,
        PREFECT_LOGGING_LEVEL: "INFO",
        # Some 15 s for each thing the flow tells the API, not a minute: the ledger does not need it.
        PREFECT_CLIENT_MAX_RETRIES: min(3, PREFECT_CLIENT_MAX_RETRIES.value()),
        # Each process of the cluster would ask, and fail its task if the API is away just then.
        PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False,
    }
    try:
        with temporary_settings(settings):
            setup_logging()
            if not verbose:
                _quiet_terminal()
            try:
                yield api
            finally:
                # What is still queued goes out while there is somebody to take it. In a thread without an event loop:
                # where one runs, as in a notebook, Prefect would give something to be awaited, and drain nothing.
                drain = threading.Thread(target=_drain, daemon=True, name="nightjar-drain")
                drain.start()
                drain.join()
    finally:
        _stop(api)


def _quiet_terminal() -> None:
    """Prefect's logs go to its API, where the run's page shows them, and not to the terminal."""
    logging.raiseExceptions = False  # what cannot be sent to the API is not printed either
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        if isinstance(handler, logging.StreamHandler) and type(handler).__module__.startswith("prefect."):
            handler.setLevel(logging.CRITICAL + 1)


def _drain() -> None:
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for service in (APILogWorker, EventsWorker):
        service.drain_all(timeout=10)


def _stop(api: PrefectApi) -> None:
    if api.process is None:
        return
    api.process.terminate()
    try:
        api.process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        api.process.kill()
        api.process.wait()


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, whichever way it went; also if it went before this was asked."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def main() -> None:
    """Serve the Prefect API on 127.0.0.1, until the parent process ends: PORT, the parent's pid, `complete` or not.

    The pid is handed over: whoever asks for it here, once everything is imported, may be an orphan already.
    """
    port, parent, complete = int(sys.argv[1]), int(sys.argv[2]), "complete" in sys.argv[3:]
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral=not complete, final=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", lifespan="on")


if __name__ == "__main__":
    main()
