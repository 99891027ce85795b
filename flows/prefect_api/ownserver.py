"""The process of a Prefect server that ends with this one, and what it serves.

The server is this module, run as a program. It uses the usual database of the user. The server of a run has only the
API; that of `nightjar serve` also has the pages and the services: scheduling, late runs, automations.

Whoever may use the API can run code as this user, so the server asks for a password. A file that only this user may
read has it, and other processes get it by their environment.

Prefect's own temporary server (`SubprocessASGIServer` of 3.9.1) does not serve: it stays when this process is killed,
Ctrl-C ends it before the run has reported, and it has no password.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from nightjar.inference.errors import ClusterError
from nightjar.inference.privatefiles import private_text
from nightjar.inference.process import collect_seldom

if TYPE_CHECKING:
    from prefect.settings.legacy import Setting

USUAL_PORT = 4200
_ASKED, _GIVEN = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
"""The settings with the password that a server asks for, and with the one that a client gives."""

HOSTS = ("127.0.0.1", "localhost")
"""The host names of requests that are answered: a web page whose own name leads to this machine must not get in."""

_SIGN_IN = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Sign in</title>
<script>
localStorage.setItem("prefect-password", btoa(decodeURIComponent(location.hash.slice(1))));
location.replace("/deployments");
</script>
"""
"""Prefect's pages keep the password so. A browser does not send what follows `#` to any server."""

START_S = 120.0
_POLL_S = 0.1
_END_S = 10.0
"""Seconds that a process has to end in order; then it is ended by force."""
_BEGUN_S = 60.0
"""The same for a server that may still be making its database. Some of Prefect's migrations cannot be continued if they
are cut off in the middle: then no server would start any more."""


class PrefectApi:
    """The API that runs report to: the configured one, at this URL, or a server of this process's own (`begin`), which
    ends with the context.

    password: of an own server, `name:password`, as clients and pages must give it; empty for a configured API.
    """

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.password = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._answers = False
        self._said = "no message"  # the last line that it printed

    @property
    def own(self) -> bool:
        """Whether it is a server that ends with this process."""
        return bool(self.password)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self, *, complete: bool = False) -> None:
        """Start its process, and do not wait for it. Raises ClusterError as `passwords`.

        complete: with pages and services, and at Prefect's usual port if that is free.
        """
        self.password = os.environ.get(_ASKED) or passwords()["Pages"]
        go_past_proxies()
        with listening(None if complete else 0, USUAL_PORT) as shared:
            self.url = f"http://127.0.0.1:{shared.getsockname()[1]}/api"
            words = [str(shared.fileno()), str(os.getpid()), *(["complete"] if complete else [])]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nightjar.flows.prefect_api.ownserver", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "PREFECT_UI_API_URL": self.url, _ASKED: self.password, _GIVEN: self.password},
                pass_fds=[shared.fileno()],
                # So that Ctrl-C does not reach the server: the run still has to report that it was interrupted.
                start_new_session=True,
            )
        # The output is always read, because a full pipe would stop the server at its next warning.
        printed = (self.process.stderr,)
        threading.Thread(target=self._listen, args=printed, daemon=True, name="nightjar-server-log").start()

    def wait(self) -> None:
        """Return when an own server answers. A configured API was asked before.

        Raises:
            ClusterError: The own server did not start.
        """
        if not self.own:
            return
        import httpx

        began = time.monotonic()
        # One client for all requests, without certificates: reading these takes longer than a request.
        with httpx.Client(timeout=5, verify=False) as client:
            while True:
                try:
                    if client.get(f"{self.url}/health").status_code == httpx.codes.OK:
                        break
                    problem = "it answered, but not as a Prefect API"
                except httpx.HTTPError as error:
                    problem = str(error)
                self.check_alive()
                if time.monotonic() - began > START_S:
                    raise ClusterError(
                        f"the local Prefect server at {self.url} did not start within {START_S:g} s: {problem}. Repeat "
                        "the command when the machine is less busy, or set PREFECT_API_URL to a server that runs"
                    )
                time.sleep(_POLL_S)
        self._answers = True

    def check_alive(self) -> None:
        """Raise a ClusterError if it is an own server that has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            raise ClusterError(
                f"the Prefect server that this command started has ended ({self._said}); repeat the command"
            )

    def end(self) -> None:
        """End its process, if there is one.

        One that still imports ends at once, and one that makes its database, which takes seconds, when that is done.
        """
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=_END_S if self._answers else _BEGUN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _listen(self, printed: IO[bytes]) -> None:
        for line in printed:
            self._said = line.decode(errors="replace").strip() or self._said


def password_file() -> Path:
    """The file with the passwords of the pages that this user's commands serve."""
    home = os.environ.get("PREFECT_HOME") or Path.home() / ".prefect"
    return Path(home).expanduser() / "nightjar-passwords.json"


def passwords() -> dict[str, str]:
    """The passwords, each `name:password`: of Prefect's `Pages` and API, and of the `Reports`, which may be sent in the
    clear. They stay the same, so that a browser stays signed in. Raises ClusterError if their file cannot be used.
    """
    path = password_file()
    try:
        text = private_text(path, lambda: json.dumps({name: _new_password() for name in ("Pages", "Reports")}))
        return {name: str(json.loads(text)[name]) for name in ("Pages", "Reports")}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ClusterError(f"{path}: the passwords of the pages cannot be kept there: {error}; remove it") from error


def _new_password() -> str:
    return f"nightjar:{secrets.token_urlsafe(24)}"


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


def listening(port: int | None, usual: int, host: str = "127.0.0.1") -> socket.socket:
    """A socket that listens at this port; None: at the usual one or, if that is taken, at any free one.

    Raises:
        OSError: This machine has no such host, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, usual if port is None else port), family=family)
    except OSError:
        if port is not None:
            raise
        return socket.create_server((host, 0), family=family)


def end_with(parent: int) -> None:
    """End this process when its parent ends, in any way, also if it ended before this call. Returns at once."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)  # as `PrefectApi.end` does
        time.sleep(_BEGUN_S)
        os._exit(0)

    threading.Thread(target=watch, daemon=True, name="nightjar-parent").start()


def server_settings(port: int = 0) -> dict[Setting, Any]:
    """Settings that an own server has besides the user's. The user's profile and environment have precedence."""
    from prefect import settings

    given = settings.get_current_settings().to_environment_variables(exclude_unset=True)
    usual: dict[Setting, Any] = {
        settings.PREFECT_SERVER_ANALYTICS_ENABLED: False,
        # Runs are made ahead, because none is made while this server is down. A run that was made ahead starts late.
        # Prefect's default is three.
        settings.PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS: 14,
        # The database counts the slots of concurrency limits. If the leases for them were only in memory, they would
        # be lost with the server, and the slot of a run that was cut off would never be free again.
        settings.PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE: "prefect.server.concurrency.lease_storage.filesystem",
        settings.PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS: ",".join(f"http://{host}:{port}" for host in HOSTS),
    }
    return {setting: value for setting, value in usual.items() if setting.name not in given}


def serve(shared: socket.socket, *, complete: bool) -> None:
    """Serve the Prefect API on a socket that listens, until this process is told to end.

    complete: as in `PrefectApi.begin`.
    """
    from prefect.settings import temporary_settings

    with temporary_settings(server_settings(shared.getsockname()[1])):
        # Imported with these settings.
        import uvicorn
        from prefect.server.api.server import create_app
        from prefect.server.services.perpetual_services import get_perpetual_services
        from prefect.server.services.repossessor import monitor_expired_leases
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.responses import HTMLResponse
        from starlette.routing import Route

        for service in get_perpetual_services():
            # A run's server, too, frees the slots of runs that were killed: there may never be another one.
            service.run_in_ephemeral |= service.function is monitor_expired_leases
        app = create_app(ephemeral=not complete, final=True)
        app.router.routes.insert(0, Route("/sign-in", lambda _: HTMLResponse(_SIGN_IN)))
        # Around the application, and not in it: Prefect's services (automations, say) ask the application itself, as
        # the host `prefect-in-memory`.
        guarded = TrustedHostMiddleware(app, allowed_hosts=[*HOSTS], www_redirect=False)
        _close_database()
        # One server at a time starts: two that make or migrate the same database at once fail.
        starts = password_file().with_name("nightjar-server.lock").open("w")
        fcntl.flock(starts, fcntl.LOCK_EX)

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                starts.close()

        Server(uvicorn.Config(guarded, log_level="error", lifespan="on")).run(sockets=[shared])


def _close_database() -> None:
    """Let only this user read the database, which has logs and parameters, and what this process writes from now on."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    os.umask(0o077)
    kind, _, file = str(PREFECT_API_DATABASE_CONNECTION_URL.value()).partition("?")[0].partition(":///")
    for end in ("", "-wal", "-shm") if kind.startswith("sqlite") and file else ():
        with suppress(FileNotFoundError):
            Path(f"{file}{end}").chmod(0o600)


def main() -> None:
    """Serve the Prefect API until the parent process ends.

    Arguments: the number of an inherited socket; the pid of the parent, which may have ended already; `complete`.
    """
    shared, parent, complete = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), "complete" in sys.argv[3:]
    end_with(parent)
    collect_seldom()
    serve(shared, complete=complete)


if __name__ == "__main__":
    main()
