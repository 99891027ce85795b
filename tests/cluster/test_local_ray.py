"""A Ray of the run's own ends with the run, whatever of it died before; and a machine that stands still is survived."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from nightjar.flows.cluster.tasks import LOST
from support import Lake, leaves_nothing, marked, wait_until

DRIVER = '''
import os
import sys
import time

import ray

from nightjar.flows.cluster import tasks
from nightjar.flows.cluster.connection import cluster
from nightjar.inference.errors import NightjarError
from nightjar.inference.job.file import load_job
from nightjar.inference.run.lease import Succession
from nightjar.inference.storage.lake import LakeStorage


class Never:
    """A task whose end Ray never learns of, and its future."""

    def __init__(self):
        self.wrapped_future = ray.remote(num_cpus=0)(lambda: time.sleep(3600)).remote()

    def submit(self):
        return self


tasks._LOOK_S = 0.5
try:
    with cluster(None, load_job(sys.argv[1]), {"HANDED_ON": "there"}, verbose=False):
        never = Never()
        print("is", os.environ["HANDED_ON"], flush=True)
        if sys.stdin.readline() == "wait\\n":
            tasks.run_task(Succession(LakeStorage(), '/no/run', 'ours'), never)
except NightjarError as error:
    print(error)
print("left behind" if "HANDED_ON" in os.environ else "", end="")
'''
"""Starts a Ray as a run does; then waits for a step as the flow does, or leaves, as it is told."""


STILL_S = 40
"""Longer than Ray waits for its node."""


@dataclass
class Driver:
    """The program above."""

    process: subprocess.Popen[str]
    mark: dict[str, str]
    folder: Path

    def left(self) -> set[str]:
        """What lies where Ray writes."""
        return {path.relative_to(self.folder).parts[1] for path in self.folder.glob("njray-*/*")}

    def says(self, timeout_s: float) -> str:
        """All it says until it ends."""
        return self.process.communicate(timeout=timeout_s)[0].strip()


@pytest.fixture
def driver(lake: Lake) -> Iterator[Driver]:
    """Leaves no process behind."""
    lake.ready()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="njt-", dir="/tmp"))
        mark = stack.enter_context(leaves_nothing())
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(lake.job_path)],
            env={**os.environ, **mark, "RAY_TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        yield Driver(process, mark, Path(folder))


def test_a_head_that_is_killed_costs_one_sentence_and_leaves_no_process(driver: Driver) -> None:
    """By itself Ray ends such a process after a minute without a word, and its agents stay for as long again."""
    assert driver.process.stdout is not None
    assert driver.process.stdout.readline() == "is there\n"
    started = [Path(word).name for each in marked(driver.mark) for word in each.cmdline()[:3]]
    assert {"gcs_server", "raylet"} <= set(started)
    assert not {"monitor.py", "dashboard.py", "log_monitor.py"} & set(started), "nobody needs these, which take seconds"
    next(each for each in marked(driver.mark) if each.name() == "gcs_server").kill()
    assert driver.process.stdin is not None
    driver.process.stdin.write("wait\n")
    driver.process.stdin.flush()
    assert driver.says(30) == LOST
    assert not marked(driver.mark), "what it started ended with it"
    assert driver.left() == {"logs", "lock"}


@pytest.mark.long
def test_a_machine_that_stands_still_while_ray_starts(driver: Driver) -> None:
    """All of it stops for longer than Ray waits for its node; the second try comes through."""
    wait_until(lambda: any(p.name() == "raylet" for p in marked(driver.mark)), 60, "Ray's node begins")
    still = marked(driver.mark)
    for process in still:
        process.send_signal(signal.SIGSTOP)
    time.sleep(STILL_S)
    for process in still:
        process.send_signal(signal.SIGCONT)
    assert driver.says(120) == "is there"
    assert driver.left() == set()
