"""The cluster of docker/compose.yaml on hosts of their own, by the commands that stand there; one host is lost.

A Prefect server on Postgres, an S3 server, a Ray head, two Ray workers (one with a logical GPU), and a Prefect worker
that is a Ray node without capacity. Only names and ports are as in the file: no container runs here.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

import hosts as network
from hosts import Host
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from s3 import SMALL, weed
from service import OFTEN, deployments, ended, start_run
from support import GATE, ROOT, Lake, data_files, permit, wait_until

COMPOSE = ROOT / "docker" / "compose.yaml"
NIGHT = "2026-11-19"
SECRETS = {
    "PREFECT_AUTH": "nightjar:open-sesame",
    "RAY_TOKEN": "a-token-that-every-process-of-the-cluster-has",
    "S3_KEY": "nightjar",
    "S3_SECRET": "nightjar-secret",
    "POSTGRES_PASSWORD": "open-database",
}
AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
RESOURCES = {"ray-worker": ["--num-cpus=1"], "ray-gpu": ["--num-cpus=1", "--num-gpus=1"]}
"""What a container would tell Ray by its size; here all hosts are one machine."""

SOON = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
"""How a head finds sooner that a host is gone: by default after five looks, one every three seconds."""

MODEL = '''
import socket
from gate import Gate


class Gated:
    """Twice x, no faster than the gate lets it; a file says on which host it waits."""

    def __init__(self, permits):
        self.gate = Gate(permits)

    def __call__(self, batch):
        rows = len(batch["x"])
        waits = self.gate.permits.parent / f"waits-{socket.gethostname()}"
        if rows == 1000:
            waits.touch()
        self.gate.wait(rows)
        if rows == 1000:
            waits.unlink(missing_ok=True)
        return {"score": batch["x"] * 2}
'''


def compose() -> dict[str, Any]:
    """The services of the compose file, its variables filled in."""
    text = COMPOSE.read_text()
    for name, value in SECRETS.items():
        for form in (f"${{{name}}}", f"${{{name}:?set it in docker/.env}}"):
            text = text.replace(form, value)
    services: dict[str, Any] = yaml.safe_load(text)["services"]
    return services


@dataclass
class Cluster:
    """The hosts, and what was started on them."""

    hosts: dict[str, Host]
    folder: Path
    services: dict[str, Any]
    ran: dict[str, list[str]] = field(default_factory=dict)

    def start(self, name: str, *extra: str, settings: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a service by the command in the compose file."""
        service = self.services[name]
        words = [word.replace("/jobs", str(self.folder / "jobs")) for word in service["command"]]
        self.ran[name] = words
        words = [word.replace("$$", "$") for word in words]  # as compose does
        return self.hosts[name].start([*words, *extra], {**service.get("environment", {}), **(settings or {})})

    def join(self, name: str, settings: dict[str, str] | None = None) -> None:
        """Start a node of the Ray cluster, and wait until it has joined and is healthy.

        On a busy machine Ray may give a node up that takes longer than half a minute; compose then starts it again.
        """
        node = self.start(name, *RESOURCES.get(name, []), settings=settings)

        def is_there() -> bool:
            nonlocal node
            if node.poll() is not None:
                node = self.start(name, *RESOURCES.get(name, []), settings=settings)
            return "--block" in self.hosts[name].log.read_text() and self.healthy(name)

        wait_until(is_there, 120, f"{name} is healthy")

    @property
    def api(self) -> str:
        """Prefect's API, reached from outside by address."""
        return f"http://{self.hosts['prefect'].address}:4200/api"

    @property
    def storage(self) -> LakeStorage:
        """The S3 server, reached from outside by address."""
        endpoint = f"http://{self.hosts['s3'].address}:8333"
        return LakeStorage(StorageSettings(endpoint, "us-east-1", None, SECRETS["S3_KEY"], SECRETS["S3_SECRET"]))

    def healthy(self, name: str) -> bool:
        """What the image's own health check says on that host."""
        check = Path(COMPOSE.parent / "healthcheck.py")
        command = [sys.executable, str(check)]
        return self.hosts[name].start(command, self.services[name].get("environment", {})).wait(60) == 0


@pytest.fixture(scope="module")
def database() -> Iterator[tuple[Path, Path]]:
    """Postgres's programs, and a new database folder that its own user may read (Postgres refuses to be root)."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        pytest.skip("no Postgres server: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="nj-pg-"))
    shutil.chown(folder, "postgres", "postgres")
    password = folder / "password"
    password.write_text(SECRETS["POSTGRES_PASSWORD"])
    password.chmod(0o644)
    data = folder / "data"
    words = [*AS_POSTGRES, str(programs[-1] / "initdb"), "--username=prefect", f"--pwfile={password}", str(data)]
    subprocess.run([*words, "--auth=scram-sha-256"], check=True, capture_output=True)
    with (data / "pg_hba.conf").open("a") as rules:
        rules.write("host all all 0.0.0.0/0 scram-sha-256\n")
    yield programs[-1], data
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, database: tuple[Path, Path]) -> Iterator[Cluster]:
    """Everything of the compose file, started in its order, each when what it needs is healthy."""
    if why := network.available():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "jobs").mkdir()
    names = ("postgres", "prefect", "s3", "ray-head", "ray-worker", "ray-gpu", "deploy", "worker")
    with network.hosts(folder, *names) as made:
        started = Cluster(made, folder, compose())
        programs, data = database
        listen = ["-D", str(data), "-c", "listen_addresses=*", "-c", f"unix_socket_directories={data}"]
        made["postgres"].start([*AS_POSTGRES, str(programs / "postgres"), *listen], {})
        ready = [str(programs / "pg_isready"), "--host=postgres"]
        wait_until(lambda: made["prefect"].start(ready, {}).wait() == 0, 60, "Postgres is ready")
        subprocess.run(
            [*AS_POSTGRES, str(programs / "createdb"), f"--host={data}", "--username=prefect", "prefect"],
            check=True,
            capture_output=True,
            env={"PGPASSWORD": SECRETS["POSTGRES_PASSWORD"]},
        )
        started.start("prefect", settings={"PREFECT_HOME": str(folder / "prefect")})
        store = folder / "s3"
        store.mkdir()
        started.ran["s3"] = command = started.services["s3"]["command"]
        binary = weed()
        assert binary is not None
        words = [binary, *(word.replace("/data", str(store)) for word in command)]
        made["s3"].start([*words, *SMALL], started.services["s3"]["environment"])
        started.start("ray-head", settings=SOON)
        wait_until(lambda: started.healthy("ray-head"), 90, "the head is healthy")
        for name in RESOURCES:
            started.join(name)
        wait_until(lambda: started.healthy("prefect"), 120, "Prefect is healthy")
        yield started


@dataclass
class Placed:
    """A job whose data lies in the S3 server, deployed and driven by the Prefect worker."""

    cluster: Cluster
    lake: Lake
    out: str

    def permit(self, shards: int) -> None:
        """The model scores so many more shards."""
        permit(self.cluster.folder / "permits", shards)

    def records(self) -> list[dict[str, Any]]:
        """What is in the ledger."""
        storage, uri = self.cluster.storage, f"{self.out}/runs/{NIGHT}/r1/ledger"
        lines = [line for entry in storage.list(uri) for line in storage.read(entry.uri).splitlines()[1:]]
        return [json.loads(line) for line in lines]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The records of one kind."""
        return [record for record in self.records() if record["t"] == kind]

    def rows(self) -> pd.DataFrame:
        """What readers see."""
        files = data_files(self.cluster.storage, self.out, NIGHT)
        tables = [pq.read_table(self.cluster.storage.open(uri)).to_pandas() for uri in files]
        return pd.concat(tables).sort_values(["_file", "_row"], ignore_index=True)


@pytest.fixture(scope="module")
def placed(cluster: Cluster) -> Placed:
    """The bucket, the job, its deployment by the compose file's `deploy`, and the compose file's `worker`."""
    import boto3

    endpoint = f"http://{cluster.hosts['s3'].address}:8333"
    keys = {"aws_access_key_id": SECRETS["S3_KEY"], "aws_secret_access_key": SECRETS["S3_SECRET"]}

    def bucket() -> bool:
        with contextlib.suppress(Exception):
            boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys).create_bucket(Bucket="lake")
            return True
        return False

    wait_until(bucket, 60, "the S3 server makes a bucket")
    lake = Lake(cluster.folder / "jobs" / "spread")
    lake.write_files(files=8, rows=2000)
    for path in sorted((lake.folder / "data").iterdir()):
        cluster.storage.write(f"s3://lake/in/{path.name}", path.read_bytes())
        path.unlink()
    (cluster.folder / "permits").mkdir()
    lake.write_model(MODEL)
    (lake.folder / "gate.py").write_text(GATE)
    lake.write_job(
        name="spread",
        input__uri="s3://lake/in/",
        output__uri="s3://lake/out/",
        model__uses="model:Gated",
        model__options={"permits": str(cluster.folder / "permits")},
        model__batch_size=1000,
        resources={"actors": 2},
    )
    assert cluster.start("deploy").wait(120) == 0, cluster.hosts["deploy"].log.read_text()
    cluster.join("worker", settings=OFTEN)
    return Placed(cluster, lake, "s3://lake/out")


@pytest.fixture
def signed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API wants a password."""
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", SECRETS["PREFECT_AUTH"])


def test_a_lost_host_costs_what_it_was_scoring(placed: Placed, signed_in: None) -> None:
    """Two actors on two hosts; one host is killed in mid-run. The night is published, complete, by the other."""
    api = placed.cluster.api
    run = start_run(api, deployments(api, "spread")["spread"], date=NIGHT)
    waiting = [placed.cluster.folder / f"waits-{host}" for host in RESOURCES]

    def all_wait() -> bool:
        return all(path.exists() for path in waiting)

    # Else the first actor may take every permit before the other is there.
    wait_until(all_wait, 180, "an actor waits on each host")
    placed.permit(6)
    wait_until(lambda: len(placed.of("receipt")) == 6, 180, "six shards are committed")
    # Else the host may be lost between two shards, which costs nothing.
    wait_until(all_wait, 60, "each actor has begun another shard")
    places = {record["worker"].partition(":")[0] for record in placed.of("receipt")}
    assert places == {"ray-worker", "ray-gpu"}
    assert placed.cluster.hosts["ray-worker"].lose() > 0
    placed.permit(30)
    done = ended(api, run, timeout_s=300)
    assert done.state is not None
    assert done.state.is_completed(), done.state.message
    assert placed.rows()["id"].tolist() == list(range(16_000))
    assert (placed.rows()["score"] == placed.rows()["id"] * 2).all()
    receipts, failed = placed.of("receipt"), placed.of("failed")
    assert len(receipts) == len({record["shard"] for record in receipts}) == 16
    assert len(failed) == 1, f"one actor was on that host, with one shard: {failed}"
    assert failed[0]["died"]
    assert failed[0]["worker"].startswith("ray-worker:")
    assert all(r["worker"].startswith("ray-gpu:") for r in receipts[6:])
    assert placed.cluster.healthy("worker"), placed.cluster.hosts["worker"].log.read_text()


def test_doctor_signs_in(cluster: Cluster, placed: Placed) -> None:
    """Prefect's API wants a password, which is in the environment. No run can be driven from here, and why is said."""
    host = cluster.hosts["deploy"]
    before = len(host.log.read_text())
    environment = {**cluster.services["worker"]["environment"], "NIGHTJAR_RAY": "ray-head:6379"}
    host.start(["nightjar", "doctor", "--json"], environment).wait(90)
    found = {line["what"]: line for line in json.loads(host.log.read_text()[before:])}
    assert not found["Ray"]["ok"]
    assert "this machine is not a node of a Ray cluster" in found["Ray"]["found"]
    assert "`ray start --address=ray-head:6379 --num-cpus=0`" in found["Ray"]["found"]
    assert found["Prefect"]["ok"], found
    assert "http://prefect:4200/api: version 3.9" in found["Prefect"]["found"]


def test_a_missing_token_says_so(cluster: Cluster, placed: Placed) -> None:
    """Without the cluster's token: one sentence, exit 2, in bounded time."""
    environment = {**cluster.services["worker"]["environment"], "RAY_AUTH_TOKEN": "", "RAY_AUTH_MODE": "disabled"}
    environment |= {"PREFECT_API_URL": "", "PREFECT_HOME": str(cluster.folder / "none"), "NIGHTJAR_RAY": ""}
    host = cluster.hosts["worker"]
    words = ["nightjar", "check", str(placed.lake.job_path), "--ray", "ray-head:6379"]
    process = host.start(words, environment)
    try:
        assert process.wait(120) == 2, host.log.read_text()
    except subprocess.TimeoutExpired:
        pytest.fail(host.log.read_text())
    assert "no usable Ray cluster at ray-head:6379" in host.log.read_text()
    assert "its token (RAY_AUTH_MODE, RAY_AUTH_TOKEN)" in host.log.read_text()


def test_every_service_ran_by_its_own_command(cluster: Cluster, placed: Placed) -> None:
    """What was started here are the compose file's commands, all of them."""
    services = {name: service for name, service in cluster.services.items() if "command" in service}
    assert set(cluster.ran) == set(services)
    jobs = str(cluster.folder / "jobs")
    for name, words in cluster.ran.items():
        assert [word.replace(jobs, "/jobs") for word in words] == services[name]["command"]
