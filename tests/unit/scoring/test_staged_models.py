"""The CPU stage of several models: what it hands over of each, and how it says what ends it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_stages import outcome, through_both

from nightjar.inference.errors import JobError, ProcessSpoilt
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys
from nightjar.inference.process import this_worker
from nightjar.inference.records import Event, Failed, Prepared, Preparing, Started
from nightjar.inference.scoring.assignment import Assignment, OpenedModels
from nightjar.inference.scoring.prepared_batches import unpacked
from nightjar.inference.scoring.staged import PreparingWorker
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.scoring.worker import ShardWorker
from support import Lake

CODE = """
import numpy as np

def tree(batch):
    if {5, 1300} & set(batch["x"].tolist()):
        raise ValueError("cannot be scored")
    return {"score": batch["x"] * 3, "pair": np.stack([batch["x"]] * 4, axis=1).reshape(-1, 2, 2)}

def plain(batch):
    return batch

def prep(batch):
    return {**batch, "y": batch["x"] + 1}

def net(batch):
    if {5, 2900} & set(batch["x"].tolist()):
        raise ValueError("cannot be scored")
    return {"score": batch["y"] * 2, "word": [f"row {each:g}" for each in batch["x"]]}
"""
TREE: dict[str, Any] = {
    "name": "tree",
    "uses": "model:tree",
    "features": ["x"],
    "outputs": {"score": "float32", "pair": "float32[2, 2]"},
    "batch_size": 100,
}
NET: dict[str, Any] = {
    "name": "net",
    "uses": "model:net",
    "features": ["x", "y"],
    "outputs": {"score": "float32", "word": "string"},
    "batch_size": 256,
    "preprocess": "model:prep",
}
STAGED = {"uses": "model:plain", "placement": "staged"}


def two(lake: Lake, placement: str = "staged", **more: Any) -> Lake:
    """A lake that both models score. placement: of the preprocess."""
    if not (lake.folder / "data").exists():
        lake.write_files(files=2)
        lake.write_model(CODE)
    lake.write_job(**{"model": None, "models": [TREE, NET], "preprocess": {**STAGED, "placement": placement}, **more})
    return lake


@pytest.mark.parametrize("rows", ["any", "all"])
def test_models_make_behind_a_stage_what_they_make_without_it(lake: Lake, rows: str) -> None:
    """With several types of outputs and a preprocess each; rows that cannot be scored are found as ever."""
    two(lake, "fused", output__rows=rows)
    work = [Assignment(each) for each in lake.planned().shards()]
    here = outcome(lake, list(ShardWorker(lake.worker_spec()).process(work)))
    two(lake, output__rows=rows)
    assert outcome(lake, list(through_both(lake))) == here
    assert len(here[0]) == (3999 if rows == "any" else 3997)
    assert sorted((row["model"], row["_row"]) for row in here[1]) == [
        ("net", 5),
        ("net", 900),
        ("tree", 5),
        ("tree", 1300),
    ]


def test_the_stage_tells_its_attempt_and_hands_over_each_models_own_batches(lake: Lake) -> None:
    two(lake)
    turned: list[Started] = []
    stage = PreparingWorker(lake.worker_spec(), turn_to=turned.append)
    assert stage.handed is None
    shard = next(iter(lake.planned().shards()))
    events, handed = [], []
    for event in stage.process([Assignment(shard, Attempt(3))]):
        events.append(event)
        handed += [unpacked(stage.handed[1][0])] if stage.handed is not None else []
    assert stage.handed is None
    assert events == [Preparing(shard.id, 3, this_worker()), Prepared(shard.id, 3, this_worker())]
    assert turned == [Started(shard.id, 3, this_worker())]
    (parcel,) = handed
    assert {name: len(batches[0].rows) for name, batches in parcel.batches.items()} == {"tree": 100, "net": 256}


def stopped(lake: Lake) -> Failed:
    """How the stage fails with the first shard."""
    events: list[Event] = []
    with suppress(ProcessSpoilt):
        for event in PreparingWorker(lake.worker_spec()).process([Assignment(next(iter(lake.planned().shards())))]):
            events.append(event)
    last = events[-1]
    assert isinstance(last, Failed)
    return last


def test_what_ends_the_stage_is_told_with_the_model_and_the_rows_it_worked_on(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a shard is put together the user's code has no row."""
    uri = str(lake.folder / "data" / "part-00.parquet")
    two(lake, retry__shard_s=1e-6)
    assert f"it came to row 0 of {uri}" in stopped(lake).message
    two(lake)
    gone = "raise ProcessSpoilt('DeviceLost', 'gone')"
    lake.write_model(f"from nightjar.inference.errors import ProcessSpoilt\n{CODE}\ndef prep(batch):\n    {gone}\n")
    last = stopped(lake)
    assert (last.died, last.uri, last.model, last.row, last.rows) == (True, uri, "net", 0, 256)
    lake.write_model(CODE)

    def end(_: object) -> None:
        raise ProcessSpoilt("Stalled", "no progress")

    monkeypatch.setattr(OpenedModels, "check", end)
    last = stopped(lake)
    assert (last.died, last.uri, last.model, last.row, last.rows) == (True, uri, "", -1, 0)
    assert last.message.endswith(f"its process was ended while {uri} was read or written")


def test_a_framework_of_the_cpu_may_stand_beside_one_that_has_the_gpu(tmp_path: Path) -> None:
    """Alone it is refused: nothing would use the GPU."""

    def job(**models: Any) -> Job:
        content = {"name": "j", "input": {"uri": "in/"}, "output": {"uri": "out/"}, "resources": {"gpus": 1}}
        return parse_job({**content, **models}, tmp_path / "job.yaml")

    trees = {"uses": "lightgbm", "path": "model.txt", "outputs": {"score": "float64"}}
    check_keys(job(models=[{**trees, "name": "tree"}, NET]))
    with pytest.raises(JobError, match=r"resources\.gpus: the lightgbm adapter computes on the CPU; write gpus: 0$"):
        check_keys(job(model=trees))
