"""Whole commands, each run once a session and looked at by many tests."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import yaml

from commands import DATE, MONTHS, Flights, OnS3, Partial, Watched, at_terminal, watching
from forked import forked
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from s3 import S3Server
from support import FLIGHTS, Lake, command, leaves_nothing

OBEYED = "\x1b]0;owned\x07\x1b[2J\x9b2J\nnightjar: published as #99"
"""What a terminal would obey, and a line that reads like one of the command's own."""

EVENTFUL = '''
import os
import time
from pathlib import Path

time.sleep(1)


def score(batch):
    """Twice x, slowly. One row cannot be scored, and the first micro-batch of all after preflight ends its process."""
    print(SAYS)
    x, seen = batch["x"], Path(__LIVE__, "seen")
    time.sleep(0.1)
    if len(x) > 32 and not seen.exists():
        seen.touch()
        os._exit(9)
    if 1234 in x:
        raise ValueError("1234 cannot be scored")
    return {"score": x * 2}
'''


@pytest.fixture(scope="session")
def api_env(prefect_api: str, prefect_home: Path) -> dict[str, str]:
    """The environment of commands that report to the session's Prefect server."""
    return {"PREFECT_API_URL": prefect_api, "PREFECT_HOME": str(prefect_home)}


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str], empty_database: Path) -> Flights:
    """Both runs; neither leaves a process behind. The second one's own server finds its database made."""
    folder = tmp_path_factory.mktemp("flights")
    job = yaml.safe_load((FLIGHTS / "job.yaml").read_text())
    job["input"]["uri"] = str(FLIGHTS / "data")
    job["model"]["path"] = str(FLIGHTS / "models" / "delay.pt2")
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    # Ray's sockets want a short path.
    with tempfile.TemporaryDirectory(prefix="njt-", dir="/tmp") as ray, leaves_nothing() as mark:
        with watching(mark) as scoring:
            first = command("run", path, "--date", DATE, env={**api_env, **mark, "RAY_TMPDIR": ray})
        left = sorted(path.name for path in Path(ray).iterdir())
    home = tmp_path_factory.mktemp("home")
    shutil.copy(empty_database, home / "prefect.db")
    own = {"PREFECT_HOME": str(home), "PREFECT_API_URL": ""}
    with leaves_nothing() as mark, watching(mark) as repeating:
        again = forked("run", path, "--date", DATE, "--json", env={**own, **mark})
    return Flights(path, first, again, scoring, repeating, left)


@pytest.fixture(scope="session")
def eventful(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Watched:
    """A run at a terminal with a quarantined row and a lost process."""
    return _watched(tmp_path_factory.mktemp("eventful"), api_env, "eventful", "local", "scoring")


@pytest.fixture(scope="session")
def eventful_on_ray(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Watched:
    """The same on Ray; its model prints what would be obeyed."""
    return _watched(tmp_path_factory.mktemp("on-ray"), api_env, "eventful-on-ray", "ray", OBEYED)


def _watched(folder: Path, env: dict[str, str], name: str, engine: str, says: str) -> Watched:
    lake = Lake(folder)
    lake.write_model(EVENTFUL.replace("SAYS", repr(says)))
    lake.ready(name=name, resources={"actors": 2}, retry__max_quarantined=0.001)
    code, written = at_terminal("run", lake.job_path, "--date", DATE, "--engine", engine, env=env)
    return Watched(lake, code, written)


@pytest.fixture(scope="session")
def on_s3(tmp_path_factory: pytest.TempPathFactory, server: S3Server, api_env: dict[str, str]) -> OnS3:
    """Two months of the flights example, uploaded and run; the credentials are in the environment only."""
    folder = tmp_path_factory.mktemp("s3")
    bucket = server.create_bucket(f"flights-{folder.parent.name}")
    storage = LakeStorage(StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key))
    for month in MONTHS:
        name = f"flights-2013-{month}.parquet"
        storage.write(f"{bucket}/in/{name}", (FLIGHTS / "data" / name).read_bytes())
    storage.write(f"{bucket}/models/delay.pt2", (FLIGHTS / "models" / "delay.pt2").read_bytes())
    job = yaml.safe_load((FLIGHTS / "job.yaml").read_text())
    job["name"] = "flights-on-s3"
    job["input"]["uri"] = f"{bucket}/in/"
    job["model"]["path"] = f"{bucket}/models/delay.pt2"
    job["output"]["uri"] = f"{bucket}/out/"
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    env = {
        **api_env,
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_DEFAULT_REGION": server.region,
        "AWS_ENDPOINT_URL": server.endpoint,
    }
    return OnS3(bucket, path, env, storage, forked("run", path, "--date", DATE, "--engine", "local", "--json", env=env))


@pytest.fixture(scope="session")
def partial(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Partial:
    """Seven of eight shards can be scored."""
    lake = Lake(tmp_path_factory.mktemp("partial")).ready(name="partial")
    damaged = lake.folder / "data" / "part-02.parquet"
    data = bytearray(damaged.read_bytes())
    data[100:400] = bytes(300)  # pages of the first row group; the footer stays as it is
    damaged.write_bytes(data)
    return Partial(lake, forked("run", lake.job_path, "--date", DATE, "--engine", "local", env=api_env))
