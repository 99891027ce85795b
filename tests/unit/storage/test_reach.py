"""Data does not choose what is published. Lines, links, files of a table and redirects stay where the job says.

The job names other places in `input.within`.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import Denied, JobError, Missing
from nightjar.inference.input.files import input_files
from nightjar.inference.input.plan import discover
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.run.request import storage_of
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.locations import Reach


def job(folder: Path, **given: Any) -> Job:
    content = {
        "name": "t",
        "input": {"format": "binary", **given},
        "model": {"uses": "m:f", "outputs": {"score": "float32"}},
        "output": {"uri": "out"},
    }
    return parse_job(content, folder / "job.yaml")


def found(given: Job) -> list[str]:
    return [entry.uri for entry in input_files(storage_of(given), given)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a list and a file, beside another one with a secret."""
    for name, content in {"in/a.bin": "a", "other/secret": "key", "in/.hidden": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


# ---- lists --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "/etc/hostname",
        "file:///etc/hostname",
        "sqlite:////etc/hostname",
        "~/.ssh/id_rsa",
        "../other/secret",
        "in/../../other/secret",
        "in/*/../../../other/secret",
        "/etc/host*",
        "http://127.0.0.1:9/",
        "http://127.0.0.1/x",
        "http://2130706433/x",
        "http://0177.0.0.1/x",
        "http://[::ffff:127.0.0.1]/x",
        "http://localhost./x",
        "https://169.254.169.254/latest/meta-data/x",
        "https://example.org/x",
        "s3://other/x",
    ],
)
def test_a_line_outside_of_the_lists_own_place_is_refused_by_its_number(place: Path, line: str) -> None:
    (place / "in" / "names.txt").write_text(f"in/a.bin\n{line}\n")
    with pytest.raises(JobError, match=r"^input\.list: .*names\.txt, line 2: "):
        found(job(place, list="in/names.txt"))


@pytest.mark.parametrize(
    "line", ["s3://lake/b/x", "s3://lake/ab/x", "s3://lake/a/../b", "s3://LAKE/a/x", "gs://lake/a/x"]
)
def test_the_own_place_of_a_list_in_a_bucket_is_its_folder(line: str) -> None:
    assert Reach(["s3://lake/a"]).has("s3://lake/a/b/x")
    assert not Reach(["s3://lake/a"]).has(line)


@pytest.mark.parametrize(
    "uri",
    [
        "https://h/b/x",
        "https://h/a/../b",
        "https://h/a/%2e%2e/b",
        "https://h/a/..%2fb",
        "https://h/a/..\\b",
        "https://h/ab",
        "https://h:444/a/x",
        "https://h./a/x",
        "https://h:port/a/x",
        "https://[h/a/x",
        "http://h/a/x",
        "/a/x",
    ],
)
def test_a_place_of_a_web_server_is_its_host_port_and_path(uri: str) -> None:
    assert not Reach(["https://h/a/"]).has(uri)
    assert all(Reach(["https://h/a/"]).has(each) for each in ("https://h/a/x?y=1", "https://H:443/a/x", "https://h/a"))


def test_a_place_that_the_job_names_is_allowed(place: Path) -> None:
    (place / "in" / "names.txt").write_text(f"in/a.bin\n{place}/other/\n")
    with pytest.raises(JobError, match="line 2") as refused:
        found(job(place, list="in/names.txt"))
    within = json.loads(str(refused.value).rpartition("within: ")[2].rstrip("}"))
    assert within == [f"{place}/other"] or within == [str(place)], "the message says what to write"
    wanted = [f"{place}/in/a.bin", f"{place}/other/secret"]
    assert found(job(place, list="in/names.txt", within=["other/"])) == wanted
    assert found(job(place, list="in/names.txt", within=["."])) == wanted


@pytest.mark.parametrize("within", ["s3a://b/x", "https://me:pw@h/", "s3://b/../c", ""])
def test_a_place_that_is_none_is_refused(place: Path, within: str) -> None:
    with pytest.raises(JobError, match=r"input\.within"):
        job(place, uri="in/", within=[within])


# ---- links and tables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["in/", "in/*", "in/**/*", "in/*/"])
def test_a_link_out_of_the_folder_is_refused_by_its_name(place: Path, uri: str) -> None:
    """Of a file, of a folder, and of a folder in one that is inside."""
    for link, to in {"in/deep/link": "other", "in/b.bin": "other/secret"}.items():
        (place / link).parent.mkdir(exist_ok=True)
        (place / link).symlink_to(place / to)
        if uri == ("in/*/" if link == "in/b.bin" else "in/*"):
            continue  # the pattern does not match it
        with pytest.raises(JobError, match=rf"^input\.uri: .*{link}\S* leads to .*/other/secret, which is not below"):
            found(job(place, uri=uri))
        assert found(job(place, uri=uri, within=["other"]))
        (place / link).unlink()


def test_a_line_that_is_a_link_out_of_the_place_is_refused(place: Path) -> None:
    (place / "in" / "b.bin").symlink_to("../other/secret")
    (place / "in" / "names.txt").write_text("in/b.bin\n")
    with pytest.raises(JobError, match=r"names\.txt, line 1: .*b\.bin leads to .*/other/secret"):
        found(job(place, list="in/names.txt"))
    (place / "in" / "names.txt").write_text("in/\n")
    with pytest.raises(JobError, match=r"^input\.list: .*b\.bin leads to .*/other/secret"):
        found(job(place, list="in/names.txt"))


def test_links_that_the_job_names_or_that_stay_inside_are_input(place: Path) -> None:
    (place / "link").symlink_to("in")
    (place / "one").symlink_to("other/secret")
    (place / "in" / "again").symlink_to("a.bin")
    assert found(job(place, uri="link/")) == [f"{place}/link/a.bin", f"{place}/link/again"]
    assert found(job(place, uri="one")) == [f"{place}/one"]
    (place / "in" / "b.bin").symlink_to("../other/secret")
    assert f"{place}/in/b.bin" in found(job(place, uri=["in/", "other/"])), "another place of the job"


@pytest.mark.parametrize("path", ["{}/other/x.parquet", "../other/x.parquet", "file://{}/other/x.parquet"])
def test_a_file_of_a_delta_table_that_lies_elsewhere_is_refused(place: Path, path: str) -> None:
    deltalake = pytest.importorskip("deltalake")
    pq.write_table(pa.table({"x": [1]}), place / "other" / "x.parquet")
    deltalake.write_deltalake(place / "t", pa.table({"x": [2]}))
    size = (place / "other" / "x.parquet").stat().st_size
    added = {"path": path.format(place), "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
    (place / "t/_delta_log/00000000000000000001.json").write_text(json.dumps({"add": added}))
    with pytest.raises(JobError, match=r"^input\.uri: .*other/x\.parquet is not below|leads to .*other/x\.parquet"):
        found(job(place, uri="t", format="delta"))
    given = job(place, uri="t", format="delta", within=["other/"])
    assert discover(storage_of(given), given).rows == 2


# ---- web servers --------------------------------------------------------------------------------------------------


class Redirecting(BaseHTTPRequestHandler):
    """Sends each request on to what stands behind `?to=`; any other is answered."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        to = unquote(self.path.partition("?to=")[2])
        self.send_response(302 if to else 200)
        self.send_header("Content-Length", "0" if to else "5")
        if to:
            self.send_header("Location", to)
        self.end_headers()
        self.wfile.write(b"" if to or self.command == "HEAD" else b"inner")

    do_HEAD = do_GET  # noqa: N815 (as http.server calls it)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[list[ThreadingHTTPServer]]:
    """Two servers of this machine."""
    made = []
    for _ in range(2):
        handler = type("Handler", (Redirecting,), {"asked": []})
        made.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=made[-1].serve_forever, kwargs={"poll_interval": 0.01}).start()
    yield made
    for each in made:
        each.shutdown()
        each.server_close()


def root_of(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def asked(server: ThreadingHTTPServer) -> list[str]:
    return server.RequestHandlerClass.asked  # type: ignore[attr-defined, no-any-return]


def test_each_redirect_is_checked_before_it_is_followed(place: Path, servers: list[ThreadingHTTPServer]) -> None:
    first, second = servers
    inner = f"{root_of(second)}/inner.bin"
    (place / "in" / "names.txt").write_text(f"{root_of(first)}/x?to={quote(inner, safe='')}\n")
    given = job(place, list="in/names.txt", within=[root_of(first)])
    with pytest.raises(Denied, match=rf"^{inner}: the job does not name .*within: \[{root_of(second)}/\]"):
        found(given)
    twice = f"{root_of(first)}/x?to={quote(f'{root_of(first)}/y?to={quote(inner)}')}"
    with pytest.raises(Denied, match="the job does not name"):
        storage_of(given).read(twice)
    for scheme in ("http://me:pw@", "file://", "ftp://"):
        with pytest.raises(Exception, match=r"does not name|unsupported"):
            storage_of(given).read(f"{root_of(first)}/x?to={scheme}127.0.0.1:{first.server_address[1]}/y")
    assert asked(second) == [], "nobody has asked there"
    given = job(place, list="in/names.txt", within=[f"{root_of(first)}/x", f"{root_of(second)}/inner.bin"])
    assert storage_of(given).read(f"{root_of(first)}/x?to={quote(inner, safe='')}") == b"inner"
    with pytest.raises(Denied, match="the job does not name"):
        storage_of(given).read(f"{root_of(first)}/x?to={root_of(second)}/other.bin")


def test_no_web_server_is_asked_that_the_job_does_not_name(servers: list[ThreadingHTTPServer]) -> None:
    with pytest.raises(Denied, match="the job does not name"):
        LakeStorage().read(f"{root_of(servers[0])}/x")
    assert asked(servers[0]) == []


# ---- no files -----------------------------------------------------------------------------------------------------


def test_pipes_sockets_and_links_to_nothing_are_no_input_and_hang_nobody(place: Path) -> None:
    os.mkfifo(place / "in" / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(place / "in" / "socket"))
        (place / "in" / "loop").symlink_to("loop")
        (place / "in" / "gone").symlink_to("nothing")
        (place / "in" / "round").symlink_to(".")
        (place / "in" / "device").symlink_to("/dev/zero")
        assert found(job(place, uri="in/")) == [f"{place}/in/a.bin"]
    with pytest.raises(JobError, match=r"no input files at .*/in/pipe"):
        found(job(place, uri="in/pipe"))
    with pytest.raises(JobError, match=r"there is no list .*/in/pipe"):
        found(job(place, list="in/pipe"))
    for call in (LakeStorage().read, LakeStorage().open):
        with pytest.raises(Missing):
            call(f"{place}/in/pipe")
