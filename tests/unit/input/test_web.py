"""Files of web servers as inputs: with ranges and without, and what tells a file from another one."""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steps as run
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import Denied, InputChanged, JobError, Missing, StorageError, Transient
from nightjar.inference.history.replay import replay_row
from nightjar.inference.input.plan import Plan, discover
from nightjar.inference.input.sources.reading import describe, read_piece
from nightjar.inference.job.file import parse_job
from nightjar.inference.records import Piece
from nightjar.inference.run.waiting import await_input
from nightjar.inference.storage import locations
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.locations import location
from support import Lake, full_disk

BODY = bytes(range(256)) * 12_000


class Server:
    """A web server. files: by path. told: headers of each answer. faults: statuses of the next answers. asked: by whom.

    ranges, heads: whether it takes ranges, and HEAD. totals: whether a range says the size of the whole file.
    """

    def __init__(self, *, ranges: bool = True, heads: bool = True, totals: bool = True, **told: str) -> None:
        self.ranges, self.heads, self.totals = ranges, heads, totals
        self.files: dict[str, bytes] = {}
        self.told = {name.replace("_", "-"): value for name, value in told.items()}
        self.faults: list[int] = []
        self.asked: list[tuple[str, str, str]] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.root = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.storage = LakeStorage(StorageSettings(retry_s=5, timeout_s=5, web=(self.root,)))

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805 (self is the handler's)
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, status: int, body: bytes, **headers: str) -> None:
                self.send_response(status)
                for name, value in {**server.told, **headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def do_HEAD(self) -> None:
                if server.heads:
                    self.do_GET()
                else:
                    self.answer(405, b"")

            def do_GET(self) -> None:
                wanted = self.headers.get("Range", "")
                server.asked.append((self.command, self.path, wanted))
                if server.faults:
                    self.answer(server.faults.pop(0), b"fault")
                elif self.path not in server.files:
                    self.answer(404, b"none")
                elif wanted and server.ranges and self.command == "GET":
                    body = server.files[self.path]
                    low, high = (int(each) for each in wanted.removeprefix("bytes=").split("-"))
                    if low >= len(body):
                        self.answer(416, b"")
                        return
                    part = body[low : high + 1]
                    total = len(body) if server.totals else "*"
                    self.answer(206, part, **{"Content-Range": f"bytes {low}-{low + len(part) - 1}/{total}"})
                else:
                    self.answer(200, server.files[self.path])

            def log_message(self, *_: object) -> None:
                pass

        return Handler


KINDS = {
    "ranges and etags": {"ETag": '"v1"'},
    "ranges, no etag": {"Last_Modified": "Wed, 18 Nov 2026 07:28:00 GMT"},
    "ranges, no version": {},
    "no ranges": {"ranges": False, "ETag": '"v1"'},
    "neither ranges nor HEAD nor version": {"ranges": False, "heads": False},
    "ranges without a size": {"totals": False, "ETag": '"v1"'},
    "no HEAD": {"heads": False, "ETag": '"v1"'},
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(**request.param)
    yield made
    made.close()


@pytest.fixture
def plain() -> Iterator[Server]:
    made = Server(ETag='"v1"')
    yield made
    made.close()


def test_a_file_is_read_whole_and_in_parts(server: Server) -> None:
    server.files = {"/a.bin": BODY, "/empty.bin": b""}
    uri = f"{server.root}/a.bin"
    entry = server.storage.stat(uri)
    assert (entry.uri, entry.size) == (uri, len(BODY))
    assert server.storage.read(uri) == BODY
    with server.storage.open(uri) as file:
        assert file.size() == len(BODY)
        file.seek(100_000)
        assert file.read(1000) == BODY[100_000:101_000]
        file.seek(len(BODY) - 7)
        assert file.read() == BODY[-7:]
    assert server.storage.stat(f"{server.root}/empty.bin").size == 0
    with server.storage.open(f"{server.root}/empty.bin") as file:
        assert file.read() == b""


def test_only_the_parts_that_are_needed_are_fetched(plain: Server, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"x": range(200_000), "y": [i * 7919 % 104729 for i in range(200_000)]}), tmp_path / "a", 20_000
    )
    plain.files["/a.parquet"] = (tmp_path / "a").read_bytes()
    with plain.storage.open(f"{plain.root}/a.parquet") as file:
        assert pq.ParquetFile(file).read_row_group(3, ["x"])["x"][0].as_py() == 60_000
    fetched = [wanted for _, _, wanted in plain.asked if wanted]
    sizes = [int(high) - int(low) + 1 for low, high in (each.removeprefix("bytes=").split("-") for each in fetched)]
    assert sum(sizes) < len(plain.files["/a.parquet"]) + (1 << 20)
    assert all(wanted for method, _, wanted in plain.asked if method == "GET")


def test_a_full_temporary_disk_is_no_fault_of_the_server() -> None:
    server = Server(ranges=False)
    server.files = {"/a.bin": BODY}
    try:
        with full_disk(), pytest.raises(StorageError, match=r"/a\.bin: .*TMPDIR"):
            server.storage.open(f"{server.root}/a.bin")
    finally:
        server.close()


def test_the_server_says_what_is_wrong(plain: Server) -> None:
    plain.files["/a"] = b"x"
    with pytest.raises(Missing, match="the server answers 404"):
        plain.storage.stat(f"{plain.root}/none")
    plain.faults = [403, 403]
    with pytest.raises(Denied, match="only files that anybody may read can be input"):
        plain.storage.stat(f"{plain.root}/a")
    plain.faults = [503, 429]
    assert plain.storage.stat(f"{plain.root}/a").size == 1
    plain.faults = [418]
    with pytest.raises(StorageError, match="418"):
        plain.storage.read(f"{plain.root}/a")
    with pytest.raises(StorageError, match="can only be read"):
        plain.storage.write(f"{plain.root}/a", b"y")
    assert not [*plain.storage.list(f"{plain.root}/"), *plain.storage.subfolders(f"{plain.root}/")]
    plain.close()
    with pytest.raises(Transient, match="ConnectError"):
        LakeStorage(StorageSettings(retry_s=0, timeout_s=1, web=(plain.root,))).stat(f"{plain.root}/a")
    plain._http = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # for the fixture to close
    plain._thread = threading.Thread(target=plain._http.serve_forever, args=(0.01,))
    plain._thread.start()


@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_is_what_the_server_sends_however_it_calls_its_encoding(ranges: bool, tmp_path: Path) -> None:
    """Servers often say gzip of a file that is called .csv.gz; one that packs other files is told apart."""
    server, rows = Server(ranges=ranges, ETag='"1"', Content_Encoding="gzip"), b"id,x\n" + b"1,1.5\n" * 20_000
    try:
        server.files = {"/a.csv.gz": gzip.compress(rows), "/a.csv": gzip.compress(rows)}
        assert server.storage.read(f"{server.root}/a.csv.gz") == server.files["/a.csv.gz"]
        lake = Lake(tmp_path, LOCAL)
        lake.write_model()
        lake.write_job(input__uri=f"{server.root}/a.csv.gz", carry=["id"])
        lake.run()
        assert len(lake.published()) == 20_000
        lake.write_job(input__uri=f"{server.root}/a.csv", carry=["id"])
        with pytest.raises(
            StorageError, match=r"/a\.csv: the server sends it packed \(Content-Encoding: gzip\), .*\.gz$"
        ):
            run.discover(lake.request())
    finally:
        server.close()


def test_a_file_that_is_not_there_yet_is_waited_for_and_told_as_any_other(plain: Server, tmp_path: Path) -> None:
    lake = Lake(tmp_path, LOCAL)
    lake.write_files(files=1, rows=10)
    lake.write_model()
    late = f"{plain.root}/late.parquet?of=2026"
    lake.write_job(input={"uri": late, "format": "parquet", "wait": {"for": "3s"}})
    request = lake.request()

    def put() -> None:
        plain.files["/late.parquet?of=2026"] = (tmp_path / "data/part-00.parquet").read_bytes()

    assert await_input(plain.storage, request.job, lambda _: put(), sleep=lambda _: None)
    assert run.discover(request).rows == 10
    plain.files.clear()
    with pytest.raises(JobError, match=r"input\.uri: no input files at http.*/late\.parquet"):
        run.discover(request)
    (tmp_path / "list.txt").write_text(f"data/part-00.parquet\n{plain.root}/none.parquet\n")
    lake.write_job(input={"list": "list.txt", "within": [plain.root]})
    with pytest.raises(JobError, match=r"input\.list: .*/list\.txt, line 2: no files at http.*/none\.parquet"):
        run.discover(lake.request())
    plain.faults = [403] * 9
    with pytest.raises(Denied, match="403"):
        run.discover(lake.request())


def test_a_file_that_changes_is_another_one(server: Server) -> None:
    """By its etag, its time or its length. Without etag and time a change of the same length cannot be seen."""
    server.files["/a.csv"] = b"x\n1\n"
    uri = f"{server.root}/a.csv"
    model = {"uses": "m:f", "outputs": {"y": "float64"}}
    job = parse_job(
        {"name": "t", "input": {"uri": uri}, "model": model, "output": {"uri": "o"}}, Path("/jobs/job.yaml")
    )
    entry = server.storage.stat(uri)
    found = describe(server.storage, job, entry)
    piece = Piece(entry.uri, entry.size, entry.version, 0, 1, (0, 1))
    assert read_piece(server.storage, job, piece, found.schema).table.to_pylist() == [{"x": 1}]
    server.files["/a.csv"] = b"x\n1\n2\n"
    with pytest.raises(InputChanged, match="changed since it was planned"):
        read_piece(server.storage, job, piece, found.schema)
    server.files["/a.csv"] = b"x\n2\n"
    server.told |= {"ETag": '"v2"'} if "ETag" in server.told else {}
    server.told |= {"Last-Modified": "Thu, 19 Nov 2026 07:28:00 GMT"} if "Last-Modified" in server.told else {}
    if server.told:
        with pytest.raises(InputChanged, match="changed since it was planned"):
            read_piece(server.storage, job, piece, found.schema)


@pytest.mark.parametrize("server", [KINDS["ranges and etags"], {"ranges": False, "heads": False}], indirect=True)
def test_files_of_a_server_and_of_a_disk_are_scored_in_one_run(server: Server, tmp_path: Path) -> None:
    lake = Lake(tmp_path, LOCAL)
    for index in range(3):
        path = lake.write_file(f"part-{index}.parquet", 100 * index, 100)
        if index:
            server.files[f"/lake/{path.name}"] = path.read_bytes()
            path.unlink()
    lake.write_model()
    lake.write_job(input__uri=[f"{server.root}/lake/part-2.parquet", "data/", f"{server.root}/lake/part-1.parquet"])
    lake.run()
    found = lake.published().sort_values("id")
    assert found["score"].tolist() == [2.0 * index for index in range(300)]
    assert set(found["_file"]) == {
        str(tmp_path / "data/part-0.parquet"), *(f"{server.root}/lake/part-{index}.parquet" for index in (1, 2))
    }  # fmt: skip
    assert lake.run().scored.progress.reused_rows == 300


def test_a_list_names_each_row_once_and_each_place_has_files(tmp_path: Path) -> None:
    """A folder and a file in it; another place without files is told, not passed over."""
    lake = Lake(tmp_path, LOCAL)
    lake.write_files(files=2, rows=10)
    lake.write_model()
    lake.write_job(input__uri=["data/part-01.parquet", "data/", "data/*.parquet"])
    lake.run()
    assert lake.published()["id"].tolist() == list(range(20))
    lake.write_job(input__uri=["data/", "more/"])
    with pytest.raises(JobError, match=r"input\.uri: no files at .*/more/, one of 2 inputs; take it out, or mend it"):
        run.discover(lake.request())
    for given, said in (
        ([], "must be a place, or a list of places, none of them empty$"),
        (["data/", 3], "must be a place, or a list of places, none of them empty$"),
        (["a/", "a/"], "'a/' is listed twice"),
    ):
        lake.write_job(input__uri=given)
        with pytest.raises(JobError, match=rf"input\.uri: {said}"):
            lake.request()
    lake.write_job(input__uri="data/", input__others=["more/"])
    with pytest.raises(JobError, match=r"unknown key 'input\.others'"):
        lake.request()
    lake.write_job(input__uri=["data/", "out/"])
    with pytest.raises(JobError, match=r"output\.uri: .* and input\.uri .*/out/ lie in each other"):
        run.discover(lake.request())


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("x.csv", b"a,b\n1,2\n"),
        ("x.csv.gz", b"a,b\n1,2\n"),
        ("x.tsv", b"a;a\tb\n1\t2\n"),
        ("x.jsonl.gz", b'{"a": 1, "b": 2}\n'),
    ],
)
def test_the_query_of_a_url_is_no_part_of_the_name_that_tells_the_format(name: str, body: bytes) -> None:
    """A server may say gzip of a file that is packed by its name."""
    server = Server(ETag='"1"')
    try:
        server.told |= {"Content-Encoding": "gzip"} if name.endswith(".gz") else {}
        server.files = {f"/{name}?download=1": gzip.compress(body) if name.endswith(".gz") else body}
        uri = location(f"{server.root}/{name}?download=1")
        entry = server.storage.stat(uri)
        assert "?sha256=" in uri
        model = {"uses": "m:f", "outputs": {"y": "float64"}}
        content = {"name": "t", "input": {"uri": uri}, "model": model, "output": {"uri": "o"}}
        job = parse_job(content, Path("/jobs/job.yaml"))
        found = describe(server.storage, job, entry)
        piece = Piece(entry.uri, entry.size, entry.version, 0, found.rows[0], (0, 1))
        assert list(read_piece(server.storage, job, piece, found.schema).table.to_pydict().values()) == [[1], [2]]
    finally:
        server.close()


# ---- signed URLs --------------------------------------------------------------------------------------------------

SECRET, AGAIN = "0123456789abcdef", "fedcba9876543210"


def sign(plain: Server, lake: Lake, signature: str, **files: bytes) -> None:
    """A list of URLs of two files, signed anew: the server has them under these URLs alone."""
    given = files or {f"part-{i}": lake.write_file("x.parquet", i * 100, 100).read_bytes() for i in range(2)}
    paths = {f"/{name}.parquet?X-Amz-Expires=60&X-Amz-Signature={signature}": body for name, body in given.items()}
    plain.files = {**paths}
    (lake.folder / "names.txt").write_text("\n".join(f"{plain.root}{path}" for path in paths))


@pytest.mark.system
def test_a_run_goes_on_with_urls_that_were_signed_anew(
    plain: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interruption, for what is published already, with rescoring, and for a row that is replayed."""
    lake = Lake(tmp_path, LOCAL)
    lake.write_model()
    sign(plain, lake, SECRET)
    lake.write_job(input={"list": "names.txt", "within": [plain.root]}, rescore={"share": 1})
    lake.run(limit=100, run_id="2026-11-19")
    sign(plain, lake, AGAIN)
    assert lake.run(limit=150, run_id="2026-11-19").scored.progress.reused_rows == 100
    lake.run(run_id="whole")
    assert lake.published("whole")["_file"].unique().tolist() == [f"{plain.root}/part-{i}.parquet" for i in range(2)]
    sign(plain, lake, "another")
    assert lake.run(run_id="whole").scored.progress.reused_rows == 200
    shard, _ = Plan.from_bytes((lake.revision(run_id="whole") / "plan-000001.parquet").read_bytes()).ids()
    request = lake.request(run_id="whole", scores=False)
    monkeypatch.setattr(locations, "_queries", {})  # as in a process that has read no list yet
    assert replay_row(request, shard, 7, None, pdb=False).scored
    for path in lake.out.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


def test_a_signature_that_has_expired_is_said(plain: Server, tmp_path: Path) -> None:
    lake = Lake(tmp_path, LOCAL)
    lake.write_model()
    sign(plain, lake, SECRET)
    lake.write_job(input={"list": "names.txt", "within": [plain.root]}, retry__attempts=1)
    plain.faults = [403] * 50
    request = lake.request()
    with pytest.raises(Denied, match=r"/part-0\.parquet: the server answers 403 .* may have expired: sign it again"):
        discover(request.storage, request.job)


def test_the_log_of_httpx_has_no_query(plain: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Some programs log everything of level INFO."""
    path = f"/a?X-Amz-Signature={SECRET}"
    plain.files[path] = b"x"
    with caplog.at_level(logging.INFO):
        assert LakeStorage(StorageSettings(retry_s=5, web=(plain.root,))).read(location(f"{plain.root}{path}")) == b"x"
    logging.getLogger("httpx").warning("still heard")
    assert "still heard" in caplog.text
    assert SECRET not in caplog.text
