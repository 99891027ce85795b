"""What processes do at the moment, for a command of the tests that does not end."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil


def stacks(pid: int) -> str:
    """What a process and those that it started do, or why that cannot be seen."""
    seen = []
    with suppress(psutil.Error):
        for each in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with suppress(psutil.Error, subprocess.TimeoutExpired):
                spent = f"{each.cpu_times().user:.0f} s of CPU"
                seen.append(f"{each.pid} {each.status()} {spent} {' '.join(each.cmdline())[:200]}")
                spied = [Path(sys.executable).parent / "py-spy", "dump", "--pid", str(each.pid)]
                done = subprocess.run(spied, capture_output=True, text=True, timeout=60)
                seen.append(done.stdout if done.returncode == 0 else done.stderr.partition("\n")[0])
    return "\n".join(seen)
