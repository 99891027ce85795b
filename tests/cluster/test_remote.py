"""`nightjar … --ray ADDRESS`: what is refused, what is checked, and what is said of the cluster at the address.

Whole runs on a cluster that was started separately: tests/chaos/test_nodes.py.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import pages
from fleet import Fleet
from forked import forked
from ports import quiet_ports
from support import DOUBLE, NIGHT, Lake

LEAVER = """
import sys
import tempfile
import threading
import time
from pathlib import Path
from uuid import uuid4

import ray
from prefect_ray.task_runners import PrefectRayFuture

from nightjar.flows.cluster.connection import cluster
from nightjar.flows.cluster.tasks import has_ended_within
from nightjar.inference.job.file import load_job

job = load_job(sys.argv[2])
for _ in range(2):
    with cluster(sys.argv[1], job, {}, verbose=False):
        assert not [*Path(tempfile.gettempdir()).glob("nightjar-*")], "what was sent is not needed any more"
        step = ray.remote(num_cpus=0)(lambda: time.sleep(3600)).remote()
        waiting = threading.Thread(target=has_ended_within, args=(PrefectRayFuture(uuid4(), step), 3600), daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
print("left")
"""
"""Waits for a step as the flow does, and leaves the cluster before that has ended; then once more.

While it waits, nothing lies in the temporary folder, because a command that is killed would leave it there."""


@pytest.fixture(scope="module")
def doubled(fleet: Fleet) -> Lake:
    """A small job that anybody may run."""
    return fleet.world.lake(8000, DOUBLE, name="doubled", resources={"actors": 1})[0]


@pytest.fixture(scope="module")
def env(fleet: Fleet) -> dict[str, str]:
    """What a command on the fleet is given."""
    return fleet.world.env


def test_who_waits_for_a_step_is_called_back_before_the_cluster_is_left(
    fleet: Fleet, doubled: Lake, tmp_path: Path
) -> None:
    """A thread that Ray's own code still holds when the connection is taken down faults, nearly every time."""
    leaver = [sys.executable, "-c", LEAVER, fleet.world.address, str(doubled.job_path)]
    env = {**os.environ, **fleet.world.env, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(leaver, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "left\n"), ended.stderr


def test_no_cluster_at_the_address_is_one_sentence(doubled: Lake, env: dict[str, str]) -> None:
    """A wrong address ends in bounded time with exit 2 and names the address and what to do."""
    nowhere = f"127.0.0.1:{quiet_ports(1)[0]}"
    ended = forked("run", doubled.job_path, "--ray", nowhere, env=env, timeout_s=90)
    assert ended.returncode == 2
    assert f"no usable Ray cluster at {nowhere}" in ended.stderr
    assert "ray start --head" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_too_few_gpus_is_one_sentence(fleet: Fleet, env: dict[str, str]) -> None:
    """More GPUs than the cluster has: exit 2, the key to change, and what is there."""
    resources = {"actors": 2, "gpus": 3, "cpus": 1}
    greedy, _ = fleet.world.lake(4000, DOUBLE, name="greedy", resources=resources)
    ended = forked("run", greedy.job_path, "--ray", fleet.world.address, env=env, timeout_s=90)
    assert ended.returncode == 2
    assert "resources: 2 actors of 1 CPUs and 3 GPUs each do not fit" in ended.stderr
    assert "this cluster has 3 nodes" in ended.stderr
    assert ended.stderr.count("1 CPUs and 2 GPUs") == 2
    assert "Traceback" not in ended.stderr


def test_a_check_through_a_ray_client(fleet: Fleet, doubled: Lake, env: dict[str, str]) -> None:
    """`ray://`: what `check` tries is tried in the cluster, too. A run through it: tests/chaos/test_nodes.py."""
    checked = forked("check", doubled.job_path, "--ray", fleet.world.client, env=env, timeout_s=120)
    assert checked.returncode == 0, checked.stderr
    assert "the model loads and scores 256 rows of 8 places on cpu" in checked.stdout
    assert "Ready.\n  reads      " in checked.stdout
    assert "\n  columns    id int64, name string, score float32, _file string, _row int64\n" in checked.stdout
    rows = [line.split() for line in checked.stdout.splitlines()[-6:-1]]
    assert rows == [[str(n), "row", str(n), str(2 * n)] for n in range(5)]


def test_a_client_s_own_prefect_server_is_out_of_reach(doubled: Lake, env: dict[str, str]) -> None:
    """What drives the run would be on the other machine: better said before than found in the morning."""
    alone = {**env, "PREFECT_API_URL": ""}
    ended = forked("run", doubled.job_path, "--ray", "ray://10.0.0.5:10001", env=alone, timeout_s=60)
    assert ended.returncode == 2
    assert "cannot reach Prefect at http://127.0.0.1/api; set PREFECT_API_URL" in ended.stderr


def test_tasks_on_a_cluster_sign_in_at_the_prefect_server_of_their_run(
    fleet: Fleet, doubled: Lake, env: dict[str, str], own_home: Path
) -> None:
    """The nodes do not know its password: it comes with the tasks, and not by what Ray writes to its logs."""
    alone = {**env, "PREFECT_API_URL": "", "PREFECT_HOME": str(own_home)}
    ended = forked("run", doubled.job_path, "--date", NIGHT, "--ray", fleet.world.address, env=alone)
    assert ended.returncode == 0, ended.stderr
    with closing(sqlite3.connect(own_home / "prefect.db")) as kept:
        states = kept.execute("SELECT state_type FROM task_run").fetchall()
        said = [message for (message,) in kept.execute("SELECT message FROM log WHERE task_run_id IS NOT NULL")]
        keys = {key for (key,) in kept.execute("SELECT key FROM artifact")}
    assert states == [("COMPLETED",)] * 4
    assert said
    assert keys >= {"doubled-shards", "doubled-gates"}
    password = json.loads((own_home / "nightjar-passwords.json").read_text())["Pages"].split(":")[1]
    written = [path for path in fleet.world.folder.rglob("*") if path.is_file()]
    assert not [path for path in written if password.encode() in path.read_bytes()]


def test_the_environment_names_the_cluster(fleet: Fleet, env: dict[str, str]) -> None:
    """NIGHTJAR_RAY is what `--ray` is, for processes that nobody types a command for."""
    found = forked("doctor", "--json", env={**env, "NIGHTJAR_RAY": fleet.world.address})
    line = next(line for line in json.loads(found.stdout) if line["what"] == "Ray")
    assert line["found"] == f"{fleet.world.address}: 3 nodes, 2 CPUs, 4 GPUs"


@pytest.mark.parametrize("shown", [each for each in pages.shown() if "--ray" in each.words], ids=lambda s: s.text[:40])
def test_the_commands_of_the_docs_that_name_a_cluster(
    fleet: Fleet, doubled: Lake, env: dict[str, str], shown: pages.Shown
) -> None:
    """As they stand there, with this cluster's address and this job."""
    here = {"10.0.0.5:6379": fleet.world.address, "job.yaml": str(doubled.job_path)}
    ended = forked(*(here.get(word, word) for word in shown.words[1:]), env=env)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_something_else_at_the_address(fleet: Fleet, doubled: Lake, env: dict[str, str]) -> None:
    """An S3 server is no Ray cluster: bounded time, one sentence, exit 2."""
    address = fleet.world.store.server.endpoint.removeprefix("http://")
    ended = forked("check", doubled.job_path, "--ray", address, env=env, timeout_s=60)
    assert ended.returncode == 2, ended.stderr
    assert f"no usable Ray cluster at {address}: something listens there, but it does not speak" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_another_version_of_ray_at_the_address(fleet: Fleet, doubled: Lake, env: dict[str, str]) -> None:
    """Both versions in the sentence. The cluster is told to say it were older, since a second Ray is not installed."""
    before = fleet.claims_to_be("2.59.0")
    try:
        ended = forked("check", doubled.job_path, "--ray", fleet.world.address, env=env, timeout_s=120)
    finally:
        fleet.claims_to_be(before)
    assert ended.returncode == 2, ended.stderr
    assert "Version mismatch: The cluster was started with: Ray: 2.59.0" in ended.stderr
    assert f"was started with: Ray: {before}" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
