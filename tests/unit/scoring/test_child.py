"""A work in a process of its own ends with all that it started: with the work, with who waits for it, or by force."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from nightjar.inference.ledger.holders import has_ended
from nightjar.inference.scoring.child import FORKS, Child, WorkLost

WAITS = """
from test_child import forks_and_hangs
from nightjar.inference.scoring.child import Child

with Child(forks_and_hangs) as child:
    for pids in child.answers():
        print(*pids, flush=True)
"""


def forked() -> int:
    """A process as those of a DataLoader or of a Pool: it has what its parent has open, and waits."""
    process = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
    process.start()
    assert process.pid is not None
    return process.pid


def forks_and_dies() -> Iterator[int]:
    yield forked()
    os._exit(3)


def forks_and_hangs() -> Iterator[tuple[int, int]]:
    yield os.getpid(), forked()
    threading.Event().wait()


SCRIPT = """
print("begun", flush=True)

from test_child import ends_well
from nightjar.inference.scoring.child import Child

with Child(ends_well) as child:
    print(*child.answers(), flush=True)
"""
"""A script as people write it, without `if __name__ == "__main__"`."""


def ends_well() -> Iterator[str]:
    yield "done"


def ends(pid: int) -> None:
    """Fails if the process lives for 10 s more."""
    from support import wait_until  # heavy, and each child imports this module

    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        wait_until(lambda: has_ended(process), 10, f"{pid} has ended")


def test_a_script_is_not_run_again_for_a_work(tmp_path: Path) -> None:
    """Its lines would be run twice; and the second time it could start no process, which is no fault of the work."""
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, tmp_path / "script.py"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "begun\ndone\n"), ended.stderr


def test_a_work_that_has_ended_before_it_is_asked_for_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a short work is over before the process that began it goes on."""
    start = FORKS.Process.start

    def start_late(process: multiprocessing.process.BaseProcess) -> None:
        start(process)
        assert process.pid is not None
        ends(process.pid)

    monkeypatch.setattr(FORKS.Process, "start", start_late)
    with Child(ends_well) as child:
        assert list(child.answers(10)) == ["done"]


def test_a_work_that_dies_is_missed_at_once_and_what_it_forked_ends() -> None:
    """The forked process holds the pipe open; nobody waits for it."""
    began, found = time.monotonic(), []
    with Child(forks_and_dies) as child, pytest.raises(WorkLost, match=r"ended its process \(exit code 3\)"):
        found.extend(child.answers(10))
    assert time.monotonic() - began < 20
    ends(found[0])


def test_a_group_that_got_the_number_of_a_process_that_ended_is_left_alone() -> None:
    """A command may hold such a process for long; 32,768 processes and threads later its pid comes again."""
    with Child(ends_well) as child, subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        assert list(child.answers(10)) == ["done"]
        child._pid = other.pid
        child.end()
        other.send_signal(signal.SIGTERM)
        assert other.wait(10) == -signal.SIGTERM


def test_what_a_work_forked_ends_with_it() -> None:
    with Child(forks_and_hangs) as child:
        found = next(child.answers(10))
        with pytest.raises(TimeoutError):
            next(child.answers(0.1))
    for pid in found:
        ends(pid)


def test_a_work_ends_with_a_command_that_is_killed() -> None:
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2] / "helpers")])
    env = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", WAITS], env=env, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        found = [int(pid) for pid in waiting.stdout.readline().split()]
        waiting.send_signal(signal.SIGKILL)
    assert len(found) == 2
    for pid in found:
        ends(pid)
