"""Delta tables as inputs: which snapshot is read, what is in it, and what a vacuum under the run costs."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazily import lazily
from nightjar.inference.errors import InputChanged, JobError, StorageError, Transient
from nightjar.inference.input.plan import Discovery, Plan, discover, make_plan
from nightjar.inference.input.sources import delta, tables
from nightjar.inference.input.sources.reading import read_piece
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage
from support import Measuring

delete_rows = lazily("lakes", "delete_rows")
lay_delta = lazily("lakes", "lay_delta")
DeltaTable = lazily("deltalake", "DeltaTable")
write_deltalake = lazily("deltalake", "write_deltalake")

STORAGE = LakeStorage()


def job_of(table: Path, **options: Any) -> Job:
    given = {"uri": str(table), "format": "delta", "options": options}
    keys = {"model": {"uses": "m:f", "outputs": {"y": "float64"}}, "output": {"uri": "out"}}
    return parse_job({"name": "t", "input": given, **keys}, table.parent / "job.yaml")


def rows(job: Job, discovery: Discovery) -> list[dict[str, Any]]:
    """All rows of the input, in its order."""
    pieces = (piece for shard in make_plan(discovery, job, "").shards() for piece in shard.pieces)
    return [row for piece in pieces for row in read_piece(STORAGE, job, piece, discovery.schema).table.to_pylist()]


def by_delta_rs(table: Path, version: int | None = None) -> list[dict[str, Any]]:
    """What delta-rs's own engine reads, which is not used here; it gives rows in no order."""
    found = pa.RecordBatchReader.from_stream(DeltaTable(table, version=version).scan()).read_all()
    return sorted(found.to_pylist(), key=lambda row: row["id"])


def sorted_rows(job: Job, discovery: Discovery) -> list[dict[str, Any]]:
    return sorted(rows(job, discovery), key=lambda row: row["id"])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three versions: partitioned by a text with odd values and a date; then with one more column; then with fewer
    rows."""
    place = tmp_path / "lake" / "sales"
    content: dict[str, Any] = {
        "id": range(60),
        "c": ["a b/c=d", "größe", None] * 20,
        "day": [dt.date(2026, 11, 1 + i % 2) for i in range(60)],
    }
    schema = pa.schema([("id", pa.int64()), ("c", pa.string()), ("day", pa.date32())])
    write_deltalake(place, pa.table(content, schema), partition_by=["c", "day"])
    new = pa.table({"id": [100, 101], "c": ["x", "x"], "day": [dt.date(2026, 11, 3)] * 2, "price": [1.5, None]})
    write_deltalake(place, new, mode="append", schema_mode="merge")
    DeltaTable(place).delete("id % 10 = 3")
    return place


@pytest.mark.parametrize("version", [0, 1, 2, None])
def test_rows_are_those_that_delta_rs_reads_at_each_version(table: Path, version: int | None) -> None:
    """With deletions, columns of partitions in their types, and a column that older files lack."""
    job = job_of(table, **({} if version is None else {"version": version}))
    found = discover(STORAGE, job)
    assert found.snapshot == str(2 if version is None else version)
    assert sorted_rows(job, found) == by_delta_rs(table, version)
    assert found.rows == {0: 60, 1: 62}.get(version, 56)  # type: ignore[call-overload]
    assert found.schema.field("day").type == pa.date32()


def test_a_damaged_log_is_told_in_a_few_words(table: Path) -> None:
    """delta-rs writes out all that it knows of the files of the log."""
    (table / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(StorageError, match=r"sales: the Delta table cannot be opened: .* gap") as told:
        discover(STORAGE, job_of(table))
    assert len(str(told.value)) < 800


def test_rows_of_deletion_vectors_are_not_read(table: Path) -> None:
    job = job_of(table)
    before = discover(STORAGE, job)
    file = before.files["uri"][0].as_py()
    delete_rows(table, DeltaTable(table).get_add_actions()["path"].to_pylist()[found_at(table, file)], [0, 2])
    after = discover(STORAGE, job)
    assert (before.rows, after.rows, after.snapshot) == (56, 54, "3")
    assert sorted_rows(job, after) == by_delta_rs(table)
    assert len(by_delta_rs(table)) == 54


def found_at(table: Path, file: str) -> int:
    return DeltaTable(table).file_uris().index(file)


def test_another_process_reads_the_snapshot_that_was_found(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the table has newer ones: the version of each file says which."""
    job = job_of(table)
    found = discover(STORAGE, job)
    expected = by_delta_rs(table)
    DeltaTable(table).delete("id < 30")
    monkeypatch.setattr(tables, "_KEPT", OrderedDict())
    assert sorted_rows(job, found) == expected
    assert len(expected) > len(by_delta_rs(table))


def test_a_process_keeps_few_of_the_snapshots_that_it_reads(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that reads the nights of a backfill gets each snapshot by its number; one in use is opened once."""
    for number in range(200, 206):
        write_deltalake(table, pa.table({"id": [number]}), mode="append", schema_mode="merge")
    found = {version: discover(STORAGE, job_of(table, version=version)) for version in range(9)}
    kept, opened = OrderedDict[Any, Any](), []
    monkeypatch.setattr(tables, "_KEPT", kept)
    as_before = delta.Delta.opened

    def noted(source: delta.Delta, storage: Storage, number: str | None) -> Any:
        opened.append(number)
        return as_before(source, storage, number)

    monkeypatch.setattr(delta.Delta, "opened", noted)
    for version in range(1, 9):
        for each in (version, 0):
            assert len(sorted_rows(job_of(table, version=each), found[each])) == found[each].rows
    assert sorted(map(str, opened)) == [str(version) for version in range(9)]
    assert len(kept) == tables._SNAPSHOTS


@pytest.mark.parametrize("gone", [(0, 1, 2), (0, 1), (1,)], ids=str)
@pytest.mark.parametrize("options", [{}, {"version": 2}])
def test_a_version_that_is_gone_is_told_though_its_files_are_there(
    table: Path, options: dict[str, Any], gone: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the job names it, or it was the newest when the run was planned; and if one commit before it is gone."""
    job = job_of(table, **options)
    found = discover(STORAGE, job)
    (piece, *_) = (piece for shard in make_plan(found, job, "").shards() for piece in shard.pieces)
    checkpoint(table)
    for version in gone:
        (table / "_delta_log" / f"{version:020}.json").unlink()
    monkeypatch.setattr(tables, "_KEPT", OrderedDict())
    with pytest.raises(InputChanged, match=rf"{re.escape(str(table))}.* has no version 2 any more.*; run again"):
        read_piece(STORAGE, job, piece, found.schema)
    with pytest.raises(JobError, match=r"input\.options: .* has no version 2 \(any more\); its newest is 3"):
        discover(STORAGE, job_of(table, version=2))


def checkpoint(table: Path) -> None:
    """One more version, with a checkpoint, as before a cleanup of the log."""
    DeltaTable(table).delete("id < 5")
    DeltaTable(table).create_checkpoint()


def test_a_version_of_the_log_that_cannot_be_read_now_is_not_called_gone(table: Path) -> None:
    """It may be again: as after any other fault of the storage, somebody tries again."""
    checkpoint(table)
    (table / "_delta_log" / f"{1:020}.json").write_bytes(b"not a commit")
    with pytest.raises(Transient, match="the Delta table cannot be opened"):
        discover(STORAGE, job_of(table, version=2))


def test_a_continued_run_keeps_the_shards_of_the_files_that_are_the_same(table: Path) -> None:
    """Though the snapshot is another one. A file of which more rows are deleted is another file."""
    job = job_of(table)
    limited = job.model_copy(update={"input": job.input.model_copy(update={"shard_rows": 1})})
    first = discover(STORAGE, limited)
    plan = make_plan(first, limited, "f")
    write_deltalake(
        table, pa.table({"id": [7], "c": ["y"], "day": [dt.date(2026, 11, 4)]}), mode="append", schema_mode="merge"
    )
    again = make_plan(discover(STORAGE, limited), limited, "f", plan)
    assert set(plan.ids()) < set(again.ids())
    assert len(again) == len(plan) + 1
    file = first.files["uri"][0].as_py()
    path = DeltaTable(table).get_add_actions()["path"].to_pylist()[found_at(table, file)]
    delete_rows(table, path, [0])
    last = make_plan(discover(STORAGE, limited), limited, "f", again)
    assert ids_of(last, file).isdisjoint(ids_of(again, file))
    assert set(again.ids()) - ids_of(again, file) == set(last.ids()) - ids_of(last, file)


def ids_of(plan: Plan, file: str) -> set[str]:
    return {shard.id for shard in plan.shards() if shard.pieces[0].uri == file}


class Counting(LakeStorage):
    """Counts which files are opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: set[str] = set()

    def open(self, uri: str) -> pa.NativeFile:
        self.opened.add(uri)
        return super().open(uri)


HOUR = dt.datetime(2026, 11, 19, 12, tzinfo=dt.UTC)


@pytest.fixture
def ordered(tmp_path: Path) -> Path:
    """Ten files, each with other ids, names and times, in two partitions, with nulls and NaN among the values."""
    place = tmp_path / "ordered"
    for index in range(10):
        ids = range(100 * index, 100 * index + 100)
        columns: dict[str, Any] = {
            "id": ids,
            "name": [f"{index}-größe-" + "x" * 60 + f"-{i:05}" for i in ids],
            "price": [None if i % 7 == 0 else math.nan if i % 5 == 0 else i / 8 for i in ids],
            "sold": pa.array([HOUR + dt.timedelta(hours=index, microseconds=i % 100 * 9) for i in ids]),
            "even": ["yes" if index % 2 == 0 else None] * 100,
        }
        write_deltalake(place, pa.table(columns), mode="append", partition_by=["even"])
    return place


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("id >= 300 AND even = 'yes'", 5),
        ("even IS NULL", 5),
        ("even IS NULL AND NOT id < 900", 5),
        ("even <> 'yes' OR id = 1", 10),
        ("id = 250", 10),
    ],
)
def test_files_that_their_partitions_rule_out_are_not_opened(ordered: Path, where: str, files: int) -> None:
    job = job_of(ordered)
    asked = job.model_copy(update={"input": job.input.model_copy(update={"where": where})})
    storage = Counting()
    found = discover(storage, asked)
    assert (len(found.files), found.left_out) == (files, 10 - files)
    read = [
        row
        for shard in make_plan(found, asked, "").shards()
        for piece in shard.pieces
        for row in read_piece(storage, asked, piece, found.schema).table["id"].to_pylist()
    ]
    whole = pa.RecordBatchReader.from_stream(DeltaTable(ordered).scan()).read_all()
    expected = duckdb.from_arrow(whole).filter(where).project("id").order("id").fetchall()
    assert sorted(read) == [each for (each,) in expected]
    assert storage.opened == set(found.files["uri"].to_pylist())


@pytest.mark.parametrize("deleted", [False, True], ids=["no rows deleted", "rows deleted"])
def test_row_groups_that_the_footer_rules_out_are_not_read(tmp_path: Path, deleted: bool) -> None:
    """Where rows are deleted, the condition's column is read whole: the footer counts them all."""
    file, count = tmp_path / "t" / "data.parquet", 100_000
    file.parent.mkdir()
    content = pa.table({"id": range(count), "text": [f"{i * 7919 % count:020}" for i in range(count)]})
    pq.write_table(content, file, row_group_size=10_000, use_dictionary=False)
    lay_delta(file, content.schema, [50_004] if deleted else ())
    job = job_of(file.parent)
    asked = job.model_copy(update={"input": job.input.model_copy(update={"where": "id BETWEEN 50003 AND 50005"})})
    found = discover(STORAGE, asked)
    planned = make_plan(found, asked, "").shards()
    storage, ids, left_out = Measuring(), list[int](), 0
    for piece in (piece for shard in planned for piece in shard.pieces):
        read = read_piece(storage, asked, piece, found.schema)
        ids += read.table["id"].to_pylist()
        left_out += read.left_out
    assert ids == ([50_003, 50_005] if deleted else [50_003, 50_004, 50_005])
    assert left_out == count - 3
    assert (0 < storage.share(str(file)) < 0.3) == (not deleted)


def test_a_column_that_the_job_declares_is_not_compared_with_the_log(ordered: Path) -> None:
    """As text, 100 comes before 2."""
    given = {"uri": str(ordered), "format": "delta", "where": "id < '2'", "schema": {"id": "string"}}
    keys = {"model": {"uses": "m:f", "outputs": {"y": "float64"}}, "output": {"uri": "out"}}
    job = parse_job({"name": "t", "input": given, **keys}, ordered.parent / "job.yaml")
    found = discover(STORAGE, job)
    assert found.left_out == 0
    assert sorted(row["id"] for row in rows(job, found)) == sorted(str(i) for i in range(1000) if str(i) < "2")


def test_a_condition_that_no_file_can_match_is_told(ordered: Path) -> None:
    job = job_of(ordered)
    asked = job.model_copy(update={"input": job.input.model_copy(update={"where": "even = 'no'"})})
    with pytest.raises(JobError, match=r"input\.where: none of 10 files at .* by what their paths or their table say"):
        discover(STORAGE, asked)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"version": 9}, "has no version 9 .*; its newest is 2"),
        ({"version": -1}, r"input\.options\.version: write the number of a version from 0 on, not -1"),
        ({"version": True}, r"input\.options\.version: write the number of a version from 0 on, not True"),
        ({"verison": 1}, r"input\.options\.verison: .* did you mean 'version'"),
    ],
)
def test_a_snapshot_that_nobody_can_read_is_refused(table: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        discover(STORAGE, job_of(table, **options))


def test_a_folder_without_a_table_is_told(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"input\.uri: there is no Delta table at .*/none"):
        discover(STORAGE, job_of(tmp_path / "none"))


def test_a_table_that_cannot_be_read_truly_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "mapped"
    write_deltalake(place, pa.table({"id": [1]}))
    features = {"readerFeatures": ["columnMapping"], "writerFeatures": ["columnMapping"]}
    (meta,) = (
        action["metaData"]
        for action in map(json.loads, (place / "_delta_log" / f"{0:020d}.json").read_text().splitlines())
        if "metaData" in action
    )
    meta["configuration"] = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"}
    schema = json.loads(meta["schemaString"])
    schema["fields"][0]["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "id"}
    meta["schemaString"] = json.dumps(schema)
    lines = [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}, {"metaData": meta}]
    (place / "_delta_log" / f"{1:020d}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(JobError, match="uses columnMapping, which is not supported yet"):
        discover(STORAGE, job_of(place))


def test_a_vacuumed_file_costs_its_shard_and_is_named(table: Path) -> None:
    job = job_of(table, version=0)
    found = discover(STORAGE, job)
    pieces = [piece for shard in make_plan(found, job, "").shards() for piece in shard.pieces]
    DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    gone, *_ = (piece for piece in pieces if not Path(piece.uri).exists())
    said = f"{gone.uri}: deleted since it was planned, though snapshot 0 of the table {table} has this file"
    with pytest.raises(InputChanged, match=re.escape(said)):
        read_piece(STORAGE, job, gone, found.schema)
    late = discover(STORAGE, job)
    assert 0 < late.unreadable < late.files.num_rows
    assert "does not exist, though snapshot 0 of the table" in late.unread
    newest = discover(STORAGE, job_of(table))
    assert (newest.unreadable, newest.rows) == (0, 56)


@pytest.mark.parametrize("name", ["a%20b", "a\\b"])
def test_a_place_that_delta_rs_takes_for_another_is_refused(table: Path, name: str) -> None:
    with pytest.raises(JobError, match=r"input\.uri: .*/sales: with"):
        discover(STORAGE, job_of(table.parent.rename(table.parent.parent / name) / "sales"))
