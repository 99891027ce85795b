"""Lines that cannot be read, from the lake to the quarantine: they are lost with what is said of them, nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from forked import forked
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import ShardsFailed
from nightjar.inference.run.checking import Examined, examine, sample_notes
from nightjar.inference.scoring.preflight import Loaded, preflight_steps, samples
from nightjar.inference.scoring.worker import ShardWorker
from rescoring import rescored
from support import Lake


def to_csv(lake: Lake) -> None:
    for path in sorted((lake.folder / "data").glob("*.parquet")):
        pd.read_parquet(path).to_csv(path.with_suffix(".csv"), index=False)
        path.unlink()


def spoil(path: Path, row: int, change: Callable[[bytes], bytes]) -> tuple[int, str]:
    """Change the line of a row. Returns its number, and what stands there then."""
    lines = path.read_bytes().split(b"\n")
    at = [index for index, line in enumerate(lines) if line.strip()][row + (path.suffix == ".csv")]
    lines[at] = change(lines[at])
    path.write_bytes(b"\n".join(lines))
    return at + 1, lines[at].decode(errors="backslashreplace")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_lines_that_cannot_be_read_are_quarantined_and_only_those(lake: Lake, kind: str) -> None:
    """The audit proves the cover, shards are scored twice, and the replay of such a row says why it cannot be read."""
    lake.ready(rescore={"share": 1.0})
    to_csv(lake) if kind == "csv" else lake.to_json_lines()
    path, bad = lake.folder / "data" / f"part-01.{kind}", [0, 1999]
    there = [
        spoil(path, 0, lambda line: line + b",more" if kind == "csv" else line[:-1]),
        spoil(path, 1999, lambda line: line + b"\xff"),
    ]
    ran = lake.run(engine=LOCAL)
    assert (ran.scored.progress.counts.rows_out, ran.scored.progress.counts.rows_quarantined) == (7998, 2)
    frame = lake.published()
    assert frame["id"].tolist() == [row for row in range(8000) if row - 2000 not in bad]
    assert (frame["_row"] == frame["id"] % 2000).all()
    assert (frame["score"] == frame["id"] * 2).all()
    assert rescored(lake)["rows"] == 7998
    lost = lake.quarantined()
    assert lost["_row"].tolist() == bad
    assert set(lost["error"]) <= {"InputCorrupt", "SchemaMismatch"}
    assert lost["raw"].tolist() == [raw for _, raw in there]
    for row, (line, _), message, replay in zip(bad, there, lost["message"], lost["replay"], strict=True):
        assert message.startswith(f"{path}: line {line} ")
        replayed = forked(*shlex.split(replay)[1:])
        assert replayed.returncode == 1, replayed.stderr
        assert f"row {row} cannot be read: " in replayed.stdout
        assert message in replayed.stdout


def test_lines_that_were_mended_are_scored_by_the_next_command(lake: Lake) -> None:
    lake.ready()
    lake.to_json_lines()
    path = lake.folder / "data" / "part-02.jsonl"
    whole = path.read_bytes()
    spoil(path, 17, lambda line: line[:-1])
    lake.run(engine=LOCAL)
    assert lake.quarantined()["_row"].tolist() == [17]
    path.write_bytes(whole)
    lake.run(engine=LOCAL)
    assert lake.published()["id"].tolist() == list(range(8000))


def test_a_schema_that_changed_from_the_middle_on_ends_that_shard_by_the_budget(lake: Lake) -> None:
    lake.ready(retry__attempts=1, input__shard_rows=None)
    to_csv(lake)
    path = lake.folder / "data" / "part-03.csv"
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *lines[:1500], *(f"{line},new" for line in lines[1500:])]) + "\n")
    said = (
        r"9 rows failed where at most 8 may \(.*\); the first is row 1500: InputCorrupt: .*part-03\.csv: line 1502 has"
    )
    with pytest.raises(ShardsFailed, match=said) as failed:
        lake.run(engine=LOCAL)
    assert str(failed.value).startswith("1 of 4 shards has no result; ")


def spoilt(lake: Lake, rows: range) -> ShardWorker:
    """A worker for a lake of JSON lines, of whose first file these rows cannot be read."""
    lake.write_model()
    lake.ready()
    lake.to_json_lines()
    path = lake.folder / "data" / "part-00.jsonl"
    for row in rows:
        spoil(path, row, lambda line: line[:-1])
    return ShardWorker(lake.worker_spec())


def test_a_model_is_not_judged_by_rows_that_cannot_be_read(lake: Lake) -> None:
    worker = spoilt(lake, range(31))
    places = samples(lake.planned())
    *_, last = preflight_steps(worker, places[:1])
    assert last == Loaded("cpu")
    *_, found = examine(worker, places[:1])
    assert isinstance(found, Examined)
    assert (found.sampled.rows, found.sampled.failed, found.sampled.broken, found.sampled.cut) == (32, 31, (), ())
    (note,) = sample_notes(worker.spec, found.sampled)
    assert "31 of 32 sample rows cannot be scored" in note
    assert "part-00.jsonl: line 1 is not a JSON object" in note


def test_a_sample_of_which_no_row_can_be_read_is_said_in_a_sentence(lake: Lake) -> None:
    worker = spoilt(lake, range(40))
    places = samples(lake.planned())
    *_, last = preflight_steps(worker, places[:1])
    assert isinstance(last, Loaded)
    first = Path(lake.folder / "data" / "part-00.jsonl")
    assert last.sample_error.startswith(f"none of 32 rows of {first} can be read; the first: {first}: line 1 is not a ")
    *_, last = preflight_steps(worker, places)
    assert last == Loaded("cpu", place=1), "the next place has the say"
