"""One night on a cluster from which one thing after another is taken: its command twice, a node, and the head.

The cluster is started separately: it cannot see the folder of the job, and has none of the command's settings.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from readers import Rows, records_of, rows_of

from fleet import GPUS, Fleet
from nightjar.flows.cluster.tasks import LOST
from nightjar.inference.engine import LOCAL
from nightjar.inference.output import publications as publish
from support import FREED_S, GATE, Lake, is_true, permit, wait_until
from victim import Victim, running
from world import Node, World

QUIET, NIGHT, LATER = "2026-01-01", "2026-01-02", "2026-01-03"
SHARDS = 16
DEADLINE_S = 5
"""So long has a drained node."""

ENDS_S = 180
"""A command whose cluster is gone ends within this time."""

MODEL = '''
import json, os
from pathlib import Path

import ray
from gate import Gate
from helper import FACTOR

PLUS = json.loads(Path(__file__).with_name("table.json").read_text())["plus"]


class Gated:
    """x times a number from a module beside this one, plus one from a file beside it, no faster than the gate lets it.

    One row cannot be scored. On Ray it notes which GPU it has, and how memory is held.
    """

    def __init__(self, permits):
        self.gate = Gate(permits)
        if ray.is_initialized() and (gpus := ray.get_gpu_ids()):
            visible, arenas = os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("MALLOC_ARENA_MAX", 0)
            with self.gate.permits.with_name("actors").open("a") as noted:
                noted.write(f"{int(gpus[0])} {visible} {arenas}\\n")

    def __call__(self, batch):
        self.gate.wait(len(batch["x"]))
        if 1234 in batch["x"]:
            raise ValueError("this row cannot be scored")
        return {"score": batch["x"] * FACTOR + PLUS}
'''

DRIVER = '''
import sys
import threading
import time

import ray

from nightjar.flows.cluster.connection import cluster
from nightjar.flows.cluster.tasks import call, run_task
from nightjar.inference.errors import RunFailed
from nightjar.inference.job.file import load_job
from nightjar.inference.run.lease import Succession
from nightjar.inference.storage.lake import LakeStorage


class Never:
    """A task, and its future, whose end Ray never learns of."""

    def __init__(self):
        self.wrapped_future = ray.remote(num_cpus=0)(lambda: time.sleep(3600)).remote()

    def submit(self):
        return self


try:
    with cluster(sys.argv[1], load_job(sys.argv[2]), {}, verbose=False):
        never = Never()
        print("is there", flush=True)
        if sys.argv[3] == "waits":
            run_task(Succession(LakeStorage(), '/no/run', 'ours'), never)
        sys.stdin.readline()
        call(threading.active_count)
except RunFailed as lost:
    print(lost)
'''
"""Waits for a step as the flow does, or submits one when it is told to."""


@dataclass
class Gated:
    """A job whose model scores no more shards than it is permitted, and what a quiet night publishes."""

    fleet: Fleet
    lake: Lake
    output: str
    permits: Path
    quiet: Rows | None = None
    night: str = NIGHT

    @property
    def world(self) -> World:
        """The cluster's processes."""
        return self.fleet.world

    def permit(self, shards: int) -> None:
        """So many more."""
        permit(self.permits, shards)

    def records(self) -> list[dict[str, Any]]:
        """What is in the night's ledger."""
        return list(records_of(self.world.storage, self.output, self.night))

    def receipts(self) -> list[dict[str, Any]]:
        """What is committed of the night."""
        return [record for record in self.records() if record["t"] == "receipt"]

    def start(self, shards: int, address: str = "") -> Victim:
        """Start the night's command, which may score so many shards more. Returns when it begins to score."""
        begun = self._scoring()
        self.permit(shards)
        command = self.world.repeat(address)
        self._wait(command, lambda: self._scoring() > begun, "the command begins to score")
        return command

    def _scoring(self) -> int:
        """How many commands have begun to score."""
        openers = [record["writer"] for record in self.records() if record["t"] == "opened"]
        return len({writer["flow_run"] for writer in openers if writer["task"] == "score"})

    def wait_for_receipts(self, command: Victim, count: int) -> None:
        """Return when so many shards are committed."""
        self._wait(command, lambda: len(self.receipts()) >= count, f"{count} shards are committed")

    def _wait(self, command: Victim, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: command.process.poll() is not None or condition(), 120, what)
        assert command.look() is None, command.said + command.trouble

    def ended(self, command: Victim) -> dict[str, Any]:
        """What a command says that has published."""
        wait_until(lambda: command.look() is not None, ENDS_S, "the command ends")
        assert command.process.returncode == 0, command.said + command.trouble
        said: dict[str, Any] = json.loads(command.said)
        return said

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """The job's folder is not where it was, as on the machines of a cluster."""
        elsewhere = self.lake.folder.rename(self.lake.folder.with_suffix(".hidden"))
        try:
            yield
        finally:
            elsewhere.rename(self.lake.folder)


@pytest.fixture(scope="module")
def gated(fleet: Fleet) -> Gated:
    """The job on the fleet, and a quiet night of it, scored in this process."""
    world = fleet.world
    permits = world.folder / "permits"
    permits.mkdir()
    uses = {"model__uses": "model:Gated", "model__options": {"permits": str(permits)}, "model__batch_size": 1000}
    resources = {"actors": {"min": 1, "max": 2}, "cpus": 1, "gpus": 1}
    lake, output = world.lake(SHARDS * 1000, MODEL, name="gated", resources=resources, **uses)
    (lake.folder / "gate.py").write_text(GATE)
    (lake.folder / "helper.py").write_text("FACTOR = 3\n")
    (lake.folder / "table.json").write_text('{"plus": 0.5}')
    job = Gated(fleet, lake, output, permits)
    job.permit(SHARDS)
    ran = lake.run(storage=world.storage, date=QUIET, engine=LOCAL)
    assert ran.scored.progress.counts.rows_out == SHARDS * 1000 - 1
    job.quiet = rows_of(world.storage, output, QUIET)
    world.tonight(lake, NIGHT)
    return job


@dataclass
class Interrupted:
    """One command that was stopped in mid-run."""

    committed: int
    freed: bool
    exit_code: int
    said: str
    last_words: list[dict[str, Any]]


def interrupt(gated: Gated, how: signal.Signals) -> Interrupted:
    """Start the command, stop it when it has committed two shards more and waits with others, and watch."""
    after = len(gated.receipts()) + 2
    command = gated.start(2)
    with gated.hidden():
        gated.wait_for_receipts(command, after)
    wait_until(lambda: not gated.fleet.all_gpus_are_free(), 30, "an actor holds a GPU")
    workers = {int(receipt["worker"].rpartition(":")[2]) for receipt in gated.receipts()}
    assert command.look() is None, command.trouble
    command.process.send_signal(how)
    freed = is_true(lambda: gated.fleet.all_gpus_are_free() and not any(map(psutil.pid_exists, workers)), FREED_S)
    wait_until(lambda: command.look() is not None, 60, "the command ends")
    said = command.said + command.trouble
    return Interrupted(len(gated.receipts()), freed, command.process.returncode, said, gated.records()[-2:])


@pytest.fixture(scope="module")
def interrupted(gated: Gated) -> dict[str, Interrupted]:
    """The night, stopped twice, each time by another signal."""
    return {how.name: interrupt(gated, how) for how in (signal.SIGINT, signal.SIGKILL)}


@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_an_interrupted_command_frees_its_actors(interrupted: dict[str, Interrupted], how: str) -> None:
    """Within 10 s the cluster has all GPUs again, and the processes that held them are gone."""
    assert interrupted[how].freed, interrupted[how].said


def assert_it_says_so(stopped: Interrupted, who: str) -> None:
    """Exit 130, one JSON object as asked for, and one sentence; no traceback."""
    assert stopped.exit_code == 130, stopped.said
    told, said, *next_steps = stopped.said.strip().split("\n")
    assert json.loads(told)["state"] == "interrupted"
    assert said.startswith(f"nightjar: stopped by {who}, process ")
    assert next_steps[0] == "What was committed is kept and nothing new was published."
    words = [line.split()[0] for line in next_steps[1:]]
    assert [word for word in words if word != "note"] == ["so", "look", "repeat"]


def assert_it_is_found_in_the_ledger(stopped: Interrupted) -> None:
    """Though the step that wrote there is a process of the cluster, which is told nothing."""
    ended, closed = stopped.last_words
    assert (ended["outcome"], ended["step"], closed) == ("stopped", "score", {"t": "closed"})
    assert ended["message"] in stopped.said


def test_an_interrupted_command_says_so_and_nothing_else(interrupted: dict[str, Interrupted]) -> None:
    assert_it_says_so(interrupted["SIGINT"], "Ctrl-C (SIGINT)")


def test_who_stopped_it_is_found_in_the_ledger(interrupted: dict[str, Interrupted]) -> None:
    assert_it_is_found_in_the_ledger(interrupted["SIGINT"])


def drain(world: World, node: Node, deadline_s: int) -> None:
    """What an autoscaler does before it takes a machine away."""
    words = [str(Path(sys.executable).parent / "ray"), "drain-node", f"--address={world.address}"]
    words += [f"--node-id={node.node_id()}", "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=taken away"]
    words += [f"--deadline-remaining-seconds={deadline_s}"]
    done = subprocess.run(words, env=node.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class Bereft:
    """The next command, whose cluster loses a node that was drained, and then its head.

    before: what it had put into the ledger when the head was lost. said, trouble: by the command, before that (peace)
    and when it had ended. kept: shards that were committed then.
    """

    before: list[dict[str, Any]]
    peace: str
    code: int | None
    said: dict[str, Any]
    trouble: str
    published: bool
    kept: int


@pytest.fixture(scope="module")
def bereft(gated: Gated, interrupted: dict[str, Interrupted]) -> Bereft:
    """The node that scores is drained and, at its deadline, taken away; it comes back, and the head is killed."""
    world, earlier = gated.world, len(gated.records())
    done = interrupted["SIGKILL"].committed
    command = gated.start(2)
    gated.wait_for_receipts(command, done + 2)
    leaving = next(node for node in world.nodes if node.actors())
    drain(world, leaving, deadline_s=DEADLINE_S)
    gone_at = time.monotonic() + DEADLINE_S
    gated.permit(2)
    gated.wait_for_receipts(command, done + 4)
    wait_until(lambda: time.monotonic() > gone_at, DEADLINE_S + 5, "the deadline is over")
    leaving.kill()
    world.down.add(leaving.name)
    try:
        gated.permit(2)
        gated.wait_for_receipts(command, done + 6)
    finally:
        world.down.discard(leaving.name)
        leaving.start()
    before, peace = gated.records()[earlier:], command.trouble

    world.supervise()
    scoring = [actor for node in world.nodes for actor in node.actors()]
    assert scoring
    gated.fleet.lose_head()
    wait_until(lambda: command.look() is not None, ENDS_S, "the command ends")
    wait_until(lambda: not running([*command.started, *scoring]), ENDS_S, "nothing of it runs")
    published = NIGHT in publish.newest(world.storage, gated.output).runs
    code, kept = command.process.returncode, len(gated.receipts())
    assert command.said, f"{code}: {command.trouble}"
    return Bereft(before, peace, code, json.loads(command.said), command.trouble, published, kept)


def test_a_drained_node_costs_at_most_a_retry(interrupted: dict[str, Interrupted], bereft: Bereft) -> None:
    """Not a word of it, no shard twice, at most what one process was scoring is tried again: the other node goes on."""
    assert bereft.peace == ""
    assert len({record["worker"] for record in bereft.before if record["t"] == "failed"}) <= 1
    committed = [record["shard"] for record in bereft.before if record["t"] == "receipt"]
    assert len(committed) == len(set(committed)) == 6


def test_a_lost_head_ends_the_command_with_one_message(bereft: Bereft) -> None:
    """Bounded time, exit 1 or 2, one sentence, nothing runs on (`bereft` waits for that), nothing is published."""
    assert bereft.code in {1, 2}, bereft.trouble
    assert bereft.said["state"] == "failed"
    first, *notes = bereft.trouble.strip().splitlines()
    assert first.startswith("nightjar: ")
    starts = ("What was committed", "  so far", "  note", "  report", "  look", "  repeat")
    assert all(note.startswith(starts) for note in notes), notes
    assert not bereft.published


@pytest.fixture(scope="module")
def finished(gated: Gated, bereft: Bereft) -> dict[str, Any]:
    """The command after that, on a new cluster, which continues and publishes, through a Ray client.

    Nothing of Ray Data can be driven through that, so what drives runs in the cluster. Like the workers of the commands
    before, its workers cannot see the folder of the job.
    """
    gated.fleet.start_again()
    assert bereft.kept < SHARDS
    command = gated.start(SHARDS, gated.world.client)
    with gated.hidden():
        return gated.ended(command)


def test_the_next_command_continues(
    gated: Gated, interrupted: dict[str, Interrupted], bereft: Bereft, finished: dict[str, Any]
) -> None:
    """What was committed before each loss is not scored again; the rest is, and then all is published."""
    assert [stopped.committed for stopped in interrupted.values()] == [2, 4]
    assert (finished["state"], finished["reused_shards"]) == ("published", bereft.kept)
    shards = [receipt["shard"] for receipt in gated.receipts()]
    assert len(shards) == len(set(shards)) == finished["shards"] == SHARDS


def test_it_publishes_what_a_quiet_night_does(gated: Gated, finished: dict[str, Any]) -> None:
    """The commands, the node and the head that were lost cost no row."""
    assert finished["state"] == "published"
    assert gated.quiet is not None
    assert rows_of(gated.world.storage, gated.output, NIGHT).differences(gated.quiet) == []


def test_user_code_and_its_files_reach_the_workers(gated: Gated, finished: dict[str, Any]) -> None:
    """A module and a data file beside the job file, which the cluster cannot see, take part in the scores."""
    assert finished["rows_out"] == SHARDS * 1000 - 1
    rows = rows_of(gated.world.storage, gated.output, NIGHT).data
    np.testing.assert_allclose(rows["score"], rows["id"].to_numpy() * 3 + 0.5)


def test_the_actors_hold_the_gpus(gated: Gated, finished: dict[str, Any]) -> None:
    """One each, wherever they run. That two of a node have different ones: tests/cluster/test_run.py."""
    assert finished["state"] == "published"
    noted = [line.split() for line in gated.permits.with_name("actors").read_text().splitlines()]
    assert len(noted) >= 5, "each command had an actor"
    assert {gpu for gpu, _, _ in noted} <= set(map(str, range(GPUS)))
    assert all(gpu == visible for gpu, visible, _ in noted)
    assert {arenas for _, _, arenas in noted} == {"1"}, "how memory is held is for this cluster's actors, too"


@pytest.mark.long
def test_sigterm_does_what_ctrl_c_does(gated: Gated, finished: dict[str, Any]) -> None:
    """That SIGTERM frees the actors of a Ray of the run's own: tests/flow/test_service.py, where a run is cancelled."""
    later = replace(gated, night=LATER)
    later.world.tonight(later.lake, LATER)
    for left in later.permits.iterdir():
        left.unlink()
    stopped = interrupt(later, signal.SIGTERM)
    assert stopped.freed, stopped.said
    assert_it_says_so(stopped, "SIGTERM")
    assert_it_is_found_in_the_ledger(stopped)


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
        gated.fleet.start_again()
        for driver in drivers:
            said, trouble = driver.communicate("\n", timeout=ENDS_S)
            assert said.startswith(LOST), said + trouble
            assert said.count("\n") == 1
            assert "Traceback" not in trouble, trouble  # Ray itself may log what it could not tell the driver
            assert driver.returncode == 0
