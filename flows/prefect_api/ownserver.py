"""The process of a Prefect server that ends with this one.

This module imports nothing of Prefect. So a command can begin the server first, and import Prefect, which takes as
long, while the server does so, too. The server's process is this module, run as a program. It ends with the process
that started it, however that ends, so that a killed run leaves no process behind. It uses the user's usual database, so
that `prefect server start` shows the run later. A run's server has only the API; the server of `nightjar serve` also
has the pages and the services: scheduling, late runs, automations.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Self

from nightjar.inference.errors import ClusterError
from nightjar.inference.garbage import collect_seldom

USUAL_PORT = 4200
_API = "PREFECT_API_URL"
_KEPT_LINES = 20
_END_S = 10.0
"""Seconds that a process has to end in order; then it is ended by force."""
_BEGUN_S = 60.0
"""The same for a server that may still be making its database. Some of Prefect's migrations cannot be continued if they
are cut off in the middle: then no server would start any more."""


class OwnServer:
    """A Prefect server of this process's own, which is not there before `begin`. Ended with the context.

    answers: whether it has answered once.
    """

    def __init__(self) -> None:
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.answers = False
        self._said: deque[str] = deque(maxlen=_KEPT_LINES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self, *, complete: bool = False) -> None:
        """Start its process, unless that is done, and do not wait for it.

        complete: with pages and services, and at Prefect's usual port if that is free.
        """
        if self.process is not None:
            return
        go_past_proxies()
        with listening(USUAL_PORT if complete else 0) as shared:
            self.url = f"http://127.0.0.1:{shared.getsockname()[1]}/api"
            words = [str(shared.fileno()), str(os.getpid()), *(["complete"] if complete else [])]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nightjar.flows.prefect_api.ownserver", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "PREFECT_UI_API_URL": self.url},
                pass_fds=[shared.fileno()],
                # So that Ctrl-C does not reach the server: the run still has to report that it was interrupted.
                start_new_session=True,
            )
        # The output is always read, because a full pipe would stop the server at its next warning.
        threading.Thread(target=self._listen, daemon=True, name="nightjar-server-log").start()

    def begin_early(self) -> None:
        """Begin before Prefect is imported, unless an API seems to be configured: only Prefect itself can tell."""
        if not _seems_configured():
            self.begin()

    def check_alive(self) -> None:
        """Raise a ClusterError if it has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            said = self._said[-1] if self._said else "no message"
            raise ClusterError(f"the Prefect server that this command started has ended ({said}); repeat the command")

    def end(self) -> None:
        """End its process, if there is one.

        One that still imports ends at once, and one that makes its database, which takes seconds, when that is done.
        """
        if self.process is not None:
            stop(self.process, _END_S if self.answers else _BEGUN_S)

    def _listen(self) -> None:
        """Keep the last lines that it prints, until it ends."""
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text := line.decode(errors="replace").strip():
                self._said.append(text)


def _seems_configured() -> bool:
    """Whether Prefect's settings have an API. Before they are imported: whether the environment or a file that Prefect
    reads mentions one, or names a profile.
    """
    if "prefect.settings" in sys.modules:
        from prefect.settings import PREFECT_API_URL

        return bool(PREFECT_API_URL.value())
    if os.environ.get(_API) or os.environ.get("PREFECT_PROFILE"):
        return True
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect").expanduser()
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml").expanduser()
    words = {profiles: _API, Path(".env"): _API, Path("prefect.toml"): "", Path("pyproject.toml"): "tool.prefect"}
    return any(_mentions(path, word) for path, word in words.items())


def _mentions(path: Path, word: str) -> bool:
    try:
        return path.is_file() and word in path.read_text(errors="replace")
    except OSError:  # Prefect will say what is wrong with it
        return True


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


def listening(wanted: int = 0) -> socket.socket:
    """A socket that listens at this port of 127.0.0.1, or at any free port if it is taken.

    The server inherits it. If the server were told a number, another process could take that port first.
    """
    try:
        return socket.create_server(("127.0.0.1", wanted))
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


def stop(process: subprocess.Popen[bytes], patience_s: float = _END_S) -> None:
    """End a server's process in order; after a while, by force."""
    process.terminate()
    try:
        process.wait(timeout=patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_with(parent: int) -> None:
    """End this process when its parent ends, in any way, also if it ended before this call. Returns at once."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)  # as `stop` does
        time.sleep(_BEGUN_S)
        os._exit(0)

    threading.Thread(target=watch, daemon=True, name="nightjar-parent").start()


def main() -> None:
    """Serve the Prefect API until the parent process ends.

    Arguments: the number of an inherited file, which is a socket that listens; the parent's pid; `complete`. The pid is
    an argument, because this process may be an orphan already.
    """
    shared, parent, complete = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), "complete" in sys.argv[3:]
    end_with(parent)
    collect_seldom()
    from nightjar.flows.prefect_api.application import serve

    serve(shared, complete=complete)


if __name__ == "__main__":
    main()
