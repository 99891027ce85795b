"""Parquet files: a row group is decoded once for all of its parts, and a column is known by its whole name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import InputCorrupt
from nightjar.inference.input.plan import discover, make_plan
from nightjar.inference.input.sources import parquet
from nightjar.inference.input.sources.reading import read_piece, read_sample
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.storage.lake import LakeStorage

STORAGE = LakeStorage()


def job(folder: Path, **input_keys: Any) -> Job:
    content = {
        "name": "t",
        "input": {"uri": "a.parquet", **input_keys},
        "model": {"uses": "m:f", "outputs": {"score": "float32"}},
        "output": {"uri": "out"},
    }
    return parse_job(content, folder / "job.yaml")


@pytest.mark.parametrize(
    ("where", "matching"),
    [(None, range(10)), ("k < 5", range(5)), ("k = 9", [9]), ("k = 50", []), ("k < 5 AND x >= 0", range(5))],
)
def test_a_row_group_is_decoded_once_for_all_its_parts(
    where: str | None,
    matching: Sequence[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = pa.table({"k": [*range(10)] * 4, "x": range(40)})
    # Without statistics, which would rule out row groups.
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20, write_statistics=False)
    read, read_groups = list[list[str]](), parquet._read_groups

    def counted(file: pq.ParquetFile, groups: list[int], columns: list[str]) -> pa.Table:
        read.append(columns)
        return read_groups(file, groups, columns)

    monkeypatch.setattr(parquet, "_read_groups", counted)
    given = job(tmp_path, shard_rows=4, **({"where": where} if where else {}))
    lake = discover(STORAGE, given)
    pieces = [piece for shard in make_plan(lake, given, "m").shards() for piece in shard.pieces]
    found = [read_piece(STORAGE, given, piece, lake.schema).table for piece in pieces]
    assert len(pieces) == 10
    assert pa.concat_tables(found).equals(table.filter(pc.is_in(table["k"], pa.array(matching, pa.int64()))))
    assert read == [["k", "x"]] * 2


@pytest.mark.parametrize("names", [["user.id"], ["user", "user.id"], ["user"], ["x", "user.id"], ["user.id", "x"]])
@pytest.mark.parametrize("most", [parquet._KEPT_BYTES, 0])
def test_a_column_named_like_the_field_of_a_struct_is_read_as_itself(
    names: list[str], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In samples and in parts of row groups, kept ones and others: the struct as a whole or not at all."""
    monkeypatch.setattr(parquet, "_KEPT_BYTES", most)
    users = pa.array([{"id": row, "name": "n"} for row in range(20)])
    table = pa.table({"user": users, "user.id": range(100, 120), "x": range(20)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    given = job(tmp_path, shard_rows=4)
    lake = discover(STORAGE, given)
    pieces = [piece for shard in make_plan(lake, given, "m").shards() for piece in shard.pieces]
    for wanted in (names, ["user", "x"]):  # the same row group, of which other columns are kept
        schema, end = pa.schema([table.schema.field(name) for name in wanted]), 0
        for piece in pieces:
            found, begin, end = read_piece(STORAGE, given, piece, schema).table, end, end + piece.rows
            assert found.equals(table.select(wanted).slice(begin, piece.rows))
            sample = read_sample(STORAGE, given, piece, schema, 2)
            assert sample.table.equals(table.select(wanted).slice(begin, 2))


SPARK = "org.apache.spark."
JULIAN = dt.date(1001, 1, 7)
"""What Spark 2.4 stores for 1001-01-01 is this day in the calendar of Arrow."""


def of_spark(path: Path, columns: dict[str, list[Any]], **options: Any) -> Path:
    marks = options.pop("marks", {SPARK + "version": "2.4.8"})
    pq.write_table(pa.table(columns).replace_schema_metadata(marks), path, **options)
    return path


def all_of(path: Path, *columns: str, **keys: Any) -> pa.Table:
    here = job(path.parent, uri=str(path), **keys)
    found = discover(STORAGE, here)
    schema = pa.schema([found.schema.field(name) for name in columns])
    pieces = [piece for shard in make_plan(found, here, "").shards() for piece in shard.pieces]
    return pa.concat_tables([read_piece(STORAGE, here, each, schema).table for each in pieces])


@pytest.mark.parametrize(
    "marks",
    [
        {SPARK + "version": "2.4.8"},
        {SPARK + "version": "3.5.1", SPARK + "legacyDateTime": ""},
        {SPARK + "sql.parquet.row.metadata": "{}"},
        {"writer.date.proleptic": "false"},
    ],
)
@pytest.mark.parametrize(
    "values",
    [
        [JULIAN, None],
        [dt.datetime(1899, 12, 31), None],
        [[dt.date(2026, 1, 1), JULIAN], []],
        [{"day": JULIAN}, None],
        [[{"at": dt.datetime(1001, 1, 1)}], None],
    ],
)
def test_old_values_in_sparks_old_calendar_are_refused_by_file_and_column(
    tmp_path: Path, marks: dict[str, str], values: list[Any]
) -> None:
    """They are other days than in Arrow's calendar. A column that is not read, and new values, are nobody's concern."""
    path = of_spark(tmp_path / "a.parquet", {"id": [1, 2], "d": values}, marks=marks)
    for where in ({}, {"where": "id = 1"}):
        with pytest.raises(InputCorrupt, match=rf"{path}: column 'd' holds values before 1[59]"):
            all_of(path, "id", "d", **where)
    assert all_of(path, "id")["id"].to_pylist() == [1, 2]
    new = {"id": [1, 2], "d": [dt.date(1582, 10, 15), None], "t": [dt.datetime(1900, 1, 1), None]}
    of_spark(path, new, marks=marks)
    assert all_of(path, *new).to_pydict() == new
    of_spark(path, {"id": [1, 2], "d": values}, marks={SPARK + "version": "3.5.1"})
    assert all_of(path, "d")["d"].to_pylist() == values


def test_times_in_int96_have_a_mark_of_their_own(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {"t": [dt.datetime(1800, 1, 1)]}
    marks = {SPARK + "version": "3.5.1", SPARK + "legacyINT96": ""}
    path = of_spark(tmp_path / "a.parquet", columns, marks=marks)
    assert all_of(path, "t").to_pydict() == columns
    for version in (marks, {SPARK + "version": "3.0.3"}):
        of_spark(path, columns, marks=version, use_deprecated_int96_timestamps=True)
        with pytest.raises(InputCorrupt, match="column 't' holds values before 1900-01-01"):
            all_of(path, "t")


def test_statistics_in_the_old_calendar_rule_nothing_out(tmp_path: Path) -> None:
    """By them no row would be before 1001-01-05, and the row of 1001-01-01 would be missing without a word."""
    path = of_spark(tmp_path / "a.parquet", {"id": [1, 2], "d": [JULIAN, dt.date(2026, 1, 1)]}, row_group_size=1)
    with pytest.raises(InputCorrupt, match="column 'd' holds values before 1582-10-15"):
        all_of(path, "id", "d", where="d < '1001-01-05'")
