"""The CPU stage on Ray: in other processes than the model, and what dies there costs no more than it must."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support import Lake

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_local")]

STAGES = '''
import os
import signal
from pathlib import Path

LIVE = Path(__LIVE__)

def kill_once(name):
    try:
        (LIVE / name).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

def prep(batch):
    """x + 1, but one row ends the process, and once somebody kills it from outside."""
    (LIVE / f"prep {os.getpid()}").touch()
    rows = set(batch["x"].tolist())
    if 2500 in rows:
        os._exit(1)
    if 6100 in rows:
        kill_once("killed in prep")
    return {**batch, "y": batch["x"] + 1}

def score(batch):
    """Twice y, but once somebody kills it from outside."""
    (LIVE / f"score {os.getpid()}").touch()
    rows = set(batch["x"].tolist())
    if 7500 in rows:
        kill_once("killed in score")
    return {"score": batch["y"] * 2}
'''


def pids(lake: Lake, step: str) -> set[str]:
    return {path.name.split()[1] for path in Path(lake.folder).glob(f"{step} *")}


def test_whatever_dies_in_either_stage_costs_its_own_rows(lake: Lake) -> None:
    """Promises 1 and 3: a row that kills in the preprocess, and a kill of each stage from outside. Exactly the row is
    lost, and none is there twice.
    """
    lake.write_model(STAGES)
    ran = lake.ready(
        model__features=["x", "y"],
        preprocess={"uses": "model:prep", "placement": "staged", "workers": 1},
        resources={"actors": 1},
    ).run()
    bad = [2500]
    published = lake.published()
    assert published["id"].tolist() == [i for i in range(8000) if i not in bad]
    np.testing.assert_array_equal(published["score"], (published["id"].to_numpy(np.float32) + 1) * 2)
    lost = lake.quarantined()
    assert [row["id"] for row in lost["input"]] == bad
    assert set(lost["error"]) == {"ProcessDied"}
    assert any("preprocess runs in 1 CPU worker of its own" in note for note in ran.scored.warnings)
    assert pids(lake, "prep") - pids(lake, "score"), "there was a process that only prepared"
    # A shard that only waited between the stages is charged with no death: a killer costs three processes, a kill from
    # outside one, and what a process was given beside it one more.
    deaths = [record for record in lake.records() if record["t"] == "failed" and record["died"]]
    assert len(deaths) <= 3 + 2 + 3
