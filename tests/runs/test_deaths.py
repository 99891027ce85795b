"""What ends the process that scores costs what is to blame, and nothing else: found by the campaign, on any engine.

Each pass runs in a process of its own here (`processes`); that Ray loses and starts such processes as it should is
tested on Ray, in tests/cluster/test_killers.py and test_limits.py.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from pathlib import Path

import pytest

from faults import FaultyStorage, pause
from forked import forked_light
from forks import forks_have
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import ShardsFailed
from nightjar.inference.storage.lake import LakeStorage
from support import HANGS_AT_A_ROW, ONCE, Lake

pytestmark = pytest.mark.system

KILLERS = """
import os, signal

def score(batch):
    rows = set(batch["x"].tolist())
    if rows & {3, 2100, 2900}:
        os._exit(1)
    if 4600 in rows:
        os.kill(os.getpid(), signal.SIGSEGV)
    return {"score": batch["x"] * 2}
"""

HANGS_ONCE = (
    ONCE
    + '''
import ctypes

def score(batch):
    """Twice x; one library deadlocks once, keeping the interpreter's lock."""
    if 5300 in batch["x"] and once("hung"):
        libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)
    return {"score": batch["x"] * 2}
'''
)

LOSES_THE_DEVICE = (
    ONCE
    + '''
import torch

class Model:
    """Twice x. One row makes the device refuse everything from then on; once it does so for no reason."""

    lost = False

    def __call__(self, batch):
        if 5300 in batch["x"] or (1500 in batch["x"] and once("no reason")):
            Model.lost = True
        if Model.lost:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return {"score": batch["x"] * 2}
'''
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A small lake."""
    return Lake(tmp_path, LOCAL)


def failures(lake: Lake) -> list[dict[str, object]]:
    return [record for record in lake.records() if record["t"] == "failed"]


def test_rows_that_kill_their_process_are_found_and_quarantined(lake: Lake) -> None:
    """Four killers: one in preflight's sample, two in one shard, one by a segmentation fault.

    Exactly they are lost. A shard with one of them costs three processes, the one with two costs five.
    """
    lake.write_model(KILLERS)
    ran = lake.ready().run()
    bad = [3, 2100, 2900, 4600]
    assert lake.published()["id"].tolist() == [i for i in range(8000) if i not in bad]
    lost = lake.quarantined()
    assert [row["id"] for row in lost["input"]] == bad
    assert set(lost["error"]) == {"ProcessDied"}
    assert ran.publication.number == 1

    deaths = [record for record in failures(lake) if record["died"]]
    by_shard = Counter(record["shard"] for record in deaths)
    culprits = Counter(record["shard"] for record in deaths if record["rows"] == 1)
    assert sorted(culprits.values()) == [1, 1, 2]
    assert all(by_shard[shard] <= 1 + 2 * found for shard, found in culprits.items())
    assert all(count == 1 for shard, count in by_shard.items() if shard not in culprits)
    assert len({record["worker"] for record in deaths}) <= 3 + 3 + 5


KILLS_PREPARED = """
import os

def prepare(batch):
    if {50, 2100} & set(batch["x"].tolist()):
        os._exit(1)
    return batch

def score(batch):
    return {"score": batch["x"] * 2}
"""


@pytest.mark.parametrize("cpus", [1, 2], ids=["in the thread that scores", "in a thread beside it"])
def test_a_row_that_ends_the_process_while_it_is_prepared_costs_itself_alone(lake: Lake, cpus: int) -> None:
    """Not the rows before it, which are scored while it is prepared."""
    lake.write_model(KILLS_PREPARED)
    preprocess = {"uses": "model:prepare"}
    lake.ready(preprocess=preprocess, model__batch_size=100, resources={"actors": 1, "cpus": cpus}).run()
    assert [row["id"] for row in lake.quarantined()["input"]] == [50, 2100]
    assert len(lake.published()) == 7998


ONE_OF_TWO_KILLS = """
import os

def double(batch):
    return {"score": batch["x"] * 2}

def half(batch):
    if 2100 in batch["x"]:
        os._exit(1)
    return {"score": batch["x"] / 2}
"""


def test_a_row_that_ends_the_process_in_one_of_two_models_keeps_the_output_of_the_other(lake: Lake) -> None:
    """The crumbs name the model, so the search is in its batches, and only it goes without the row."""
    lake.write_model(ONE_OF_TWO_KILLS)
    keys = {"features": ["x"], "outputs": {"score": "float32"}, "batch_size": 256}
    both = [{"name": name, "uses": f"model:{name}", **keys} for name in ("half", "double")]
    ran = lake.ready(model=None, models=both, retry__max_quarantined=0.001).run()
    rows = lake.published().set_index("id")
    assert len(rows) == 8000
    assert rows.index[rows["half_score"].isna()].tolist() == [2100]
    assert rows["double_score"].tolist() == [2.0 * i for i in range(8000)]
    lost = lake.quarantined()
    assert [row["id"] for row in lost["input"]] == [2100]
    assert (lost["model"].tolist(), lost["error"].tolist()) == (["half"], ["ProcessDied"])
    assert lost["replay"][0].endswith("--model half")
    assert (ran.scored.progress.counts.rows_quarantined, ran.scored.progress.counts.rows_partial) == (0, 1)
    found = [(record["rows"], record.get("model")) for record in failures(lake) if record["rows"]]
    assert found == [(256, "half"), (1, "half")]


def test_a_file_that_kills_its_reader_costs_that_file(lake: Lake) -> None:
    """No row is to blame: after a bounded number of deaths the packed files are tried apart, and one is given up.

    The command may be repeated: with another file in its place only that one is scored.
    """
    lake.write_file("big.parquet", 0, 1000)
    for index in range(3):
        lake.write_file(f"small-{index}.parquet", 8000 + index * 100, 100)
    lake.write_model()
    lake.write_job()
    # The driver's discovery is the first to open it, and survives.
    deadly = FaultyStorage(LakeStorage(), [pause("open", "*/small-1.parquet", nth=2, before=_dies)])
    with pytest.raises(ShardsFailed, match=r"1 of 4 shards .* small-1.*died 5 times and no single row is to blame"):
        lake.run(storage=deadly)
    deaths = failures(lake)
    assert all(record["died"] for record in deaths)
    assert len({record["worker"] for record in deaths}) <= 10
    assert {record["rows"] for record in deaths} == {0}
    receipts = [record for record in lake.records() if record["t"] == "receipt"]
    assert sorted(receipt["rows_in"] for receipt in receipts) == [100, 100, 1000]

    again = lake.run()
    assert (again.scored.progress.scored_rows, again.publication.number) == (100, 1)
    assert again.scored.progress.counts.rows_quarantined == 0


def _dies(_: str) -> None:
    os._exit(1)


def test_a_row_that_hangs_the_model_is_found_and_quarantined(lake: Lake) -> None:
    """Two processes are ended: the first says in which micro-batch, the second at which row; no other row is lost."""
    lake.write_model(HANGS_AT_A_ROW)
    lake.ready(retry__stall_s=2).run()
    assert lake.published()["id"].tolist() == [i for i in range(8000) if i != 5300]
    lost = lake.quarantined()
    assert [row["id"] for row in lost["input"]] == [5300]
    assert "Stalled: no progress for retry.stall_s = 2 s, in wait" in lost["message"].iloc[0]
    assert [f["rows"] for f in failures(lake) if f["cause"] == "Stalled"] == [256, 1]

    replayed = forked_light(*shlex.split(lost["replay"].iloc[0])[1:])
    assert replayed.returncode == 1, replayed.stderr
    assert "row 1300: Stalled: no progress for retry.stall_s = 2 s, in wait" in replayed.stdout


def test_shards_that_are_too_slow_fail_and_say_what_to_change(lake: Lake) -> None:
    lake.write_model("import time\n\ndef score(batch):\n    time.sleep(0.3)\n    return {'score': batch['x'] * 2}\n")
    lake.ready(retry__shard_s=0.5, retry__attempts=1)
    with pytest.raises(ShardsFailed, match=r"retry\.shard_s = 0\.5 s; it came to row .*lower input\.shard_rows"):
        lake.run(engine=LOCAL)
    assert not (lake.out / "publications").exists()


def test_a_deadlock_in_a_library_costs_a_process_and_no_row(lake: Lake) -> None:
    """It cannot be interrupted, so it is ended by force: a death like any other."""
    lake.write_model(HANGS_ONCE)
    ran = lake.ready(retry__stall_s=2).run()
    assert lake.published()["id"].tolist() == list(range(8000))
    assert ran.scored.progress.counts.rows_quarantined == 0
    assert {f["cause"] for f in failures(lake)} == {"ProcessDied"}


def test_a_lost_device_costs_its_process_and_the_row_that_loses_it_is_found(lake: Lake) -> None:
    """The model is loaded anew, the run goes on; a device lost once for no reason costs no row."""
    lake.write_model(LOSES_THE_DEVICE)
    with forks_have("torch"):
        lake.ready(model__uses="model:Model").run()
    assert lake.published()["id"].tolist() == [i for i in range(8000) if i != 5300]
    assert [row["id"] for row in lake.quarantined()["input"]] == [5300]
    assert "AcceleratorError: CUDA error: an illegal memory access" in lake.quarantined()["message"].iloc[0]
    said = [f for f in failures(lake) if f["cause"] == "AcceleratorError"]
    assert [f["rows"] for f in said] == [256, 256, 1]
