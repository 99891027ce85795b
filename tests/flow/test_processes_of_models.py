"""Processes that the user's model starts, below the real command, with Prefect in the process that forks them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import support
from support import command

CASES = support.ROOT / "tests" / "cases"


def test_a_model_forks_and_starts_processes_as_in_a_script_of_its_own(tmp_path: Path, api_env: dict[str, str]) -> None:
    """Process, pools and DataLoader; fork, spawn and forkserver. Their sockets are nobody else's answers."""
    folder = tmp_path / "case"
    shutil.copytree(CASES / "worker-processes", folder)
    subprocess.run([sys.executable, "make.py"], cwd=folder, check=True)
    done = command("run", "job.yaml", "--engine", "local", env=api_env, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "connects to" not in done.stdout + done.stderr
