"""The chaos driver: starts the real command, kills it without warning, and sees what it leaves running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from support import Lake, nightjar, wait_until

_LINGERING = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
"""Ray's own, one of each a node: idle, they try for 60 s to report that their raylet is gone, and then end."""


@dataclass
class Victim:
    """A `nightjar run` in a process of its own."""

    lake: Lake
    process: subprocess.Popen[str]
    started: set[psutil.Process] = field(default_factory=set)

    @classmethod
    def start(cls, lake: Lake, scratch: Path, *words: str, **env: str) -> Victim:
        """Start it with a Prefect server of its own, as on a machine where nothing else runs."""
        settings = {**os.environ, "PREFECT_HOME": str(scratch / "prefect"), **env}
        settings.pop("PREFECT_API_URL", None)
        command = [nightjar(), "run", str(lake.job_path), "--date", "2026-11-19", "--json", *words]
        return cls(lake, subprocess.Popen(command, env=settings, stdout=-1, stderr=-1, text=True))

    def wait_for_receipts(self, count: int) -> set[str]:
        """Return what is committed once it is that much."""

        def enough() -> bool:
            assert self.process.poll() is None, self.process.communicate()[1][-2000:]
            return len(committed(self.lake)) >= count

        wait_until(enough, 120, f"{count} shards are committed")
        return committed(self.lake)

    def kill(self) -> None:
        """SIGKILL to the command alone: what it had started has to end by itself."""
        self._look()
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def end(self) -> dict[str, Any]:
        """Wait for its end; what it says of itself."""
        wait_until(lambda: self._look() is not None, 150, "the command ends")
        said, trouble = self.process.communicate()
        assert self.process.returncode == 0, trouble[-2000:]
        found: dict[str, Any] = json.loads(said)
        return found

    def assert_nothing_left(self) -> None:
        """Every process it had started has ended."""

        def left() -> list[psutil.Process]:
            return [process for process in self.started if _runs(process)]

        assert self.started
        wait_until(lambda: not left(), 60, "no process of the command is left")

    def _look(self) -> int | None:
        """Remember what it has started so far; its exit code, if it has ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.started.update(psutil.Process(self.process.pid).children(recursive=True))
        return self.process.poll()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.name() not in _LINGERING
    except psutil.NoSuchProcess:
        return False


def committed(lake: Lake, epoch: int | None = None) -> set[str]:
    """Shards with a receipt in the ledger of the first revision (of that epoch)."""
    receipts = [record for record in lake.records() if record["t"] == "receipt"]
    return {record["shard"] for record in receipts if epoch in (None, record["epoch"])}
