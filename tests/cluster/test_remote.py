"""`nightjar run --ray ADDRESS` on a cluster started separately: GPUs, user code and storage settings get there.

The cluster has two logical GPUs, another working directory, and none of the settings the command is given.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest

import pages
from forked import forked
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from s3 import S3Server
from support import GATE, Lake, nightjar, permit, wait_until

LEAVER = """
import sys
import time
from uuid import uuid4

import ray
from prefect_ray.task_runners import PrefectRayFuture

from nightjar.flows.cluster.connection import cluster, ended
from nightjar.inference.job.file import load_job

job = load_job(sys.argv[2])
for _ in range(4):
    with cluster(sys.argv[1], job, {}, verbose=False):
        step = ray.remote(num_cpus=0)(lambda: time.sleep(3600)).remote()
        assert not ended(PrefectRayFuture(uuid4(), step)).wait(0.2)
print("left")
"""
"""Waits for a step as the flow does, and leaves the cluster before that has ended, again and again."""

pytestmark = [pytest.mark.cluster, pytest.mark.s3, pytest.mark.flow]

FREED_S = 10.0
"""Within this time after the command was interrupted its actors have let go of the GPUs."""

MODEL = '''
import json, os
from pathlib import Path

import numpy as np
import ray
from gate import Gate
from helper import FACTOR

PLUS = json.loads(Path(__file__).with_name("table.json").read_text())["plus"]


class Gated:
    """x times a number from a module beside this one, plus one from a file beside it; and who scored it."""

    def __init__(self, permits):
        self.gate = Gate(permits)
        self.gpu = int(ray.get_gpu_ids()[0])

    def __call__(self, batch):
        rows = len(batch["x"])
        self.gate.wait(rows)
        return {
            "score": batch["x"] * FACTOR + PLUS,
            "gpu": np.full(rows, self.gpu),
            "visible": np.full(rows, int(os.environ["CUDA_VISIBLE_DEVICES"])),
            "arenas": np.full(rows, int(os.environ.get("MALLOC_ARENA_MAX", 0))),
            "pid": np.full(rows, os.getpid()),
        }
'''

WATCH = """
import os, sys
os.environ.setdefault("RAY_AUTH_MODE", "token")  # as the head, which finds a token on this machine
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
from ray._common.usage import usage_constants, usage_lib
from ray._private import ray_constants, worker
import json
for line in sys.stdin:
    if line.strip():
        gcs = worker.global_worker.gcs_client
        about = usage_lib.get_cluster_metadata(gcs)
        print("it was:", about["ray_version"], flush=True)
        about["ray_version"] = line.strip()
        gcs.internal_kv_put(
            usage_constants.CLUSTER_METADATA_KEY, json.dumps(about).encode(), True, ray_constants.KV_NAMESPACE_CLUSTER
        )
    print("free GPUs:", ray.available_resources().get("GPU", 0.0), flush=True)
"""


@dataclass
class Head:
    """A Ray cluster of one node, and a process connected to it that tells what is free."""

    address: str
    client: str
    watch: subprocess.Popen[str]

    def free_gpus(self) -> float:
        """GPUs that nobody holds now, as the cluster sees it."""
        self._tell("")
        return float(self._hear("free GPUs:"))

    def claims_to_be(self, version: str) -> str:
        """The cluster's record of its Ray version is changed; returns what it was."""
        self._tell(version)
        before = self._hear("it was:")
        self._hear("free GPUs:")
        return before

    def _tell(self, words: str) -> None:
        assert self.watch.stdin is not None
        self.watch.stdin.write(f"{words}\n")
        self.watch.stdin.flush()

    def _hear(self, what: str) -> str:
        assert self.watch.stdout is not None
        while not (line := self.watch.stdout.readline()).startswith(what):
            assert line, "the watching process ended"
        return line.removeprefix(what).strip()


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """`ray start --head` in a process of its own, without AWS settings, in an empty folder."""
    folder = tmp_path_factory.mktemp("head")
    address = f"127.0.0.1:{free_port()}"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PREFECT_"))}
    start = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    start += [f"--port={address.rpartition(':')[2]}", "--num-cpus=4", "--num-gpus=2", "--include-dashboard=false"]
    # Short, since Ray's sockets lie below it and their paths must not exceed 107 characters.
    temp = tempfile.mkdtemp(prefix="nj-")
    client_port = free_port()
    start += [f"--ray-client-server-port={client_port}", "--disable-usage-stats", f"--temp-dir={temp}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(start, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: _gone(process) or _listens(address), 60, f"the head at {address} listens")
        assert not _gone(process), (folder / "log").read_text()
        watch = subprocess.Popen(
            [sys.executable, "-c", WATCH, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        started = Head(address, f"ray://127.0.0.1:{client_port}", watch)
        wait_until(lambda: started.free_gpus() == 2, 60, "both GPUs are there")
        yield started
        watch.kill()
        watch.wait()
    finally:
        processes = [] if _gone(process) else [psutil.Process(process.pid)]
        processes += [child for parent in processes for child in parent.children(recursive=True)]
        for each in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()
        shutil.rmtree(temp, ignore_errors=True)


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@dataclass
class Remote:
    """A job over data on S3 whose modules and files lie beside it on this machine only."""

    lake: Lake
    storage: LakeStorage
    out: str
    env: dict[str, str]

    def start(self, address: str) -> subprocess.Popen[str]:
        """The command, going on in the background."""
        words = [nightjar(), "run", str(self.lake.job_path), "--date", "2026-11-19", "--ray", address, "--json"]
        return subprocess.Popen(
            words, env={**os.environ, **self.env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def permit(self, shards: int) -> None:
        """The model scores so many more shards, and waits before the next ones."""
        permit(self.lake.folder.with_suffix(".permits"), shards)

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """The job's folder is not where it was, as on the machines of a cluster."""
        elsewhere = self.lake.folder.rename(self.lake.folder.with_suffix(".hidden"))
        try:
            yield
        finally:
            elsewhere.rename(self.lake.folder)

    def scoring(self) -> int:
        """How many commands have begun to score."""
        openers = (record["writer"] for record in self.records() if record["t"] == "opened")
        return len({writer["flow_run"] for writer in openers if writer["task"] == "score"})

    def records(self) -> list[dict[str, Any]]:
        """What is in the ledger now."""
        folder = f"{self.out}/runs/2026-11-19/r1/ledger"
        lines = [line for entry in self.storage.list(folder) for line in self.storage.read(entry.uri).splitlines()[1:]]
        return [json.loads(line) for line in lines]

    def receipts(self) -> list[dict[str, Any]]:
        """Receipts in the ledger now."""
        return [record for record in self.records() if record["t"] == "receipt"]

    def rows(self) -> pd.DataFrame:
        """What `nightjar files` names, read from the bucket."""
        listed = forked("files", self.lake.job_path, "--run-id", "2026-11-19", env=self.env).stdout.split()
        assert listed
        assert all(uri.startswith(f"{self.out}/") for uri in listed)
        tables = [pq.read_table(self.storage.open(uri)).to_pandas() for uri in listed]
        return pd.concat(tables).sort_values(["_file", "_row"], ignore_index=True)


def on_s3(folder: Path, server: S3Server, prefect_api: str, **changes: object) -> Remote:
    """A bucket with data, and the job for it."""
    uri = server.create_bucket(f"lake-{uuid.uuid4().hex}")
    storage = LakeStorage(StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key))
    lake = Lake(folder)
    lake.write_files()
    for path in sorted((folder / "data").iterdir()):
        storage.write(f"{uri}/in/{path.name}", path.read_bytes())
        path.unlink()
    lake.write_job(input__uri=f"{uri}/in/", output__uri=f"{uri}/out/", **changes)
    return Remote(lake, storage, f"{uri}/out", {**server_env(server), "PREFECT_API_URL": prefect_api})


def server_env(server: S3Server) -> dict[str, str]:
    """The settings by which the command, and nobody else, reaches the S3 server."""
    return {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_DEFAULT_REGION": server.region,
        "AWS_ENDPOINT_URL": server.endpoint,
    }


@pytest.fixture(scope="module")
def remote(
    tmp_path_factory: pytest.TempPathFactory, server: S3Server, prefect_api: str, head: Head
) -> Iterator[Remote]:
    """The job, whose actors hold a GPU each."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "model.py").write_text(MODEL)
    (folder / "gate.py").write_text(GATE)
    (folder / "helper.py").write_text("FACTOR = 3\n")
    permits = folder.with_suffix(".permits")
    permits.mkdir()
    (folder / "table.json").write_text('{"plus": 0.5}')
    outputs = {"score": "float32", "gpu": "int64", "visible": "int64", "arenas": "int64", "pid": "int64"}
    made = on_s3(
        folder,
        server,
        prefect_api,
        model__uses="model:Gated",
        model__options={"permits": str(permits)},
        model__batch_size=1000,
        model__outputs=outputs,
        resources={"actors": 2, "gpus": 1, "cpus": 1},
    )
    yield made


@dataclass
class Interrupted:
    """One command that was stopped in mid-run."""

    committed: int
    freed: bool
    exit_code: int
    said: str
    last_words: list[dict[str, Any]]


def interrupt(remote: Remote, head: Head, how: signal.Signals) -> Interrupted:
    """Start the command, stop it when it has committed two shards more and waits with others, and watch."""
    after, begun = len(remote.receipts()) + 2, remote.scoring() + 1
    remote.permit(2)
    process = remote.start(head.address)
    try:
        wait_until(lambda: _gone(process) or remote.scoring() == begun, 120, "the command begins to score")
        with remote.hidden():
            wait_until(lambda: _gone(process) or len(remote.receipts()) == after, 120, f"{after} shards are committed")
        wait_until(lambda: _gone(process) or head.free_gpus() < 2, 30, "an actor holds a GPU")
        assert not _gone(process), process.communicate()
        workers = {int(receipt["worker"].rpartition(":")[2]) for receipt in remote.receipts()}
        process.send_signal(how)
        freed = True
        try:
            wait_until(
                lambda: head.free_gpus() == 2 and not any(map(psutil.pid_exists, workers)), FREED_S, "all is free"
            )
        except AssertionError:
            freed = False
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return Interrupted(len(remote.receipts()), freed, process.returncode, out + err, remote.records()[-2:])


def _gone(process: subprocess.Popen[Any]) -> bool:
    return process.poll() is not None


@pytest.fixture(scope="module")
def interrupted(remote: Remote, head: Head) -> dict[str, Interrupted]:
    """The same run, stopped three times, each time by another signal."""
    return {how.name: interrupt(remote, head, how) for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)}


@pytest.fixture(scope="module")
def finished(remote: Remote, head: Head, interrupted: dict[str, Interrupted]) -> dict[str, object]:
    """The command after that, which continues and publishes, through a Ray client.

    Nothing of Ray Data can be driven through that, so what drives runs in the cluster. Like the workers of the commands
    before, its workers cannot see the folder of the job.
    """
    remote.permit(2)
    process = remote.start(head.client)
    wait_until(lambda: _gone(process) or remote.scoring() == 4, 120, "the fourth command begins to score")
    with remote.hidden():
        out, err = process.communicate(timeout=180)
    assert out, err
    found: dict[str, object] = json.loads(out)
    return found


@pytest.fixture(scope="module")
def rows(remote: Remote, finished: dict[str, object]) -> pd.DataFrame:
    """What that command has published."""
    return remote.rows()


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_an_interrupted_command_frees_its_actors(interrupted: dict[str, Interrupted], how: str) -> None:
    """Within 10 s the cluster has both GPUs again, and the processes that held them are gone."""
    assert interrupted[how].freed, interrupted[how].said


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
def test_an_interrupted_command_says_so_and_nothing_else(interrupted: dict[str, Interrupted], how: str) -> None:
    """Exit 130, one JSON object as asked for, and one sentence; no traceback."""
    stopped = interrupted[how]
    assert stopped.exit_code == 130, stopped.said
    told, said, *next_steps = stopped.said.strip().split("\n")
    assert json.loads(told)["state"] == "interrupted"
    who = "Ctrl-C (SIGINT)" if how == "SIGINT" else "SIGTERM"
    assert said.startswith(f"nightjar: stopped by {who}, process ")
    assert next_steps[0] == "What was committed is kept and nothing new was published."
    words = [line.split()[0] for line in next_steps[1:]]
    assert [word for word in words if word != "note"] == ["so", "look", "repeat"]


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
def test_who_stopped_it_is_found_in_the_ledger(interrupted: dict[str, Interrupted], how: str) -> None:
    """Though the step that wrote there is a process of the cluster, which is told nothing."""
    ended, closed = interrupted[how].last_words
    assert (ended["outcome"], ended["step"], closed) == ("stopped", "score", {"t": "closed"})
    assert ended["message"] in interrupted[how].said


def test_the_next_command_continues(
    remote: Remote, interrupted: dict[str, Interrupted], finished: dict[str, object], rows: pd.DataFrame
) -> None:
    """What was committed before the kill is not scored again; the rest is, and then all is published."""
    assert finished["state"] == "published"
    assert finished["reused_shards"] == interrupted["SIGKILL"].committed == 6
    assert len(remote.receipts()) == finished["shards"] == 8
    assert rows["id"].tolist() == list(range(8000))


def test_user_code_and_its_files_reach_the_workers(finished: dict[str, object], rows: pd.DataFrame) -> None:
    """A module and a data file beside the job file, which the cluster cannot see, take part in the scores."""
    assert finished["rows_out"] == 8000
    np.testing.assert_allclose(rows["score"], np.arange(8000) * 3 + 0.5)


def test_the_actors_hold_the_gpus(finished: dict[str, object], rows: pd.DataFrame) -> None:
    """`resources.gpus: 1` gives each actor a GPU of its own, and shows it that one only."""
    assert finished["state"] == "published"
    assert set(rows["gpu"]) <= {0, 1}
    assert (rows["gpu"] == rows["visible"]).all()
    assert set(rows["arenas"]) == {1}, "how memory is held is for this cluster's actors, too"
    assert (rows.groupby("pid")["gpu"].nunique() == 1).all()


def test_who_waits_for_a_step_is_called_back_before_the_cluster_is_left(remote: Remote, head: Head) -> None:
    """A thread that Ray's own code still holds when the connection is taken down faults, nearly every time."""
    leaver = [sys.executable, "-c", LEAVER, head.address, str(remote.lake.job_path)]
    ended = subprocess.run(leaver, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "left\n"), ended.stderr


def test_no_cluster_at_the_address_is_one_sentence(remote: Remote) -> None:
    """A wrong address ends in bounded time with exit 2 and names the address and what to do."""
    nowhere = f"127.0.0.1:{free_port()}"
    ended = forked("run", remote.lake.job_path, "--ray", nowhere, env=remote.env, timeout_s=90)
    assert ended.returncode == 2
    assert f"no usable Ray cluster at {nowhere}" in ended.stderr
    assert "ray start --head" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_too_few_gpus_is_one_sentence(
    tmp_path: Path, server: S3Server, prefect_api: str, head: Head, remote: Remote
) -> None:
    """More GPUs than the cluster has: exit 2, the key to change, and what is there."""
    job = on_s3(tmp_path, server, prefect_api, resources={"actors": 2, "gpus": 2, "cpus": 1})
    job.lake.write_model()
    ended = forked("run", job.lake.job_path, "--ray", head.address, env=job.env, timeout_s=90)
    assert ended.returncode == 2
    assert "resources: 2 actors of 1 CPUs and 2 GPUs each do not fit" in ended.stderr
    assert "4 CPUs and 2 GPUs" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory, server: S3Server, prefect_api: str) -> Remote:
    """A small job that anybody may run."""
    job = on_s3(tmp_path_factory.mktemp("doubled"), server, prefect_api, name="doubled")
    job.lake.write_model()
    return job


def test_a_check_through_a_ray_client(doubled: Remote, head: Head) -> None:
    """`ray://`: what `check` tries is tried in the cluster, too. A run through it: `finished`."""
    checked = forked("check", doubled.lake.job_path, "--ray", head.client, env=doubled.env, timeout_s=120)
    assert checked.returncode == 0, checked.stderr
    assert "the model loads and scores 256 rows of 8 places on cpu" in checked.stdout
    assert "Ready.\n  columns    id int64, name string, score float32, _file string, _row int64\n" in checked.stdout
    rows = [line.split() for line in checked.stdout.splitlines()[-6:-1]]
    assert rows == [[str(n), "row", str(n), str(2 * n)] for n in range(5)]


def test_a_client_s_own_prefect_server_is_out_of_reach(doubled: Remote) -> None:
    """What drives the run would be on the other machine: better said before than found in the morning."""
    env = {**doubled.env, "PREFECT_API_URL": ""}
    ended = forked("run", doubled.lake.job_path, "--ray", "ray://10.0.0.5:10001", env=env, timeout_s=60)
    assert ended.returncode == 2
    assert "cannot reach Prefect at http://127.0.0.1/api; set PREFECT_API_URL" in ended.stderr


def test_the_environment_names_the_cluster(doubled: Remote, head: Head) -> None:
    """NIGHTJAR_RAY is what `--ray` is, for processes that nobody types a command for."""
    found = forked("doctor", "--json", env={**doubled.env, "NIGHTJAR_RAY": head.address})
    line = next(line for line in json.loads(found.stdout) if line["what"] == "Ray")
    assert line["found"] == f"{head.address}: 1 nodes, 4 CPUs, 2 GPUs"


@pytest.mark.parametrize("shown", [each for each in pages.shown() if "--ray" in each.words], ids=lambda s: s.text[:40])
def test_the_commands_of_the_docs_that_name_a_cluster(doubled: Remote, head: Head, shown: pages.Shown) -> None:
    """As they stand there, with this cluster's address and this job."""
    here = {"10.0.0.5:6379": head.address, "job.yaml": str(doubled.lake.job_path)}
    ended = forked(*(here.get(word, word) for word in shown.words[1:]), env=doubled.env)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_something_else_at_the_address(doubled: Remote, server: S3Server) -> None:
    """An S3 server is no Ray cluster: bounded time, one sentence, exit 2."""
    address = server.endpoint.removeprefix("http://")
    ended = forked("check", doubled.lake.job_path, "--ray", address, env=doubled.env, timeout_s=60)
    assert ended.returncode == 2, ended.stderr
    assert f"no usable Ray cluster at {address}: something listens there, but it does not speak" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_another_version_of_ray_at_the_address(doubled: Remote, head: Head) -> None:
    """Both versions in the sentence. The cluster is told to say it were older, since a second Ray is not installed."""
    before = head.claims_to_be("2.59.0")
    try:
        ended = forked("check", doubled.lake.job_path, "--ray", head.address, env=doubled.env, timeout_s=120)
    finally:
        head.claims_to_be(before)
    assert ended.returncode == 2, ended.stderr
    assert "Version mismatch: The cluster was started with: Ray: 2.59.0" in ended.stderr
    assert f"was started with: Ray: {before}" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
