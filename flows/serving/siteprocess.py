"""The process that serves the pages of all jobs, beside `nightjar serve`: nothing that happens to it reaches a night.

It listens on an inherited socket, and ends with the process that started it. If it ends by itself, it is started again.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from ipaddress import ip_address

from nightjar.flows.prefect_api.ownserver import end_with, passwords, stop
from nightjar.flows.serving.lookup import Served
from nightjar.inference.errors import ClusterError

USUAL_PORT = 4201
LOCAL = "127.0.0.1"

_TRIES = 3
"""How often in a row the process is started again that ended soon."""

_SOON_S = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pages are: the socket on which they are asked for, and the host that was asked for."""

    shared: socket.socket
    host: str

    @property
    def address(self) -> str:
        """What a person types into a browser."""
        name = socket.gethostname() if ip_address(self.shared.getsockname()[0]).is_unspecified else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.shared.getsockname()[1]}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names by which the pages may be asked for; on an address of this machine alone, only its own."""
        if ip_address(self.shared.getsockname()[0]).is_loopback:
            return (LOCAL, "localhost", "[::1]", "::1", self.host)
        return ("*",)


@contextmanager
def place(host: str, port: int | None) -> Iterator[Place]:
    """Listen. port: None for the usual one or, if that is taken, any other.

    Raises:
        ClusterError: This machine has no such host, or the port is taken.
    """
    try:
        shared = _listening(host, port)
    except OSError as error:
        named = f"--reports-host {host}" + (f" --reports-port {port}" if port else "")
        raise ClusterError(f"{named}: no pages can be served there: {error}; choose another one") from error
    with shared:
        yield Place(shared, host)


def _listening(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, USUAL_PORT if port is None else port), family=family)
    except OSError:
        if port is not None:
            raise
        return socket.create_server((host, 0), family=family)


@contextmanager
def pages_of(served: Sequence[Served], at: Place, api: str, tell: Callable[[str], object]) -> Iterator[None]:
    """Serve the pages of these jobs in this context. api: Prefect's. tell: is told that the process ended by itself."""
    process = _Process(served, at, api, tell)
    try:
        yield
    finally:
        process.end()


class _Process:
    """The process, and a thread that starts it again."""

    def __init__(self, served: Sequence[Served], at: Place, api: str, tell: Callable[[str], object]) -> None:
        given = {"hosts": at.hosts, "password": passwords()["Reports"], "served": [asdict(each) for each in served]}
        self._given = json.dumps(given).encode()
        self._shared, self._api, self._tell = at.shared, api, tell
        self._changing, self._ends = threading.Lock(), False
        self._process = self._started()
        self._watching = threading.Thread(target=self._watch, daemon=True, name="nightjar-pages")
        self._watching.start()

    def end(self) -> None:
        """End it in order."""
        with self._changing:
            self._ends = True
        stop(self._process)
        self._watching.join()

    def _started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "nightjar.flows.serving.siteprocess", str(self._shared.fileno()), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PREFECT_API_URL": self._api},
            pass_fds=[self._shared.fileno()],
            start_new_session=True,  # Ctrl-C is for the runs; this process is ended after them
        )
        assert process.stdin is not None
        with suppress(OSError), process.stdin:  # it has ended already, which is told below
            process.stdin.write(self._given)
        return process

    def _watch(self) -> None:
        tries = _TRIES
        while True:
            began = time.monotonic()
            code = self._process.wait()
            tries = _TRIES if time.monotonic() - began > _SOON_S else tries - 1
            with self._changing:
                if self._ends:
                    return
                told = f"the process that serves the reports has ended (exit code {code})"
                if not tries:
                    self._tell(f"{told} again and again, and stays away; the jobs are still served")
                    return
                self._tell(f"{told} and is started again")
                self._process = self._started()


def main() -> None:
    """Serve the pages until the parent process ends. Arguments: the number of an inherited socket, and the parent's
    pid; standard input: what is served.
    """
    shared, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    end_with(parent)
    import uvicorn

    from nightjar.flows.serving.site import site

    given = json.load(sys.stdin)
    app = site([Served(**each) for each in given["served"]], given["hosts"], given["password"])
    config = uvicorn.Config(app, log_level="error", lifespan="off", server_header=False, timeout_graceful_shutdown=3)
    uvicorn.Server(config).run(sockets=[shared])
    # A thread may still wait for a storage that does not answer.
    os._exit(0)


if __name__ == "__main__":
    main()
