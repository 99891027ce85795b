"""A run on one machine with everything on S3: input, model and output."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

import steps as run
from commands import DATE, Flights
from forked import Done, forked, forked_light
from nightjar.inference.errors import AlreadyExists, JobError
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import ANYBODY
from s3 import S3Server
from support import FLIGHTS, Lake

pytestmark = [pytest.mark.flow, pytest.mark.s3]

MONTHS = ("01", "07")


@dataclass
class OnS3:
    """The run and where it lies."""

    bucket: str
    job: Path
    env: dict[str, str]
    storage: LakeStorage
    ended: Done

    @property
    def said(self) -> dict[str, Any]:
        """What it says with --json."""
        found: dict[str, Any] = json.loads(self.ended.stdout)
        return found

    def names(self) -> list[str]:
        """Every object in the bucket."""
        return [entry.uri for entry in self.storage.list(self.bucket)]


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def listed(on_s3: OnS3) -> list[str]:
    """What `nightjar files` prints."""
    return forked_light("files", on_s3.job, env=on_s3.env).stdout.splitlines()


def test_every_row_of_the_bucket_is_published_in_the_bucket(on_s3: OnS3, listed: list[str]) -> None:
    """Rows in = rows out; each row of each object once."""
    assert (on_s3.ended.returncode, on_s3.ended.stderr) == (0, "")
    rows = sum(pq.read_metadata(FLIGHTS / "data" / f"flights-2013-{month}.parquet").num_rows for month in MONTHS)
    assert (on_s3.said["rows_in"], on_s3.said["rows_out"]) == (rows, rows)
    scored = _scores(on_s3.storage, listed)
    assert len(scored) == rows
    assert not scored.duplicated(["_file", "_row"]).any()
    assert set(scored["_file"]) == {f"{on_s3.bucket}/in/flights-2013-{month}.parquet" for month in MONTHS}


def test_files_prints_the_objects_of_the_publication(on_s3: OnS3, listed: list[str]) -> None:
    """Full s3:// URIs, one a line, all of which are there."""
    assert listed
    assert all(uri.startswith(f"{on_s3.bucket}/out/runs/{DATE}/r1/data/") for uri in listed)
    assert set(listed) <= set(on_s3.names())


def test_the_scores_are_those_of_the_same_rows_on_disk(on_s3: OnS3, listed: list[str], flights: Flights) -> None:
    """Where rows and model lie does not matter to what comes out."""
    here = _scores(LakeStorage(), forked_light("files", flights.job).stdout.splitlines())
    there = _scores(on_s3.storage, listed)
    for frame in (here, there):
        frame["_file"] = frame["_file"].str.rpartition("/")[2]
    both = there.merge(here, on=["_file", "_row"], suffixes=("_s3", "_disk"), validate="1:1")
    assert len(both) == len(there)
    assert (both["score_s3"] - both["score_disk"]).abs().max() < 1e-6


def test_nothing_but_the_run_is_left_in_the_bucket(on_s3: OnS3) -> None:
    """The probe for conditional writes cleans up behind itself."""
    probes = [name for name in on_s3.names() if "probe" in name]
    assert not probes


class Overwriting(LakeStorage):
    """A store that takes every create, whether the object is there or not."""

    def create(self, uri: str, data: bytes, mode: int = ANYBODY) -> None:
        try:
            super().create(uri, data, mode)
        except AlreadyExists:
            self.write(uri, data)


def test_a_store_that_ignores_conditional_writes_is_refused(lake: Lake) -> None:
    """Before anything is scored, in a sentence that names the key and the way out."""
    request = lake.ready().request(storage=Overwriting())
    with pytest.raises(JobError, match=r"output\.uri: .*ignores create-if-absent.*output\.single_writer: true"):
        run.score(request, run.discover(request))


def _scores(storage: LakeStorage, uris: list[str]) -> pd.DataFrame:
    columns = ["_file", "_row", "score"]
    tables = [pq.read_table(storage.open(uri), columns=columns).to_pandas() for uri in uris]
    return pd.concat(tables, ignore_index=True).astype({"_file": str})
