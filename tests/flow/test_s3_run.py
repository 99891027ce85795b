"""A run on one machine with everything on S3: input, model and output."""

from __future__ import annotations

import pandas as pd
import pyarrow.parquet as pq
import pytest

import steps as run
from commands import DATE, MONTHS, Flights, OnS3
from forked import forked_light
from nightjar.inference.errors import AlreadyExists, JobError
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import ANYBODY
from support import FLIGHTS, Lake


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
