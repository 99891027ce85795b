"""Nodes that go: one that is drained before its machine is taken away, and the head, lost without warning."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from readers import Rows, records_of, rows_of
from world import Node, World, world

from driver import Victim, running
from nightjar.flows.cluster.connection import LOST
from nightjar.inference.engine import LOCAL
from nightjar.inference.output import publications as publish
from support import GATE, Lake, permit, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.cluster, pytest.mark.s3, pytest.mark.flow]

QUIET, NIGHT = "2026-01-01", "2026-01-02"
SHARDS = 16
DEADLINE_S = 5
"""So long has a drained node."""

ENDS_S = 180
"""A command whose cluster is gone ends within this time."""

MODEL = '''
from gate import Gate


class Gated:
    """Twice x, no faster than the gate lets it; one row cannot be scored."""

    def __init__(self, permits):
        self.gate = Gate(permits)

    def __call__(self, batch):
        self.gate.wait(len(batch["x"]))
        if 1234 in batch["x"]:
            raise ValueError("this row cannot be scored")
        return {"score": batch["x"] * 2}
'''

DRIVER = '''
import sys
import threading
import time

from nightjar.flows.cluster.connection import call, cluster
from nightjar.flows.cluster.tasks import _wait
from nightjar.inference.errors import RunFailed
from nightjar.inference.job.file import load_job
from nightjar.inference.run.lease import Succession
from nightjar.inference.storage.lake import LakeStorage


class Never:
    """The future of a task whose end Ray never learns of."""

    _final_state = None

    def wait(self, seconds):
        time.sleep(seconds)


try:
    with cluster(sys.argv[1], load_job(sys.argv[2]), {}, verbose=False):
        print("is there", flush=True)
        if sys.argv[3] == "waits":
            _wait(Never(), Succession(LakeStorage(), '/no/run', 'ours'))
        sys.stdin.readline()
        call(threading.active_count)
except RunFailed as lost:
    print(lost)
'''
"""Waits for a step as the flow does, or submits one when it is told to."""


@dataclass
class Gated:
    """A job whose model scores no more shards than it is permitted, and what a quiet night publishes."""

    world: World
    lake: Lake
    output: str
    permits: Path
    quiet: Rows | None = None

    def run(self, date: str, shards: int) -> Victim:
        """Start a night that may score so many shards and no more."""
        for left in self.permits.iterdir():
            left.unlink()
        self.permit(shards)
        return self.world.run(self.lake, date)

    def permit(self, shards: int) -> None:
        """So many more."""
        permit(self.permits, shards)

    def receipts(self, date: str) -> list[dict[str, Any]]:
        """What is committed of a night."""
        return [r for r in records_of(self.world.storage, self.output, date) if r["t"] == "receipt"]

    def wait_for_receipts(self, command: Victim, date: str, count: int) -> None:
        """Return when so many shards are committed."""
        wait_until(
            lambda: command.look() is not None or len(self.receipts(date)) >= count,
            120,
            f"{count} shards are committed",
        )
        assert command.look() is None, command.trouble

    def ended(self, command: Victim) -> dict[str, Any]:
        """What a command says that has published."""
        wait_until(lambda: command.look() is not None, ENDS_S, "the command ends")
        assert command.process.returncode == 0, command.said + command.trouble
        said: dict[str, Any] = json.loads(command.said)
        return said


@pytest.fixture(scope="module")
def gated(prefect_api: str, prefect_home: Path) -> Iterator[Gated]:
    """The world, the job, and a quiet night of it, scored in this process."""
    with world(prefect_api, prefect_home) as made:
        permits = made.folder / "permits"
        permits.mkdir()
        uses = {"model__uses": "model:Gated", "model__options": {"permits": str(permits)}, "model__batch_size": 1000}
        lake, output = made.lake(SHARDS * 1000, MODEL, name="gated", **uses)
        (lake.folder / "gate.py").write_text(GATE)
        job = Gated(made, lake, output, permits)
        job.permit(SHARDS)
        ran = lake.run(storage=made.storage, date=QUIET, engine=LOCAL)
        assert ran.scored.progress.rows_out == SHARDS * 1000 - 1
        job.quiet = rows_of(made.storage, output, QUIET)
        yield job


def drain(world: World, node: Node, deadline_s: int) -> None:
    """What an autoscaler does before it takes a machine away."""
    words = [str(Path(sys.executable).parent / "ray"), "drain-node", f"--address={world.address}"]
    words += [f"--node-id={node.node_id()}", "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=taken away"]
    words += [f"--deadline-remaining-seconds={deadline_s}"]
    done = subprocess.run(words, env=node.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class Bereft:
    """One night whose cluster loses a node that was drained, and then its head.

    before: what was in the ledger when the head was lost. said, trouble: by the command, before that and when it had
    ended. again: what the repeated command said.
    """

    before: list[dict[str, Any]]
    peace: str
    code: int | None
    said: dict[str, Any]
    trouble: str
    published: bool
    again: dict[str, Any]


@pytest.fixture(scope="module")
def bereft(gated: Gated) -> Bereft:
    """The node that scores is drained and, at its deadline, taken away; it comes back, and the head is killed."""
    world = gated.world
    command = gated.run(NIGHT, 6)
    gated.wait_for_receipts(command, NIGHT, 6)
    leaving = next(node for node in world.nodes if node.actors())
    drain(world, leaving, deadline_s=DEADLINE_S)
    gone_at = time.monotonic() + DEADLINE_S
    gated.permit(2)
    gated.wait_for_receipts(command, NIGHT, 8)
    wait_until(lambda: time.monotonic() > gone_at, DEADLINE_S + 5, "the deadline is over")
    leaving.kill()
    world.down.add(leaving.name)
    try:
        gated.permit(4)
        gated.wait_for_receipts(command, NIGHT, 12)
    finally:
        world.down.discard(leaving.name)
        leaving.start()
    before, peace = list(records_of(world.storage, gated.output, NIGHT)), command.trouble

    world.supervise()
    scoring = [actor for node in world.nodes for actor in node.actors()]
    assert scoring
    world.head.kill()
    wait_until(lambda: command.look() is not None, ENDS_S, "the command ends")
    wait_until(lambda: not running([*command.started, *scoring]), ENDS_S, "nothing of it runs")
    published = NIGHT in publish.newest(world.storage, gated.output).runs
    world.start_cluster()
    kept = len(gated.receipts(NIGHT))
    assert kept < SHARDS
    gated.permit(SHARDS)
    again = gated.ended(world.repeat())
    assert again["reused_shards"] == kept
    code = command.process.returncode
    return Bereft(before, peace, code, json.loads(command.said), command.trouble, published, again)


def test_a_drained_node_costs_at_most_a_retry(bereft: Bereft) -> None:
    """Not a word of it, no shard twice, at most what one process was scoring is tried again: the other node goes on."""
    assert bereft.peace == ""
    assert len({record["worker"] for record in bereft.before if record["t"] == "failed"}) <= 1
    committed = [record["shard"] for record in bereft.before if record["t"] == "receipt"]
    assert len(committed) == len(set(committed)) == 12


def test_a_lost_head_ends_the_command_with_one_message(bereft: Bereft) -> None:
    """Bounded time, exit 1 or 2, one sentence, nothing runs on (`bereft` waits for that), nothing is published."""
    assert bereft.code in {1, 2}, bereft.trouble
    assert bereft.said["state"] == "failed"
    first, *notes = bereft.trouble.strip().splitlines()
    assert first.startswith("nightjar: ")
    starts = ("What was committed", "  so far", "  note", "  look", "  repeat")
    assert all(note.startswith(starts) for note in notes), notes
    assert not bereft.published


def test_repeated_on_a_new_cluster_it_publishes_what_a_quiet_night_does(gated: Gated, bereft: Bereft) -> None:
    """It goes on from there; the node and the head that were lost cost no row."""
    assert bereft.again["state"] == "published"
    assert gated.quiet is not None
    assert rows_of(gated.world.storage, gated.output, NIGHT).differences(gated.quiet) == []


@pytest.mark.long
def test_a_driver_whose_cluster_was_replaced_says_so(gated: Gated, tmp_path: Path) -> None:
    """A new head at the old address knows nothing of the run: Ray may wait for it for ever, or ask for a token."""
    command, job = [sys.executable, "-c", DRIVER], str(gated.lake.job_path)
    address, client = gated.world.address, gated.world.client
    env = {**gated.world.head.env, "PREFECT_HOME": str(tmp_path)}
    with ExitStack() as started:
        drivers = []
        for place, does in ((address, "waits"), (address, "asks"), (client, "asks")):
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            driver = started.enter_context(subprocess.Popen([*command, place, job, does], env=env, text=True, **pipes))
            started.callback(driver.kill)
            drivers.append(driver)
        for driver in drivers:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "is there\n"
        gated.world.start_cluster()
        for driver in drivers:
            said, trouble = driver.communicate("\n", timeout=ENDS_S)
            assert said.startswith(LOST), said + trouble
            assert (said.count("\n"), trouble) == (1, "")
            assert driver.returncode == 0
