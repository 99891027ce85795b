"""Whole commands, each run once a session and looked at by many tests."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from support import FLIGHTS, Lake, command, leaves_nothing, marked, nightjar

DATE = "2026-11-19"
SERVERS = ("nightjar.flows.server", "prefect.server.api.server", "prefect server start")

EVENTFUL = '''
import os
from pathlib import Path


def score(batch):
    """Twice x, slowly. One row cannot be scored, and one ends its process when it is first seen."""
    x, seen = batch["x"], Path(__file__).with_name("seen")
    time.sleep(0.2)
    if 2500 in x and not seen.exists():
        seen.touch()
        os._exit(9)
    if 1234 in x:
        raise ValueError("1234 cannot be scored")
    return {"score": x * 2}
'''


@dataclass
class Flights:
    """The flights example, run twice: first for people, reporting to an API; then for machines, on its own."""

    job: Path
    first: subprocess.CompletedProcess[str]
    again: subprocess.CompletedProcess[str]
    servers_seen: set[str]
    """Command lines of the Prefect servers that the second command and its workers started."""

    @property
    def out(self) -> Path:
        """Where the output lies."""
        return self.job.parent / "out"


@pytest.fixture(scope="session")
def api_env(prefect_api: str, prefect_home: Path) -> dict[str, str]:
    """The environment of commands that report to the session's Prefect server."""
    return {"PREFECT_API_URL": prefect_api, "PREFECT_HOME": str(prefect_home)}


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Flights:
    """Both runs; neither leaves a process behind."""
    folder = tmp_path_factory.mktemp("flights")
    job = yaml.safe_load((FLIGHTS / "job.yaml").read_text())
    job["input"]["uri"] = str(FLIGHTS / "data")
    job["model"]["path"] = str(FLIGHTS / "models" / "delay.pt2")
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    with leaves_nothing() as mark:
        first = command("run", path, "--date", DATE, env={**api_env, **mark})
    with leaves_nothing() as mark, watching_servers(mark) as seen:
        own = {"PREFECT_HOME": str(tmp_path_factory.mktemp("home")), "PREFECT_API_URL": ""}
        again = command("run", path, "--date", DATE, "--json", env={**own, **mark})
    return Flights(path, first, again, seen)


@contextmanager
def watching_servers(mark: dict[str, str]) -> Iterator[set[str]]:
    """Collects the command lines of Prefect servers among the processes with this environment."""
    seen: set[str] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            for process in marked(mark):
                with suppress(psutil.Error):
                    line = " ".join(process.cmdline())
                    seen.update([line] if any(server in line for server in SERVERS) else [])

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
    def frames(self) -> list[str]:
        """The states of the live display, without colours."""
        plain = re.sub(r"\x1b\[[0-9;?]*m", "", self.written)
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


@pytest.fixture(scope="session")
def eventful(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Watched:
    """A run at a terminal with a quarantined row and a lost process."""
    lake = Lake(tmp_path_factory.mktemp("eventful"))
    lake.write_model(EVENTFUL)
    lake.ready(name="eventful", resources={"actors": 2}, retry__max_quarantined=0.001)
    code, written = at_terminal("run", lake.job_path, "--date", DATE, env=api_env)
    return Watched(lake, code, written)


@dataclass
class Partial:
    """A run that fails: one of its files is damaged."""

    lake: Lake
    ended: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def partial(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Partial:
    """Seven of eight shards can be scored."""
    lake = Lake(tmp_path_factory.mktemp("partial")).ready(name="partial")
    damaged = lake.folder / "data" / "part-02.parquet"
    data = bytearray(damaged.read_bytes())
    data[100:400] = bytes(300)  # pages of the first row group; the footer stays as it is
    damaged.write_bytes(data)
    return Partial(lake, command("run", lake.job_path, "--date", DATE, env=api_env))
