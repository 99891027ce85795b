"""One bad file costs that file: the others are committed, readers keep what they had, mending it costs only it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steps as run
from nightjar.inference.errors import ShardsFailed
from support import Lake, Ran

NIGHT = "2026-11-20"
"""The night after the one that `Lake` scores unless told otherwise."""


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def damage(path: Path) -> None:
    """Break the data, and leave the footer whole: only reading the rows shows it."""
    raw = path.read_bytes()
    footer = int.from_bytes(raw[-8:-4], "little") + 8
    path.write_bytes(raw[:4] + b"\xff" * (len(raw) - footer - 4) + raw[-footer:])


def retype(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "x", table["x"].cast(pa.float64())), path)


def drop_column(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["name"]), path)


def failures(lake: Lake, run_id: str = NIGHT) -> dict[str, set[str]]:
    """File name → causes, of every failed attempt."""
    found: dict[str, set[str]] = {}
    for record in lake.records(run_id=run_id):
        if record["t"] == "failed":
            found.setdefault(Path(record["uri"]).name, set()).add(record["cause"])
    return found


def committed_rows(lake: Lake, run_id: str = NIGHT) -> int:
    return sum(record["rows_in"] for record in lake.records(run_id=run_id) if record["t"] == "receipt")


def test_truncated_and_mistyped_files_cost_themselves(lake: Lake) -> None:
    """Of eight files three are bad: the other five are committed, nothing is published, each bad one is named
    with its cause; mended, the same run scores these three only and publishes."""
    lake.ready()
    lake.write_files(8)
    lake.run()
    before = lake.snapshot()
    data = lake.folder / "data"
    lake.write_files(8)  # tonight's delivery: every file is new
    whole = {path: path.read_bytes() for path in (data / f"part-0{index}.parquet" for index in (2, 4, 6))}
    truncate(data / "part-02.parquet")
    drop_column(data / "part-04.parquet")
    retype(data / "part-06.parquet")

    with pytest.raises(ShardsFailed) as caught:
        lake.run(date=NIGHT)
    assert re.match(r"5 of 15 shards have no result; the first is part-02\.parquet .*not a readable", str(caught.value))
    assert failures(lake) == {
        "part-02.parquet": {"InputCorrupt"},
        "part-04.parquet": {"SchemaMismatch"},
        "part-06.parquet": {"SchemaMismatch"},
    }
    messages = {record["message"].split(": ", 1)[1] for record in lake.records(run_id=NIGHT) if record["t"] == "failed"}
    assert "column 'name' is missing" in messages
    assert "column 'x' is float64, in most of the input it is float32" in messages
    assert committed_rows(lake) == 10000
    assert lake.snapshot() == before

    for path, raw in whole.items():
        path.write_bytes(raw)
    mended = lake.run(date=NIGHT)
    assert mended.scored.progress.scored_rows == 6000
    assert mended.publication.number == before.number + 1
    assert lake.published(NIGHT)["id"].tolist() == list(range(16000))


def score_after(lake: Lake, change: Path, rows: int) -> Ran:
    """The four steps, a file being rewritten between the first two."""
    request = lake.request(date=NIGHT)
    found = run.discover(request)
    lake.write_file(change.name, 0, rows)
    scored = run.score(request, found)
    verdict = run.validate(request, scored, found)
    return Ran(scored, verdict, run.publish_run(request, scored, verdict))


def test_small_files_packed_together_fail_apart(lake: Lake) -> None:
    """Five small files are one shard; one has broken pages and one changed after it was planned.

    The shard is split, the other three are committed. The first file of the input being the broken one does
    not stop the run either: preflight only borrows rows from it.
    """
    for index in range(5):
        lake.write_file(f"part-{index}.parquet", index * 100, 100)
    damage(lake.folder / "data" / "part-0.parquet")
    lake.write_model()
    lake.write_job()
    with pytest.raises(ShardsFailed, match=r"2 of 5 shards .* part-0\.parquet.*not a readable Parquet file"):
        score_after(lake, lake.folder / "data" / "part-3.parquet", 101)
    split = [record for record in lake.records(run_id=NIGHT) if record["t"] == "split"]
    assert [record["into"] for record in split] == [5]
    assert failures(lake) == {"part-0.parquet": {"InputCorrupt"}, "part-3.parquet": {"InputChanged"}}
    assert committed_rows(lake) == 300
    assert lake.snapshot().runs == {}


def test_files_of_another_shape_that_come_first_stop_nobody(lake: Lake) -> None:
    """More of them than would stop a run whose shards all fail alike: they cost themselves, the rest is committed."""
    lake.ready()
    lake.write_files(24, rows=1000)
    for index in range(9):
        drop_column(lake.folder / "data" / f"part-{index:02d}.parquet")
    with pytest.raises(ShardsFailed) as caught:
        lake.run(date=NIGHT)
    assert str(caught.value).startswith("9 of 24 shards have no result; ")
    assert committed_rows(lake) == 15000
