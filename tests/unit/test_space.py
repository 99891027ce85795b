"""The room on a local output's disk, on a real small file system."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import JobError, RunFailed
from nightjar.inference.input.discovery import discover
from nightjar.inference.output.space import check_room, check_space
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "small", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_run_that_cannot_fit_is_refused_before_it_begins(lake: Lake, small: Path) -> None:
    """8,000 rows of 1,000 float64 are 64 MB; the folder need not be there yet."""
    job = lake.ready(model__outputs={"embedding": "float64[1000]"}).request().job
    found = discover(LakeStorage(), job)
    with pytest.raises(JobError, match=r"^output\.uri: the disk of .* has 8\.0 MiB free, .* about 61\.\d MiB"):
        check_space(job, f"{small}/not/yet/there", found, 8000)
    check_space(job, str(small), found, 800)


def test_estimates_are_of_what_is_left(lake: Lake, small: Path) -> None:
    """A run that is nearly done is not refused for what it has written already."""
    job = lake.ready(model__outputs={"embedding": "float64[1000]"}).request().job
    check_space(job, str(small), discover(LakeStorage(), job), 10)


def test_what_the_input_takes_few_bytes_for_may_take_few_in_the_output(lake: Lake, small: Path) -> None:
    """Half a gigabyte of constants is as good as nothing in Parquet, there and here."""
    constants = {name: [7] * 1_000_000 for name in ("id", "day", "hour", "region")}
    (lake.folder / "data").mkdir(exist_ok=True)
    pq.write_table(pa.table({**constants, "x": [1.0] * 1_000_000}), lake.folder / "data" / "a.parquet")
    lake.write_model()
    lake.write_job(model__features=["x"], model__outputs={"score": "bool"}, carry=list(constants))
    job = lake.request().job
    check_space(job, str(small), discover(LakeStorage(), job), 1_000_000)


def test_columns_that_are_not_carried_are_not_counted(lake: Lake, small: Path) -> None:
    """The estimate is what a part takes at least: a wide input, of which a number is carried, says nothing of it."""
    table = pa.table({"id": range(100), "x": [1.0] * 100, "image": [os.urandom(1 << 20)] * 100})
    (lake.folder / "data").mkdir(exist_ok=True)
    pq.write_table(table, lake.folder / "data" / "a.parquet", use_dictionary=False)
    lake.write_model()
    lake.write_job(model__features=["x"], carry=["id"])
    job = lake.request().job
    check_space(job, str(small), discover(LakeStorage(), job), 100)


def test_a_disk_that_is_all_but_full_stops_the_run(small: Path) -> None:
    check_room(str(small))
    (small / "filler").write_bytes(bytes(8 * MIB - 100_000))
    with pytest.raises(RunFailed, match=r"all but full \(0\.1 MiB left\).*repeat the command"):
        check_room(str(small / "out" / "runs"))


def test_object_stores_have_no_end(lake: Lake) -> None:
    job = lake.ready(model__outputs={"embedding": "float64[1000]"}).request().job
    check_space(job, "s3://bucket/out", discover(LakeStorage(), job), 10**12)
    check_room("s3://bucket/out")
