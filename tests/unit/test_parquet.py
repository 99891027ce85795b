"""Parquet files: a row group is decoded once for all of its parts, and a column is known by its whole name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nightjar.inference.input.discovery import discover
from nightjar.inference.input.plan import make_plan
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
    ("where", "matching", "decoded"),
    [
        (None, range(10), [["k", "x"]] * 2),
        ("k < 5", range(5), [["k"], ["k", "x"]] * 2),
        ("k = 9", [9], [["k"], ["k", "x"]] * 2),
        ("k = 50", [], [["k"]] * 2),
        ("k < 5 AND x >= 0", range(5), [["k", "x"]] * 2),
    ],
)
def test_a_row_group_is_decoded_once_for_all_its_parts(
    where: str | None,
    matching: Sequence[int],
    decoded: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a condition, its columns once before the first row that matches, and all columns once."""
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
    assert read == decoded


@pytest.mark.parametrize("names", [["user.id"], ["user", "user.id"], ["user"], ["x", "user.id"], ["user.id", "x"], []])
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
            for last in (False, True):
                sample, first = read_sample(STORAGE, given, piece, schema, 2, last=last)
                assert sample.table.equals(table.select(wanted).slice(first, 2))
                assert first == (end - 2 if last else begin)
