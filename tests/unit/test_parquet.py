"""Parquet files: a row group is decoded once for all of its parts."""

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
from nightjar.inference.input.sources.reading import read_piece
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
