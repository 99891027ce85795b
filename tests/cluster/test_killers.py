"""Rows, models and hands that end a worker's process on Ray: found with few deaths, and never retried without end.

Several such rows in one shard, files that do it, and devices that are lost: tests/runs/test_deaths.py.
"""

from __future__ import annotations

import shlex
from collections import Counter

import numpy as np
import pytest
import ray

from forked import forked
from nightjar.inference.errors import JobError
from nightjar.inference.logs.printed import all_lines, last_lines
from nightjar.inference.records import Failed, decode
from nightjar.inference.storage.lake import LakeStorage
from support import Lake, wait_until

pytestmark = pytest.mark.usefixtures("ray_local")

KILLERS = '''
import logging, os, signal
from pathlib import Path

KILLED = Path(__LIVE__) / "killed"
print("loading the model")

def score(batch):
    """Twice x, but one row ends the process; and once somebody kills it from outside."""
    rows = set(batch["x"].tolist())
    if rows == {3}:
        print("this one kills:", rows)
        logging.getLogger("model").warning("be warned of %s", rows)
    if 3 in rows:
        os.kill(os.getpid(), signal.SIGSEGV)
    if 7500 in rows and not KILLED.exists():
        KILLED.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"score": batch["x"] * 2}
'''

NEVER_LOADS = '''
import os
from pathlib import Path

class Model:
    """Cannot be made."""

    def __init__(self):
        with (Path(__LIVE__) / "tries").open("a") as file:
            file.write("x")
        HERE

    def __call__(self, batch):
        return {"score": batch["x"]}
'''


def deaths(lake: Lake) -> list[dict[str, object]]:
    return [record for record in lake.records() if record["t"] == "failed" and record["died"]]


def test_a_row_that_kills_its_process_is_found_and_quarantined(lake: Lake) -> None:
    """By a segmentation fault, in preflight's sample already; and there is a kill from outside.

    Exactly that row is lost. Its shard costs three processes, and a shard that was only read ahead beside it is charged
    once and commits. A kill from outside costs one process and no row. When all is done every CPU is free: a pool that
    lost processes holds none. Several such rows: tests/runs/test_deaths.py.
    """
    lake.write_model(KILLERS)
    ran = lake.ready().run()

    bad = [3]
    assert lake.published()["id"].tolist() == [i for i in range(8000) if i not in bad]
    lost = lake.quarantined()
    assert [row["id"] for row in lost["input"]] == bad
    assert set(lost["error"]) == {"ProcessDied"}
    np.testing.assert_array_equal(lake.published()["score"], lake.published()["id"].to_numpy(np.float32) * 2)
    assert ran.publication.number == 1

    by_shard = Counter(record["shard"] for record in deaths(lake))
    culprits = Counter(record["shard"] for record in deaths(lake) if record["rows"] == 1)
    assert list(culprits.values()) == [1]
    assert all(by_shard[shard] <= 1 + 2 * found for shard, found in culprits.items())
    assert all(count == 1 for shard, count in by_shard.items() if shard not in culprits)
    assert len({record["worker"] for record in deaths(lake)}) <= 3 + 1
    assert (lake.folder / "killed").exists()
    assert ran.scored.progress.failed_attempts == len(deaths(lake))
    assert ran.scored.workers == 1, "those that took the place of another cost nothing more"
    wait_until(lambda: ray.available_resources().get("CPU") == 2, 5, "every CPU is free again")

    assert_the_last_words_are_kept(lake)

    replayed = forked(*shlex.split(lost["replay"].iloc[0])[1:])
    assert replayed.returncode == 1
    assert "row 3 ended its process (signal 11, Segmentation fault)" in replayed.stdout


def assert_the_last_words_are_kept(lake: Lake) -> None:
    """What the killer's process printed and logged before it died, at the shard that it died of; once."""
    lines = list(all_lines(LakeStorage(), str(lake.revision())))
    culprits = {(record["shard"], record["worker"]) for record in deaths(lake) if record["rows"] == 1}
    for stream, said in (("out", "this one kills"), ("err", "be warned of")):
        found = [line for line in lines if line.stream == stream and line.text.startswith(said)]
        assert len(found) == 1
        assert {(line.shard, line.worker) for line in found} == culprits
    assert any("Segmentation fault" in line.text for line in lines)
    assert any("SIGSEGV" in text for said in last_lines_of(lake).values() for text in said)
    loaded = {line.worker for line in lines if (line.text, line.shard) == ("loading the model", "")}
    assert {record["worker"] for record in deaths(lake)} < loaded  # and preflight's
    assert not any(line.text.startswith(":") for line in lines)  # Ray's own


def last_lines_of(lake: Lake) -> dict[str, list[str]]:
    failures: dict[str, list[Failed]] = {}
    for record in deaths(lake):
        failed = decode(record)
        assert isinstance(failed, Failed)
        failures.setdefault(failed.shard, []).append(failed)
    return last_lines(LakeStorage(), str(lake.revision()), failures, 40)


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


def test_a_model_that_hangs_is_ended_in_preflight(lake: Lake) -> None:
    """After `retry.stall_s` the command says so, and the process is gone: its CPU is free again."""
    lake.write_model(NEVER_LOADS.replace("HERE", "import time; time.sleep(3600)"))
    with pytest.raises(JobError, match=r"took longer than retry\.stall_s = 5 s"):
        lake.ready(model__uses="model:Model", retry__stall_s=5).run()
    wait_until(lambda: ray.available_resources().get("CPU") == 2, 30, "the hanging process is gone")
