"""Discovery: what is in each file, and what becomes of one that cannot be read, vanishes or is replaced."""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_discovery import STORAGE, first_schema, job, write

import faults
from faults import FaultyStorage
from nightjar.inference.errors import Denied, InputChanged, InputCorrupt, JobError, Missing, StorageError, Transient
from nightjar.inference.input.plan import discover, make_plan
from nightjar.inference.input.sources.reading import describe, read_piece
from nightjar.inference.records import UNKNOWN, UNREADABLE
from nightjar.inference.storage.lake import LakeStorage


def test_row_counts_are_per_row_group(tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"x": range(25)}), path, row_group_size=10)
    lake = discover(STORAGE, job(tmp_path, "in/"))
    assert lake.files["rows"].to_pylist() == [[10, 10, 5]]
    assert all(size > 0 for size in lake.files["sizes"].to_pylist()[0])
    assert lake.rows == 25


REPEATED = {
    "text": pa.array(["premium customer", "basic", "north america"] * 10_000),
    "categories": pa.array(["premium customer", "basic", "north america"] * 10_000).dictionary_encode(),
    "numbers": pa.array([1, 2, 3] * 10_000),
    "truths": pa.array([True, False, None] * 10_000),
    "structs": pa.array([{"a": 1, "b": [1.5]}] * 30_000),
    "embeddings": pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 240_000, pa.float32()), 8),
}


@pytest.mark.parametrize("name", REPEATED)
def test_values_that_repeat_are_weighed_as_what_they_are_in_memory(tmp_path: Path, name: str) -> None:
    """In the file they take next to nothing: shards planned by that would not fit where they are scored."""
    table = pa.table({name: REPEATED[name]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=15_000)
    sizes = describe(STORAGE, job(tmp_path, "a.parquet"), STORAGE.stat(str(path))).sizes
    assert len(sizes) == 2
    assert 0.5 < sum(sizes) / table.nbytes < 2


@pytest.mark.parametrize("content", [b"", b"PAR1", b"garbage", b"PAR1" + b"\0" * 100 + b"PAR1", b"x" * 10_000])
def test_an_unreadable_footer_costs_that_file_only(tmp_path: Path, content: bytes) -> None:
    """Promise 6: the file is in the plan with its error, so that its shard fails and is reported."""
    write(tmp_path / "in" / "b.parquet")
    (tmp_path / "in" / "a.parquet").write_bytes(content)
    lake = discover(STORAGE, job(tmp_path, "in/"))
    bad, good = lake.files.to_pylist()
    assert str(tmp_path / "in" / "a.parquet") in bad["error"]
    assert (bad["rows"], good["error"], good["rows"]) == ([], None, [3])
    assert (lake.unreadable, lake.rows) == (1, 3)
    assert lake.unread == f"1 file cannot be read, and will fail; the first: {bad['error']}"
    assert lake.schema.names == first_schema(STORAGE, job(tmp_path, "in/")).names == ["x"]


def test_a_truncated_file_costs_that_file_only(tmp_path: Path) -> None:
    path = write(tmp_path / "in" / "a.parquet", rows=1000)
    path.write_bytes(path.read_bytes()[:-1])
    write(tmp_path / "in" / "b.parquet")
    assert discover(STORAGE, job(tmp_path, "in/")).unreadable == 1


def test_a_file_that_vanished_since_it_was_listed_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    """Half a rewritten input must not pass for the night's: the shard of the file fails."""
    here = job(tmp_path, "in/")
    first, kept = write(tmp_path / "in" / "a.parquet"), write(tmp_path / "in" / "b.parquet", rows=2)
    vanish = faults.pause("open", "*/a.parquet", before=lambda _: first.unlink())
    found = discover(FaultyStorage(STORAGE, [vanish]), here)
    assert found.files["uri"].to_pylist() == [str(first), str(kept)]
    assert (found.unreadable, found.rows) == (1, 2)
    gone = FaultyStorage(STORAGE, [faults.fail("open", nth=None, error=Missing("no such file"))])
    for look in (discover, first_schema):
        with pytest.raises(JobError, match=r"^input\.uri: no file can be read; the first: no such file"):
            look(gone, here)


def may_not_read(*names: str) -> FaultyStorage:
    """The lake as somebody sees it to whom these files are forbidden."""
    return FaultyStorage(STORAGE, [faults.fail("open", f"*/{n}", None, Denied(f"{n}: not yours")) for n in names])


def test_a_file_that_may_not_be_read_costs_that_file_only(tmp_path: Path) -> None:
    """Promise 6: its shard fails with the same words; once it is allowed, running again scores it."""
    for name in "abcde":
        write(tmp_path / "in" / f"{name}.parquet")
    here = job(tmp_path, "in/")
    denied = may_not_read("a.parquet", "c.parquet")
    lake = discover(denied, here)
    assert lake.files["error"].to_pylist() == ["a.parquet: not yours", None, "c.parquet: not yours", None, None]
    assert (lake.unreadable, lake.rows) == (2, 9)
    first = next(filter(None, lake.files["error"].to_pylist()))
    assert lake.unread.startswith(f"2 files cannot be read, and will fail; the first: {first}")
    assert first_schema(denied, here).names == lake.schema.names == ["x"]
    plan = make_plan(lake, here, "m")
    shard = next(plan.shards())
    assert (shard.rows, shard.pieces[0].uri) == (UNREADABLE, str(tmp_path / "in" / "a.parquet"))
    with pytest.raises(Denied, match=r"^a\.parquet: not yours$"):
        read_piece(denied, here, shard.pieces[0], lake.schema)
    with pytest.raises(InputChanged, match=r"a\.parquet: could not be read when it was planned, and can be now; run"):
        read_piece(STORAGE, here, shard.pieces[0], lake.schema)
    assert make_plan(discover(STORAGE, here), here, "m", plan).rows == 15


def test_a_file_replaced_after_it_was_planned_is_not_read_whatever_times_it_has(tmp_path: Path) -> None:
    """As `rsync -t` does. A shard of it that was read before is of other rows: the two must not be published as one."""
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"x": pa.array([0, 1, 2])}), path, **plain)
    here, times = job(tmp_path, "in/"), path.stat()
    lake = discover(STORAGE, here)
    piece = next(shard.pieces[0] for shard in make_plan(lake, here, "m").shards())
    assert read_piece(STORAGE, here, piece, lake.schema).table.num_rows == 3
    pq.write_table(pa.table({"x": pa.array([2, 1, 0])}), tmp_path / "other", **plain)
    (tmp_path / "other").replace(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (times.st_size, times.st_mtime_ns)
    with pytest.raises(InputChanged, match=r"a\.parquet: changed since it was planned \(its size is the same; each"):
        read_piece(STORAGE, here, piece, lake.schema)


@pytest.mark.parametrize("content", [b"", b"garbage", b"x" * 10_000])
def test_a_file_whose_footer_cannot_be_read_fails_for_that_in_its_shard_too(tmp_path: Path, content: bytes) -> None:
    """Not for holding another number of rows than a footer promised that nobody has seen."""
    write(tmp_path / "in" / "b.parquet")
    (tmp_path / "in" / "a.parquet").write_bytes(content)
    here = job(tmp_path, "in/")
    lake = discover(STORAGE, here)
    bad = next(shard for shard in make_plan(lake, here, "m").shards() if shard.rows == UNREADABLE)
    with pytest.raises(InputCorrupt, match=r"in/a\.parquet: not a readable Parquet file: "):
        read_piece(STORAGE, here, bad.pieces[0], lake.schema)


def test_a_lake_that_may_not_be_read_at_all_is_one_message(tmp_path: Path) -> None:
    """A wrong sign-in is told as such before anything starts, not as so many bad files."""
    for name in "abc":
        write(tmp_path / "in" / f"{name}.parquet")
    for look in (discover, first_schema):
        with pytest.raises(JobError, match=r"^input\.uri: no file can be read; the first: a\.parquet: not yours$"):
            look(may_not_read("a.parquet", "b.parquet", "c.parquet"), job(tmp_path, "in/"))
    (tmp_path / "in" / "b.parquet").write_bytes(b"junk")
    for look in (discover, first_schema):
        with pytest.raises(JobError, match=r"^input\.uri: no file can be read; the first: a\.parquet: not yours$"):
            look(may_not_read("a.parquet", "c.parquet"), job(tmp_path, "in/"))


class Failing(io.RawIOBase):
    """A file on a disk that gives an error for each read."""

    def __init__(self, number: int) -> None:
        self.number = number

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return 1000

    def tell(self) -> int:
        return 1000

    def read(self, size: int | None = -1) -> bytes:
        raise OSError(self.number, os.strerror(self.number))


@dataclass(frozen=True)
class BadDisk(LakeStorage):
    """Local files, of which reading `a.parquet` fails with an errno."""

    number: int = 0

    def open(self, uri: str) -> pa.NativeFile:
        return pa.PythonFile(Failing(self.number), "r") if uri.endswith("/a.parquet") else super().open(uri)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, Transient), (errno.ESTALE, Transient), (errno.EINVAL, StorageError)]
)
def test_a_fault_of_the_disk_is_no_fault_of_the_file(tmp_path: Path, number: int, kind: type[StorageError]) -> None:
    """It may pass: the file is not given up for the night. It has a type, and names the file."""
    for name in "ab":
        write(tmp_path / "in" / f"{name}.parquet")
    here = job(tmp_path, "in/")
    piece = next(shard.pieces[0] for shard in make_plan(discover(STORAGE, here), here, "m").shards())
    disk = BadDisk(number=number)
    for read in (discover, first_schema, lambda *_: read_piece(disk, here, piece, pa.schema([("x", pa.int64())]))):
        with pytest.raises(kind, match=r"in/a\.parquet: ") as caught:
            read(disk, here)
        assert type(caught.value) is kind


def test_a_disk_that_denies_reading_costs_that_file_only(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / "in" / f"{name}.parquet")
    lake = discover(BadDisk(number=errno.EACCES), job(tmp_path, "in/"))
    (error, none) = lake.files["error"].to_pylist()
    assert none is None
    assert re.search(r"in/a\.parquet: Permission denied; allow it to the user", error)


def test_the_columns_are_those_of_the_first_file_with_rows(tmp_path: Path) -> None:
    """An empty file's types are often a guess: pandas writes a column of nothing as null."""
    write(tmp_path / "in" / "a.parquet", rows=0, kind=pa.null())
    write(tmp_path / "in" / "b.parquet")
    here = job(tmp_path, "in/")
    assert discover(STORAGE, here).schema.types == first_schema(STORAGE, here).types == [pa.int64()]


def archived(files: dict[str, bytes]) -> bytes:
    """A tar archive of these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize(
    ("ending", "empty", "full", "names"),
    [
        (".csv.gz", gzip.compress(b""), gzip.compress(b"x\n1\n"), ["x"]),
        (".csv.gz", gzip.compress(b"y\n"), gzip.compress(b"x\n1\n"), ["x"]),
        (".jsonl.gz", gzip.compress(b"\n"), gzip.compress(b'{"x": 1}\n'), ["x"]),
        (".jsonl.zst", pa.compress(b"", "zstd", asbytes=True), pa.compress(b'{"x": 1}', "zstd", asbytes=True), ["x"]),
        (".tar", archived({}), archived({"0.cls": b"1"}), ["__key__", "cls"]),
    ],
    # What gzip makes holds the time: each of pytest's workers would find tests of other names.
    ids=["no line", "another header", "an empty line", "zstd of nothing", "no member"],
)
def test_files_without_rows_decide_no_columns_however_many_and_packed_they_are(
    tmp_path: Path, ending: str, empty: bytes, full: bytes, names: list[str]
) -> None:
    (tmp_path / "in").mkdir()
    for name in "abd":
        (tmp_path / "in" / f"{name}{ending}").write_bytes(empty)
    here = job(tmp_path, "in/")
    with pytest.raises(JobError, match=r"no rows in 3 files at"):
        discover(STORAGE, here)
    (tmp_path / "in" / f"c{ending}").write_bytes(full)
    found = discover(STORAGE, here)
    assert found.schema.names == first_schema(STORAGE, here).names == names
    assert found.files["rows"].to_pylist() == [[0], [0], [UNKNOWN], [0]]
