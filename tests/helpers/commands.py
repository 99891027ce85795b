"""Commands run as a person or a machine runs them, and what came of them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from forked import Done
from nightjar.inference.storage.lake import LakeStorage
from support import Lake, marked, nightjar

DATE = "2026-11-19"
MONTHS = ("01", "07")
"""What of the flights lies on S3."""

SERVERS = ("nightjar.flows.prefect_api.ownserver", "prefect.server.api.server", "prefect server start")

UNUSED = frozenset({"ray._raylet", "ray.data", "torch", "boto3", "obstore"})
"""What a run on the local disk and the local engine has no use for, nor one with nothing to score."""


@dataclass
class Seen:
    """What was seen of processes.

    servers: command lines of Prefect servers. actors: what Ray calls its processes by their work. listeners: address →
    who listens there.
    """

    servers: set[str] = field(default_factory=set)
    actors: set[str] = field(default_factory=set)
    listeners: dict[str, set[str]] = field(default_factory=dict)

    def listening(self) -> set[str]:
        """The names of processes that listen."""
        return set[str]().union(*self.listeners.values())

    def look_at(self, process: psutil.Process) -> None:
        """Take down what is to be seen of one process at this moment."""
        name, line = process.name(), " ".join(process.cmdline())
        self.servers.update([line] if any(server in line for server in SERVERS) else [])
        self.actors.update([line.strip()] if line.startswith("ray::") else [])
        for each in process.net_connections("inet"):
            if each.status == psutil.CONN_LISTEN:
                self.listeners.setdefault(each.laddr.ip, set()).add(name)


@dataclass
class Flights:
    """The flights example, run twice: first for people, reporting to an API; then for machines, with nothing to score.

    left: in the temporary folder of the first one's Ray, when it had ended.
    """

    job: Path
    first: subprocess.CompletedProcess[str]
    again: Done
    scoring: Seen
    repeating: Seen
    left: list[str]

    @property
    def out(self) -> Path:
        """Where the output lies."""
        return self.job.parent / "out"


@dataclass
class OnS3:
    """Two months of the flights example, run with everything on S3, and where it lies."""

    bucket: str
    job: Path
    env: dict[str, str]
    storage: LakeStorage
    ended: Done

    @property
    def said(self) -> dict[str, Any]:
        """What it says with --json."""
        found: dict[str, Any] = json.loads(self.ended.stdout)
        return found

    def names(self) -> list[str]:
        """Every object in the bucket."""
        return [entry.uri for entry in self.storage.list(self.bucket)]


@dataclass
class Partial:
    """A run that fails: one of its files is damaged."""

    lake: Lake
    ended: Done


@contextmanager
def watching(mark: dict[str, str]) -> Iterator[Seen]:
    """Looks at the processes with this environment all the time."""
    seen = Seen()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            for process in marked(mark):
                with suppress(psutil.Error):
                    seen.look_at(process)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


@dataclass
class Watched:
    """A command that was run at a terminal: what it wrote, as bytes came, and what stays on the screen."""

    lake: Lake
    exit_code: int
    written: str

    @property
    def failed_attempts(self) -> str:
        """The lost process is charged to the shards that it had begun, which may be several."""
        failed = sum(record["t"] == "failed" for record in self.lake.records())
        assert failed
        return f"{failed} failed attempt{'s' if failed > 1 else ''}"

    @property
    def frames(self) -> list[str]:
        """The states of the live display, without colours and without what stays when it has gone."""
        live = self.written.rpartition("\x1b[?25h")[0]
        plain = re.sub(r"\x1b\[[0-9;?]*m", "", live)
        return [frame.replace("\r\n", "\n") for frame in re.split(r"(?:\r|\x1b\[\d*[A-Ka-k]|\x1b\[\?25[lh])+", plain)]


def at_terminal(*words: str | Path, env: dict[str, str], columns: int = 100) -> tuple[int, str]:
    """Run `nightjar …` at a terminal of so many columns; its exit code and all it wrote."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    full = {**os.environ, **env, "TERM": "xterm-256color"}
    process = subprocess.Popen([nightjar(), *map(str, words)], env=full, stdin=its, stdout=its, stderr=its)
    os.close(its)
    written = b""
    while chunk := _read(ours):
        written += chunk
    os.close(ours)
    return process.wait(), written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other side is closed
        return b""
