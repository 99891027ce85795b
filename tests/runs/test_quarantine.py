"""Rows that cannot be scored: those and only those are lost, each with what is needed to mend it."""

from __future__ import annotations

import shlex

import numpy as np
import pyarrow.parquet as pq
import pytest

from faults import FaultyStorage, fail
from forked import forked
from nightjar.inference.errors import JobError, QuarantineFull, ShardsFailed
from nightjar.inference.history.run_tables import RunReport
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

RAISES = '''
def score(batch):
    """Twice x, but not for these."""
    bad = {bad} & set(batch["x"].tolist())
    if bad:
        raise ValueError(f"no score for x = {{min(bad):g}}")
    return {{"score": batch["x"] * 2}}
'''

RAISES_FROM = '''
def score(batch):
    """Twice x, but not from here on."""
    if batch["x"].max() >= {first}:
        raise ValueError("no score for large x")
    return {{"score": batch["x"] * 2}}
'''

SMALL_MEMORY = '''
def score(batch):
    """Twice x, where memory suffices for 100 rows."""
    if len(batch["x"]) > 100:
        raise MemoryError
    return {"score": batch["x"] * 2}
'''


def test_rows_that_raise_are_quarantined_and_only_those(lake: Lake) -> None:
    """Each with file, row, error, input row, and a command that makes it fail again."""
    for index in range(3):
        lake.write_file(f"small-{index}.parquet", 8000 + index * 100, 100)
    bad = [0, 1500, 1501, 1999, 6300, 8150]  # the last one in the middle of three files packed into one shard
    lake.write_model(RAISES.format(bad=set(bad)))
    ran = lake.ready().run()

    assert (ran.scored.progress.counts.rows_out, ran.scored.progress.counts.rows_quarantined) == (8294, 6)
    assert lake.published()["id"].tolist() == [i for i in range(8300) if i not in bad]
    lost = lake.quarantined()
    names = ["part-00", "part-00", "part-00", "part-00", "part-03", "small-1"]
    assert lost["_file"].tolist() == [str(lake.folder / "data" / f"{name}.parquet") for name in names]
    assert lost["_row"].tolist() == [0, 1500, 1501, 1999, 300, 50]
    assert ran.scored.progress.counts.batches_cut == 5, "two of the rows shared a micro-batch"
    assert any(note.startswith("5 batches failed and were scored in parts") for note in ran.scored.warnings)
    assert [row["id"] for row in lost["input"]] == bad
    assert [row["name"] for row in lost["input"]] == [f"row {i}" for i in bad]
    assert set(lost["error"]) == {"ValueError"}
    assert lost["message"].tolist() == [f"no score for x = {i}" for i in bad]
    assert all("model.py" in text for text in lost["traceback"])

    shown = {(line.file, line.row): line for line in RunReport(lake.request(), 1).incidents(300)}
    assert [shown[file, row].replay for file, row in zip(lost["_file"], lost["_row"], strict=True)] == list(
        lost["replay"]
    )
    program, *words = shlex.split(lost["replay"].iloc[-1])
    replayed = forked(*words)
    assert (program, replayed.returncode) == ("nightjar", 1)
    assert "ValueError: no score for x = 8150" in replayed.stdout
    fine = forked(*words[:-3], "51", *words[-2:])
    assert fine.returncode == 0, fine.stderr
    assert "output score  16302\n" in fine.stdout


def test_the_replay_command_finds_a_named_run_in_the_place_of_its_night(lake: Lake) -> None:
    """Pasted on another day, it is not looked for among today's runs."""
    lake.write_model(RAISES.format(bad={1500}))
    lake.ready(output__uri="out/{date}/").run(run_id="rescue", date="2026-11-18")
    (part,) = (lake.out / "2026-11-18" / "runs" / "rescue" / "r1" / "quarantine").iterdir()
    _, *words = shlex.split(pq.read_table(part)["replay"][0].as_py())
    replayed = forked(*words)
    assert "ValueError: no score for x = 1500" in replayed.stdout, replayed.stderr


def test_more_bad_rows_than_the_job_allows_fail_the_run(lake: Lake) -> None:
    """No shard alone is over the budget of 8 rows; together they are. The message names count, limit and key."""
    lake.write_model(RAISES.format(bad={i * 1000 + 500 + j for i in range(8) for j in range(2)}))
    with pytest.raises(QuarantineFull, match=r"more than the 8 of 8000 that retry\.max_quarantined = 0\.001"):
        lake.ready().run()
    assert lake.snapshot().runs == {}


def test_a_model_that_scores_nothing_is_found_before_the_pool_starts(lake: Lake) -> None:
    """Preflight says what the rows failed with; nothing is planned to be retried."""
    lake.write_model(RAISES_FROM.format(first=0))
    with pytest.raises(JobError, match=r"none of the first 32 rows of .*part-00\.parquet.*no score for large x"):
        lake.ready().run()
    assert not [record for record in lake.records() if record["t"] in {"failed", "receipt"}]


def test_a_first_file_of_bad_rows_is_no_bad_model(lake: Lake) -> None:
    """Preflight tries other places before it refuses: one bad row costs that row, wherever it is."""
    lake.write_file("a.parquet", 0, 1)
    lake.write_file("b.parquet", 1, 5000)
    lake.write_model(RAISES.format(bad={0}))
    lake.write_job()
    lake.run()
    assert lake.published()["id"].tolist() == list(range(1, 5001))
    assert [row["id"] for row in lake.quarantined()["input"]] == [0]


def test_a_model_that_fails_after_the_sample_stops_the_run_early(lake: Lake) -> None:
    """The first shards all fail alike: the others are not tried, and the message says so once."""
    lake.write_file("big.parquet", 0, 30000)
    lake.write_model(RAISES_FROM.format(first=100))
    lake.write_job()
    with pytest.raises(ShardsFailed, match=r"the first 8 shards all failed alike.*OverBudget.*no score for large x"):
        lake.run()
    failed = [record for record in lake.records() if record["t"] == "failed"]
    assert {record["cause"] for record in failed} == {"OverBudget"}
    assert 8 <= len(failed) < 30
    assert lake.snapshot().runs == {}


@pytest.mark.system
def test_a_model_that_broke_since_stops_a_continued_run_too(lake: Lake) -> None:
    """What is committed shows that it scored once: it takes more shards to say that it does not any more."""
    lake.write_file("big.parquet", 0, 9000, row_group=100)
    lake.write_model(RAISES_FROM.format(first=1000))
    lake.write_job(input__shard_rows=100)
    with pytest.raises(ShardsFailed, match=r"^80 of 90 shards have no result"):
        lake.run()
    with pytest.raises(ShardsFailed, match=r"the first 64 shards all failed alike.*OverBudget"):
        lake.run()


def test_out_of_memory_halves_the_batch_and_is_said(lake: Lake) -> None:
    """256 rows do not fit, nor 128; 64 do, once and for all. No row is lost."""
    lake.write_model(SMALL_MEMORY)
    ran = lake.ready().run()
    assert ran.scored.progress.counts.rows_out == 8000
    np.testing.assert_array_equal(lake.published()["score"], np.arange(8000, dtype=np.float32) * 2)
    receipts = [record for record in lake.records() if record["t"] == "receipt"]
    assert [receipt["ceilings"] for receipt in receipts] == [[64]] * 8
    assert [said for said in ran.scored.warnings if "micro-batches of more than 64 rows" in said]


def test_transient_storage_faults_are_overcome_in_place_and_counted(lake: Lake) -> None:
    """One fault on opening a file, two on writing parts: three retries in the receipts, no failed attempt."""
    faults = [
        fail("open", "*/data/part-02.parquet", nth=2),  # the driver's discovery is the first
        fail("write", "*/runs/*/data/*", nth=1),
        fail("write", "*/runs/*/data/*", nth=5),
    ]
    ran = lake.ready().run(storage=FaultyStorage(LakeStorage(), faults))
    receipts = [record for record in lake.records() if record["t"] == "receipt"]
    assert sorted(receipt["retries"] for receipt in receipts) == [0, 0, 0, 0, 0, 1, 1, 1]
    assert (ran.scored.progress.retries, ran.scored.progress.failed_attempts) == (3, 0)
    assert lake.published()["id"].tolist() == list(range(8000))
