"""Iceberg tables as inputs: which snapshot is read, what is in it, and what is refused."""

from __future__ import annotations

import datetime as dt
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazily import lazily
from nightjar.inference.errors import InputChanged, JobError
from nightjar.inference.input.plan import Discovery, discover, make_plan
from nightjar.inference.input.sources import tables
from nightjar.inference.input.sources.reading import read_piece
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.records import Piece
from nightjar.inference.storage.lake import LakeStorage

catalog_of = lazily("lakes", "catalog_of")
delete_iceberg_rows = lazily("lakes", "delete_iceberg_rows")
known_by = lazily("lakes", "known_by")
name_catalog = lazily("lakes", "name_catalog")
PartitionField = lazily("pyiceberg.partitioning", "PartitionField")
PartitionSpec = lazily("pyiceberg.partitioning", "PartitionSpec")
Schema = lazily("pyiceberg.schema", "Schema")
Table = lazily("pyiceberg.table", "Table")
IdentityTransform = lazily("pyiceberg.transforms", "IdentityTransform")
DateType = lazily("pyiceberg.types", "DateType")
LongType = lazily("pyiceberg.types", "LongType")
NestedField = lazily("pyiceberg.types", "NestedField")
StringType = lazily("pyiceberg.types", "StringType")

STORAGE = LakeStorage()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Snapshots: partitioned by text and date; a column renamed and one added, and more rows; and fewer rows."""
    name_catalog(tmp_path, monkeypatch)
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("shop")
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "c", StringType(), required=False),
        NestedField(3, "day", DateType(), required=False),
        NestedField(4, "note", StringType(), required=False),
    )
    by = [PartitionField(2, 1000, IdentityTransform(), "c"), PartitionField(3, 1001, IdentityTransform(), "day")]
    made = catalog.create_table(
        "shop.sales", schema, partition_spec=PartitionSpec(*by), location=f"file://{tmp_path}/shop/sales"
    )
    day = dt.date(2026, 11, 19)
    columns = {"id": range(40), "c": ["a b", "größe"] * 20, "day": [day] * 40, "note": [f"n{i}" for i in range(40)]}
    made.append(pa.table(columns, made.schema().as_arrow()))
    with made.update_schema() as update:
        update.rename_column("note", "remark")
        update.add_column("price", LongType())
    more: dict[str, Any] = {"id": [100, 101], "c": [None, "x"], "day": [day, None], "remark": ["m", None]}
    made.append(pa.table(more | {"price": [5, 6]}, made.schema().as_arrow()))
    made.delete("id < 3")
    return made


def job_of(table: Table, /, **options: Any) -> Job:
    uri = table.location().removeprefix("file://")
    given = {
        "uri": uri,
        "within": [str(Path(uri).parent)],
        "format": "iceberg",
        "options": {"catalog": "lake", "table": "shop.sales", **options},
    }
    keys = {"model": {"uses": "m:f", "outputs": {"y": "float64"}}, "output": {"uri": "out"}}
    return parse_job({"name": "t", "input": given, **keys}, Path(uri).parent / "job.yaml")


def pieces(job: Job, found: Discovery) -> list[Piece]:
    return [piece for shard in make_plan(found, job, "").shards() for piece in shard.pieces]


def rows(job: Job) -> list[dict[str, Any]]:
    found = discover(STORAGE, job)
    read = [read_piece(STORAGE, job, piece, found.schema).table for piece in pieces(job, found)]
    return sorted(pa.concat_tables(read).to_pylist(), key=lambda row: row["id"])


def by_pyiceberg(table: Table, snapshot: int | None = None) -> list[dict[str, Any]]:
    """What pyiceberg's own reader gives, which is not used here."""
    found = table.refresh().scan(snapshot_id=snapshot).to_arrow()
    return sorted(found.to_pylist(), key=lambda row: row["id"])


def test_rows_are_those_that_pyiceberg_reads_at_each_snapshot(table: Table) -> None:
    """With deletions, partitions, a column that was renamed, and one that older files lack."""
    numbers = [snapshot.snapshot_id for snapshot in table.snapshots()]
    assert len(numbers) >= 3
    for number in numbers:
        job = job_of(table, snapshot=number)
        assert rows(job) == by_pyiceberg(table, number)
        assert discover(STORAGE, job).snapshot == str(number)
    assert rows(job_of(table)) == by_pyiceberg(table)
    assert [row["id"] for row in rows(job_of(table))] == [*range(3, 40), 100, 101]


def test_a_name_that_stands_for_another_column_now_is_another_input(table: Table) -> None:
    """Without a snapshot the table has the columns of now, also in files that were never written for it."""
    known = {name: known_by(job_of(table), discover(STORAGE, job_of(table)).schema, name) for name in ("id", "remark")}
    flat = table.catalog.create_table("shop.flat", table.schema(), location=f"{table.location()}-flat")
    flat.append(table.scan(row_filter="id > 30").to_arrow())
    written = Path(table.location().removeprefix("file://") + "-own.parquet")
    pq.write_table(pa.table({"id": [7], "c": ["own c"], "remark": ["own remark"]}), written)
    flat.add_files([f"file://{written}"])
    for made in (table, flat):
        with made.update_schema() as update:
            update.rename_column("remark", "new")
        with made.update_schema() as update:
            update.add_column("remark", StringType())
    now = discover(STORAGE, job_of(table)).schema
    assert {name: known_by(job_of(table), now, name) == known[name] for name in known} == {"id": True, "remark": False}
    assert rows(job_of(table)) == by_pyiceberg(table)
    assert rows(job_of(flat, table="shop.flat")) == by_pyiceberg(flat)
    last = table.current_snapshot()
    assert last is not None
    then = discover(STORAGE, job_of(table, snapshot=last.snapshot_id)).schema
    assert set(now.names) - set(then.names) == {"new"}


@pytest.mark.parametrize("added", [False, True], ids=["written", "added"])
def test_fields_in_a_column_keep_their_numbers_and_a_new_column_its_value_of_older_rows(
    table: Table, added: bool
) -> None:
    """In structs, lists and maps, also of files that were added to the table without being written for it."""
    pair = pa.struct([("a", pa.int64()), ("b", pa.int64()), ("c", pa.string())])
    values: list[dict[str, Any] | None] = [{"a": 1, "b": 10, "c": "x"}, None, {"a": None, "b": 30, "c": None}]
    older = pa.table(
        {
            "id": [1, 2, 3],
            "one": pa.array(values, pair),
            "many": pa.array([values, [None], []], pa.list_(pair)),
            "by_name": pa.array([[("k", each)] for each in values], pa.map_(pa.string(), pair)),
        }
    )
    made = table.catalog.create_table("shop.inner", older.schema, location=f"{table.location()}-inner")
    if added:
        written = Path(made.location().removeprefix("file://") + "-own.parquet")
        pq.write_table(older, written)
        made.add_files([f"file://{written}"])
    else:
        made.append(older)
    job = job_of(made, table="shop.inner")
    known = discover(STORAGE, job).schema
    for place in ("one", "many.element", "by_name.value"):
        # Where files have no numbers, a name that is given again means the new field in them, too.
        for old, new in (("a", "t"),) if added else (("a", "t"), ("b", "a"), ("t", "b")):
            with made.update_schema() as update:
                update.rename_column(f"{place}.{old}", new)
        with made.update_schema(allow_incompatible_changes=True) as update:
            update.delete_column(f"{place}.c")
        with made.update_schema() as update:
            update.add_column((*place.split("."), "c"), StringType())
    with made.update_schema() as update:
        update.add_column("rate", LongType(), default_value=7)
        update.add_column("since", DateType(), default_value=dt.date(2026, 11, 19))
    assert rows(job) == by_pyiceberg(made)
    assert [row["rate"] for row in rows(job)] == [7, 7, 7]
    assert rows(job)[0]["one"] == ({"t": 1, "b": 10, "c": "x"} if added else {"b": 1, "a": 10, "c": None})
    now = discover(STORAGE, job).schema
    same = {name for name in known.names if known_by(job, known, name) == known_by(job, now, name)}
    assert same == {"id"}


def test_files_that_their_partition_rules_out_are_not_looked_into(table: Table) -> None:
    job = job_of(table)
    asked = job.model_copy(update={"input": job.input.model_copy(update={"where": "c = 'größe' AND id > 5"})})
    found = discover(STORAGE, asked)
    assert (len(found.files), found.left_out) == (1, len(discover(STORAGE, job).files) - 1)
    assert rows(asked) == [row for row in by_pyiceberg(table) if row["c"] == "größe" and row["id"] > 5]


def test_rows_deleted_by_their_position_are_not_read_and_other_deletions_are_refused(table: Table) -> None:
    flat = flat_table(table)
    (task,) = flat.scan().plan_files()
    delete_iceberg_rows(flat, task.file.file_path, [0, 4, 9])
    job = job_of(flat, table="shop.flat")
    assert rows(job) == by_pyiceberg(flat)
    assert [row["id"] for row in rows(job)] == [1, 2, 3, 5, 6, 7, 8]
    delete_iceberg_rows(flat.refresh(), task.file.file_path, [1], by_value=True)
    with pytest.raises(JobError, match=r"input\.uri: the Iceberg table shop\.flat .*(equality|by value)"):
        discover(STORAGE, job)


@pytest.mark.parametrize("content", [b"no parquet", b""])
def test_damaged_deletions_are_told_with_their_file(table: Table, content: bytes) -> None:
    """The catalog, whose settings may be wrong, too, has nothing to do with them."""
    flat = flat_table(table)
    (task,) = flat.scan().plan_files()
    delete_iceberg_rows(flat, task.file.file_path, [0, 4])
    (task,) = flat.refresh().scan().plan_files()
    (deletions,) = (Path(each.file_path.removeprefix("file://")) for each in task.delete_files)
    deletions.write_bytes(content)
    said = rf"input\.uri: {re.escape(str(deletions))}, with deletions .* shop\.flat, is not a readable Parquet file: "
    with pytest.raises(JobError, match=said):
        discover(STORAGE, job_of(flat, table="shop.flat"))


def flat_table(table: Table) -> Table:
    """One without partitions, of ten rows in a file."""
    catalog = catalog_of(Path(table.location().removeprefix("file://")).parent.parent)
    flat = catalog.create_table("shop.flat", table.schema(), location=f"{table.location()}-flat")
    content = {"id": range(10), "c": ["x"] * 10, "day": [None] * 10, "remark": ["r"] * 10, "price": range(10)}
    flat.append(pa.table(content, flat.schema().as_arrow()))
    return flat


def test_another_process_reads_the_snapshot_that_was_found_and_needs_no_catalog(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(table)
    found = discover(STORAGE, job)
    expected = by_pyiceberg(table)
    table.delete("id < 30")
    monkeypatch.setattr(tables, "_KEPT", OrderedDict())
    catalog_file(table).unlink()
    read = [read_piece(STORAGE, job, piece, found.schema).table for piece in pieces(job, found)]
    assert sorted(pa.concat_tables(read).to_pylist(), key=lambda row: row["id"]) == expected


def catalog_file(table: Table) -> Path:
    return Path(table.location().removeprefix("file://")).parent.parent / "catalog.db"


def test_a_snapshot_that_is_gone_is_told_though_its_files_are_there(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(table)
    found = discover(STORAGE, job)
    piece, *_ = pieces(job, found)
    for metadata in (Path(table.location().removeprefix("file://")) / "metadata").glob("*.metadata.json"):
        metadata.unlink()
    monkeypatch.setattr(tables, "_KEPT", OrderedDict())
    with pytest.raises(InputChanged, match=r"has the snapshot no more that this run reads .*; run again"):
        read_piece(STORAGE, job, piece, found.schema)


def test_a_file_that_was_removed_under_the_run_is_named(table: Table) -> None:
    job = job_of(table)
    found = discover(STORAGE, job)
    gone, *others = pieces(job, found)
    Path(gone.uri).unlink()
    number = table.refresh().current_snapshot()
    assert number is not None
    said = f"deleted since it was planned, though snapshot {number.snapshot_id} of the table"
    with pytest.raises(InputChanged, match=said):
        read_piece(STORAGE, job, gone, found.schema)
    for piece in others:
        assert read_piece(STORAGE, job, piece, found.schema).table.num_rows == piece.rows


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"snapshot": 7}, r"input\.options\.snapshot: the Iceberg table shop\.sales has no snapshot 7"),
        ({"table": "shop.nope"}, r"input\.uri: there is no Iceberg table at"),
        ({"table": ""}, r"input\.options\.table: write a name as shop\.sales"),
        ({"catalog": "elsewhere"}, r"input\.options\.catalog: .*PYICEBERG_CATALOG__ELSEWHERE__URI"),
    ],
)
def test_a_snapshot_that_nobody_can_read_is_refused(table: Table, options: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        discover(STORAGE, job_of(table, **options))


def test_a_table_at_another_place_is_refused(table: Table) -> None:
    job = job_of(table)
    other = job.model_copy(update={"input": job.input.model_copy(update={"uris": (f"{job.input.uri}-old",)})})
    with pytest.raises(JobError, match=r"input\.uri: the Iceberg table shop\.sales lies at .*/shop/sales, not at"):
        discover(STORAGE, other)
