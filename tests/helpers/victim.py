"""The chaos driver: starts the real command, kills it without warning, and sees what it leaves running."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil

from support import HELPERS, Lake, nightjar, wait_until

_LINGERING = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
"""Ray's own, one of each a node: idle, they try for 60 s to report that their raylet is gone, and then end."""


@dataclass
class Victim:
    """A `nightjar run` in a process of its own; what it prints goes to `output` with .out and .err."""

    lake: Lake
    process: subprocess.Popen[bytes]
    output: Path
    started: set[psutil.Process] = field(default_factory=set)

    @classmethod
    def start(cls, lake: Lake, scratch: Path, *words: str, date: str = "2026-11-19", **env: str) -> Victim:
        """Start it; with a Prefect server of its own, as on a machine where nothing else runs, unless told of one."""
        settings = {**os.environ, "PREFECT_HOME": str(scratch / "prefect"), "PREFECT_API_URL": "", **env}
        command = [nightjar(), "run", str(lake.job_path), "--date", date, "--json", *words]
        output = scratch / f"command-{uuid.uuid4().hex[:8]}"
        with output.with_suffix(".out").open("wb") as out, output.with_suffix(".err").open("wb") as err:
            return cls(lake, subprocess.Popen(command, env=settings, stdout=out, stderr=err), output)

    @property
    def said(self) -> str:
        """What it wrote to standard output."""
        return self.output.with_suffix(".out").read_text()

    @property
    def trouble(self) -> str:
        """What it wrote to standard error."""
        return self.output.with_suffix(".err").read_text(errors="replace")

    def wait_for_receipts(self, count: int) -> set[str]:
        """Return what is committed once it is that much."""

        def enough() -> bool:
            assert self.look() is None, self.trouble[-2000:]
            return len(committed(self.lake)) >= count

        wait_until(enough, 120, f"{count} shards are committed")
        return committed(self.lake)

    def kill(self) -> None:
        """SIGKILL to the command alone: what it had started has to end by itself."""
        self.look()
        self.process.kill()
        self.process.wait()

    def end(self) -> dict[str, Any]:
        """Wait for its end; what it says of itself."""
        wait_until(lambda: self.look() is not None, 150, "the command ends")
        assert self.process.returncode == 0, self.trouble[-2000:]
        found: dict[str, Any] = json.loads(self.said)
        return found

    def assert_nothing_left(self) -> None:
        """Every process it had started has ended."""
        assert self.started
        wait_until(lambda: not running(self.started), 60, "no process of the command is left")

    def look(self) -> int | None:
        """Remember what it has started so far; its exit code, if it has ended."""
        self.started.update(tree(self.process)[1:])
        return self.process.poll()


def killed_at_random(
    steps: str, *words: str | Path, random: Random, chance: float, within_s: tuple[float, float]
) -> tuple[int, str]:
    """Run a script in a process of its own, which may be killed. chance: that it is, and within_s: after how long.

    Returns its exit code and what it wrote to standard error.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", steps, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(HELPERS)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if random.random() < chance:
        time.sleep(random.uniform(*within_s))
        process.kill()
    _, said = process.communicate(timeout=240)
    return process.returncode, said


def tree(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """A process and all below it; nothing once it has ended, because its id may be that of another process then."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.poll() is None:
            parent = psutil.Process(process.pid)
            return [parent, *parent.children(recursive=True)]
    return []


def running(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that run, what lingers by design left out."""
    return [process for process in processes if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    try:
        # A process id may be somebody else's by now.
        alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return alive and process.name() not in _LINGERING
    except psutil.NoSuchProcess:
        return False


def committed(lake: Lake, epoch: int | None = None) -> set[str]:
    """Shards with a receipt in the ledger of the first revision (of that epoch)."""
    receipts = [record for record in lake.records() if record["t"] == "receipt"]
    return {record["shard"] for record in receipts if epoch in (None, record["epoch"])}
