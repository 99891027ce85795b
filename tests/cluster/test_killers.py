"""Rows, models and hands that end a worker's process: found with few deaths, and never retried without end."""

from __future__ import annotations

import shlex
from collections import Counter

import numpy as np
import pytest

from nightjar.inference.errors import JobError, ShardsFailed
from support import Lake, command

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_local")]

KILLERS = '''
import os, signal

def score(batch):
    """Twice x, but some rows end the process."""
    rows = set(batch["x"].tolist())
    if rows & {3, 2100, 2900}:
        os._exit(1)
    if 4600 in rows:
        os.kill(os.getpid(), signal.SIGSEGV)
    if 7000 in rows:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"score": batch["x"] * 2}
'''

KILLED_ONCE = '''
import os, signal
from pathlib import Path

def score(batch):
    """Twice x; the process is killed from outside, once."""
    marker = Path(__file__).parent / "killed"
    if 4500 in batch["x"] and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"score": batch["x"] * 2}
'''

NO_ROW_TO_BLAME = '''
import os

def score(batch):
    """Twice x; this row ends the process in company only."""
    if len(batch["x"]) > 1 and 8150 in batch["x"]:
        os._exit(1)
    return {"score": batch["x"] * 2}
'''

NEVER_LOADS = '''
import os
from pathlib import Path

class Model:
    """Cannot be made."""

    def __init__(self):
        with (Path(__file__).parent / "tries").open("a") as file:
            file.write("x")
        HERE

    def __call__(self, batch):
        return {"score": batch["x"]}
'''


def deaths(lake: Lake) -> list[dict[str, object]]:
    return [record for record in lake.records() if record["t"] == "failed" and record["died"]]


def test_rows_that_kill_their_process_are_found_and_quarantined(lake: Lake) -> None:
    """Five killers: one in the sample of preflight, two in one shard, by exit, segfault and SIGKILL.

    Exactly they are lost. A shard with one of them costs three processes, the one with two costs five, and a
    shard that was only read ahead beside one is charged once and commits.
    """
    lake.write_model(KILLERS)
    ran = lake.ready().run()

    bad = [3, 2100, 2900, 4600, 7000]
    assert lake.published()["id"].tolist() == [i for i in range(8000) if i not in bad]
    lost = lake.quarantined()
    assert [row["id"] for row in lost["input"]] == bad
    assert set(lost["error"]) == {"ProcessDied"}
    assert ran.publication.number == 1

    by_shard = Counter(record["shard"] for record in deaths(lake))
    culprits = Counter(record["shard"] for record in deaths(lake) if record["rows"] == 1)
    assert sorted(culprits.values()) == [1, 1, 1, 2]
    assert all(by_shard[shard] <= 1 + 2 * found for shard, found in culprits.items())
    assert all(count == 1 for shard, count in by_shard.items() if shard not in culprits)
    assert len({record["worker"] for record in deaths(lake)}) <= 3 * 3 + 5

    replayed = command(*shlex.split(lost["replay"].iloc[3])[1:])
    assert replayed.returncode == 1
    assert "row 600 ended its process (signal 11)" in replayed.stdout


def test_a_killed_worker_costs_a_retry_and_no_row(lake: Lake) -> None:
    """One death from outside: what was started is tried again, and everything is published as if nothing was."""
    lake.write_model(KILLED_ONCE)
    ran = lake.ready().run()
    assert ran.scored.progress.rows_quarantined == 0
    np.testing.assert_array_equal(lake.published()["score"], np.arange(8000, dtype=np.float32) * 2)
    assert len({record["worker"] for record in deaths(lake)}) == 1
    assert 1 <= len(deaths(lake)) <= 3  # the shard being scored, the one read ahead, the one being written
    assert ran.scored.progress.failed_attempts == len(deaths(lake))


def test_a_packed_shard_that_dies_without_a_culprit_costs_one_file(lake: Lake) -> None:
    """No single row is to blame: after a bounded number of deaths its files are tried apart, and one is given up."""
    lake.write_file("big.parquet", 0, 1000)
    for index in range(3):
        lake.write_file(f"small-{index}.parquet", 8000 + index * 100, 100)
    lake.write_model(NO_ROW_TO_BLAME)
    lake.write_job()
    with pytest.raises(ShardsFailed, match=r"1 of 4 shards .* small-1.*died 5 times and no single row is to blame"):
        lake.run()
    assert len(deaths(lake)) <= 10
    receipts = [record for record in lake.records() if record["t"] == "receipt"]
    assert sorted(receipt["rows_in"] for receipt in receipts) == [100, 100, 1000]
    assert not (lake.revision() / "quarantine").exists()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("os._exit(1)", r"^model\.uses: loading the model ended its process"),
        ("raise OSError('no such weights')", r"^model\.uses: .*OSError.*no such weights"),
    ],
)
def test_a_model_that_cannot_be_made_is_made_once(lake: Lake, what: str, said: str) -> None:
    """Preflight loads it under no restarts and says why: no pool of actors tries again and again."""
    lake.write_model(NEVER_LOADS.replace("HERE", what))
    with pytest.raises(JobError, match=said):
        lake.ready(model__uses="model:Model").run()
    assert (lake.folder / "tries").read_text() == "x"
