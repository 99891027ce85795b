"""The CPU stage on Ray: in other processes than the model, and what dies there costs no more than it must."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support import Lake

pytestmark = pytest.mark.usefixtures("ray_local")

FLOAT = {"score": "float32"}

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

def plain(batch):
    (LIVE / f"plain {os.getpid()}").touch()
    return batch

def tree(batch):
    """Three times x, but one row ends the process."""
    if 4100 in set(batch["x"].tolist()):
        os._exit(1)
    return {"score": batch["x"] * 3}

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
    """Promises 1 and 3: a row that kills in the preprocess of one model, one that kills in another model, and a kill of
    each stage from outside. Of each row the outputs of the model that it kills are lost. No row is there twice.
    """
    lake.write_model(STAGES)
    lake.ready(
        model=None,
        models=[
            {
                "name": "net",
                "uses": "model:score",
                "features": ["x", "y"],
                "preprocess": "model:prep",
                "outputs": FLOAT,
            },
            {"name": "tree", "uses": "model:tree", "features": ["x"], "outputs": FLOAT},
        ],
        preprocess={"uses": "model:plain", "placement": "staged", "workers": 1},
        resources={"actors": 1},
    ).run()
    published = lake.published()
    assert published["id"].tolist() == list(range(8000))
    x = np.arange(8000, dtype=np.float32)
    np.testing.assert_array_equal(published["net_score"], np.where(x == 2500, np.nan, (x + 1) * 2))
    np.testing.assert_array_equal(published["tree_score"], np.where(x == 4100, np.nan, x * 3))
    lost = lake.quarantined()
    assert [(row["id"], model) for row, model in zip(lost["input"], lost["model"], strict=True)] == [
        (2500, "net"),
        (4100, "tree"),
    ]
    assert set(lost["error"]) == {"ProcessDied"}
    assert pids(lake, "prep") & pids(lake, "plain") - pids(lake, "score"), "there was a process of the stage"
    # A shard that only waited between the stages is charged with no death: a killer costs three processes, a kill from
    # outside one, and what a process was given beside it one more.
    deaths = [record for record in lake.records() if record["t"] == "failed" and record["died"]]
    assert len(deaths) <= 2 * 3 + 2 + 4
