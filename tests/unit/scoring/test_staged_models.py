"""One of several models in the CPU stage: it makes what it would make in an actor, with what the stage has."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_stages import outcome, through_both

from nightjar.inference.errors import JobError, ProcessSpoilt
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.model_sections import Preprocess
from nightjar.inference.job.modeljob import model_jobs, scoring_keys
from nightjar.inference.predictors import check_keys
from nightjar.inference.records import Event, Failed, Prepared, Preparing, Started
from nightjar.inference.scoring.assignment import Assignment, OpenedModels
from nightjar.inference.scoring.attempts import this_worker
from nightjar.inference.scoring.prepared_batches import unpacked
from nightjar.inference.scoring.staged import PreparingWorker
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.scoring.worker import ShardWorker
from support import Lake

CODE = '''
import os
import numpy as np

class Tree:
    """Notes how many rows it gets, and raises for some."""

    def __call__(self, batch):
        with open(os.path.join(__LIVE__, "scored"), "a") as calls:
            calls.write(f"{len(batch['x'])}\\n")
        if {5, 1300} & set(batch["x"].tolist()):
            raise ValueError("cannot be scored")
        return {"score": batch["x"] * 3, "pair": np.stack([batch["x"]] * 4, axis=1).reshape(-1, 2, 2)}

def prep(batch):
    return {**batch, "y": batch["x"] + 1}

def net(batch):
    if {5, 2900} & set(batch["x"].tolist()):
        raise ValueError("cannot be scored")
    return {"score": batch["y"] * 2, "word": [f"row {each:g}" for each in batch["x"]]}
'''
TREE: dict[str, Any] = {
    "name": "tree",
    "uses": "model:Tree",
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
STAGED = {"placement": "staged"}


def job(tmp_path: Path, *models: dict[str, Any], **more: Any) -> Job:
    content = {"name": "j", "input": {"uri": "in/"}, "models": list(models), "output": {"uri": "out/"}}
    return parse_job({**content, **more}, tmp_path / "job.yaml")


def two(lake: Lake, tree: dict[str, Any], net: dict[str, Any], **more: Any) -> Lake:
    """A lake that both models score."""
    if not (lake.folder / "data").exists():
        lake.write_files(files=2)
        lake.write_model(CODE)
    lake.write_job(**{"model": None, "models": [TREE | tree, NET | net], **more})
    return lake


def scored_rows(lake: Lake) -> int:
    """How many rows the tree got since this was last asked."""
    path = Path(lake.folder / "scored")
    rows = sum(map(int, path.read_text().split()))
    path.unlink()
    return rows


@pytest.mark.parametrize("rows", ["any", "all"])
@pytest.mark.parametrize("staged", [("tree",), ("net",)])
def test_a_staged_model_makes_what_it_makes_in_an_actor(lake: Lake, staged: tuple[str, ...], rows: str) -> None:
    """With several types of outputs, beside the preprocess of another model; rows that cannot be scored are found as
    ever.
    """
    two(lake, {}, {}, output__rows=rows)
    work = [Assignment(each) for each in lake.planned().shards()]
    here = outcome(lake, list(ShardWorker(lake.worker_spec()).process(work)))
    two(lake, *(STAGED if name in staged else {} for name in ("tree", "net")), output__rows=rows)
    assert outcome(lake, list(through_both(lake))) == here
    assert len(here[0]) == (3999 if rows == "any" else 3997)
    assert sorted((row["model"], row["_row"]) for row in here[1]) == [
        ("net", 5),
        ("net", 900),
        ("tree", 5),
        ("tree", 1300),
    ]


def test_the_stage_scores_and_the_actor_only_what_raised_there(lake: Lake) -> None:
    two(lake, STAGED, {})
    stage = PreparingWorker(lake.worker_spec())
    held = []
    for event in stage.process([Assignment(each) for each in lake.planned().shards()]):
        if isinstance(event, Prepared) and stage.handed:
            held += unpacked(stage.handed[1][0]).batches["tree"]
    assert scored_rows(lake) == 4000
    assert sum(len(batch.rows) for batch in held) == 4000 - 2 * 100
    assert {tuple(batch.content.column_names) for batch in held} == {("score", "pair")}
    list(through_both(lake))
    # Only the two batches that raised are scored again, in halves.
    assert 4000 + 2 * 100 <= scored_rows(lake) <= 4000 + 2 * 100 * 8


PLAIN = {key: value for key, value in NET.items() if key != "preprocess"} | {"features": ["x"]}


@pytest.mark.parametrize(
    ("models", "sizes"), [([PLAIN, TREE | STAGED], {"tree": 100}), ([TREE | STAGED, NET], {"tree": 100, "net": 256})]
)
def test_the_stage_tells_its_attempt_and_hands_over_each_models_own_batches(
    lake: Lake, models: list[dict[str, Any]], sizes: dict[str, int]
) -> None:
    """Of those that have something to do there."""
    two(lake, {}, {}, models=models)
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
    assert {name: len(batches[0].rows) for name, batches in parcel.batches.items()} == sizes


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
    two(lake, STAGED, {}, retry__shard_s=1e-6)
    assert f"it came to row 0 of {uri}" in stopped(lake).message
    two(lake, STAGED, {})
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


def test_a_staged_model_has_what_the_stage_has(tmp_path: Path) -> None:
    """Wherever it is called. The others have what the actors have."""
    found = job(tmp_path, TREE | STAGED, NET, preprocess={"cpus": 2}, resources={"gpus": 1, "cpus": 3})
    assert [(each.resources.gpus, each.resources.cpus) for each in model_jobs(found)] == [(0, 2), (1, 3)]
    assert [each.preprocess is not None for each in model_jobs(found)] == [False, True]
    assert found.stage == Preprocess(cpus=2)


def test_where_it_runs_is_part_of_what_it_makes_only_beside_a_gpu(tmp_path: Path) -> None:
    """On the CPU of an actor and on that of the stage it computes the same."""

    def keys(placed: dict[str, Any], gpus: int) -> dict[str, Any]:
        return scoring_keys(job(tmp_path, TREE | placed, NET, resources={"gpus": gpus}))

    assert keys(STAGED, 0) == keys({}, 0)
    assert keys(STAGED, 1) != keys({}, 1)


def test_a_framework_of_the_cpu_may_stand_beside_one_that_has_the_gpu(tmp_path: Path) -> None:
    trees = {**TREE, "uses": "lightgbm", "path": "model.txt", "outputs": {"score": "float64"}}
    said = "resources.gpus: the lightgbm adapter computes on the CPU; write gpus: 0, or placement: staged for tree"
    with pytest.raises(JobError, match=said):
        check_keys(job(tmp_path, trees, NET, resources={"gpus": 1}))
    check_keys(job(tmp_path, trees | STAGED, NET, resources={"gpus": 1}))


@pytest.mark.parametrize(
    ("models", "more", "said"),
    [
        ((TREE | STAGED, NET | STAGED), {}, "models[0].placement: no model is left for the actors"),
        ((TREE, NET), {"preprocess": {"cpus": 2}}, "preprocess.uses: is required"),
        ((TREE | {"preprocess": {"cpus": 2}}, NET), {}, "models[0]: preprocess.uses: is required"),
        ((TREE | {"placement": "auto"}, NET), {}, "models[0].placement: must be 'fused' or 'staged', not 'auto'"),
    ],
)
def test_a_placement_that_makes_no_sense_is_refused(
    tmp_path: Path, models: tuple[dict[str, Any], ...], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(JobError) as refused:
        job(tmp_path, *models, **more)
    assert said in str(refused.value)
