"""Nights whose input is a table: its snapshot is shown, and the table may change under the run."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steps as run
from lazily import lazily
from nightjar.inference.errors import ShardsFailed
from nightjar.inference.output.publications import newest
from nightjar.inference.validation.manifest import read_manifest
from support import Lake

DeltaTable = lazily("deltalake", "DeltaTable")
write_deltalake = lazily("deltalake", "write_deltalake")


@pytest.fixture
def tabled(lake: Lake) -> Lake:
    """A Delta table of four files."""
    for index in range(4):
        write_deltalake(lake.folder / "data", rows(index * 500, 500), mode="append")
    lake.write_model()
    lake.write_job(input={"uri": "data/", "format": "delta", "shard_rows": 500})
    return lake


@pytest.fixture
def of_fragments(lake: Lake) -> Lake:
    """A Lance dataset of two fragments, the first one larger than three shards; of both some rows were deleted."""
    lance = pytest.importorskip("lance", reason="needs pylance, of the extra `lance`")
    place = lake.folder / "dät a.lance"
    lance.write_dataset(rows(0, 1800), place)
    lance.write_dataset(rows(1800, 200), place, mode="append").delete("id % 100 = 7")
    lake.write_model()
    lake.write_job(input={"uri": "dät a.lance/", "format": "lance", "shard_rows": 500})
    return lake


def rows(first: int, count: int) -> pa.Table:
    ids: list[Any] = list(range(first, first + count))
    columns = {"id": ids, "x": pa.array(ids, pa.float32()), "name": [f"row {i}" for i in ids]}
    return pa.table(columns)


def test_a_night_over_a_table_shows_its_snapshot(tabled: Lake) -> None:
    ran = tabled.run()
    seen = tabled.published()
    assert sorted(seen["id"]) == list(range(2000))
    assert (seen["score"] == 2 * seen["id"]).all()
    assert "the input is snapshot 3 of its table" in ran.scored.warnings
    request = tabled.request()
    published = newest(request.storage, request.output).runs["2026-11-19"]
    assert read_manifest(request.storage, request.output, published).snapshots == ("3",)


def test_a_night_over_a_lance_dataset_goes_on_after_a_cleanup_with_what_is_there_then(of_fragments: Lake) -> None:
    """`_row` counts the rows that the version has of a fragment, over all of its shards."""
    lance = pytest.importorskip("lance", reason="needs pylance, of the extra `lance`")
    place = of_fragments.folder / "dät a.lance"
    request = of_fragments.request()
    found = run.discover(request)
    lance.dataset(place).optimize.compact_files()
    lance.dataset(place).cleanup_old_versions(dt.timedelta(0), delete_unverified=True)
    with pytest.raises(ShardsFailed, match=r"deleted since it was planned, though snapshot 3 of the table"):
        run.score(request, found)
    ran = of_fragments.run()
    now = lance.dataset(place).version
    said = f"the input is snapshot {now} of its table; the run began with snapshot 3, and kept what is the same"
    assert said in ran.scored.warnings
    seen, there = of_fragments.published(), lance.dataset(place).to_table().to_pandas()
    for name, published in (("id", seen["id"]), ("name", seen["name"]), ("x", seen["score"] / 2)):
        assert published.tolist() == there[name].tolist()
    assert seen["_row"].tolist() == list(range(1980))
    assert len(set(seen["_file"])) == 1
    # What a column is bound to in its table says nothing of the output.
    parts = list((of_fragments.out / "runs").glob("*/r*/data/*.parquet"))
    assert parts
    assert not [
        field for part in parts for field in pq.read_schema(part) if b"nightjar:bound" in (field.metadata or {})
    ]
    assert ran.scored.progress.shards == 4


def test_a_table_vacuumed_under_the_run_costs_the_shards_of_its_files_and_the_next_command_mends_it(
    tabled: Lake,
) -> None:
    request = tabled.request()
    found = run.discover(request)
    DeltaTable(tabled.folder / "data").delete("id < 10")
    DeltaTable(tabled.folder / "data").vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(ShardsFailed, match=r"deleted since it was planned, though snapshot 3 of the table") as caught:
        run.score(request, found)
    assert str(caught.value).startswith("1 of 4 shards has no result; ")
    ran = tabled.run()
    assert ran.scored.progress.reused_shards == 3
    assert sorted(tabled.published()["id"]) == list(range(10, 2000))
    now = DeltaTable(tabled.folder / "data").version()  # a vacuum is noted in the log, too
    said = f"the input is snapshot {now} of its table; the run began with snapshot 3, and kept what is the same"
    assert said in ran.scored.warnings
