"""Preflight and workers tell what their predictor uses beyond identity: each in a process of its own, without Ray."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.ledger.ledger import State
from nightjar.inference.records import Event, Failed, Piece, Receipt, Seen, Shard, decode, encode
from nightjar.inference.run import refusals
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec
from nightjar.inference.scoring.preflight import Loaded, observed, preflight_steps, samples
from nightjar.inference.scoring.worker import ShardWorker
from support import Lake

MODEL = """
import os
import pyarrow.csv

class Predictor:
    def __init__(self):
        self.vocabulary = open("{folder}/vocab.json").read()
        self.table = pyarrow.csv.read_csv("{folder}/table.csv")
        self.own = open("beside.json").read()

    def __call__(self, batch):
        if batch["x"].max() > 5000:
            open(os.path.join("{folder}", "rare.json")).read()
        return {{"score": batch["x"] * 2}}
"""


def tried(spec: WorkerSpec, places: list[Piece]) -> list[Loaded | str]:
    """What preflight says."""
    with chdir("."):  # the next test does not stand where this one's files were
        return list(observed(spec.job, preflight_steps, partial(ShardWorker, spec), places))


def scored(spec: WorkerSpec, shards: list[Shard]) -> list[Event]:
    """What a worker says."""
    with chdir("."):
        return list(ShardWorker(spec).process(Assignment(shard) for shard in shards))


Apart = Callable[..., Any]
"""What a function returns in a process of its own."""


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    """One process for all tests of this module, as starting one takes a second. Each watches anew."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda function, spec, *rest: pool.submit(function, replace(spec, own_process=True), *rest).result()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that nothing covers."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("vocab.json", "rare.json", "table.csv"):
        (folder / name).write_text("a,b\n1,2\n")
    return folder


@pytest.fixture
def lake(tmp_path: Path, folder: Path) -> Lake:
    """A job whose predictor reads files there."""
    lake = Lake(tmp_path / "job")
    lake.write_model(MODEL.format(folder=folder))
    (lake.folder / "beside.json").write_text("{}")
    return lake.ready(model__uses="model:Predictor")


def test_preflight_tells_what_it_saw(lake: Lake, folder: Path, apart: Apart) -> None:
    """What Python opened and what C code was only told the name of; and the packages that were loaded."""
    *_, last = apart(tried, lake.worker_spec(), samples(lake.planned()))
    assert isinstance(last, Loaded)
    assert set(last.outside) == {
        Seen("file", f"{folder}/vocab.json", "model.py:7"),
        Seen("named", f"{folder}/table.csv", "model.py:8"),
        Seen("named", f"{folder}/rare.json", "model.py:13"),  # the sample has no row that leads there
    }
    assert last.packages["pyarrow"] == pa.__version__


def test_a_worker_tells_what_it_comes_to_and_each_thing_once(lake: Lake, folder: Path, apart: Apart) -> None:
    """Before the receipt of the shard that led there; its events travel and are kept like all others."""
    events = apart(scored, lake.worker_spec(), list(lake.planned().shards()))
    found = [type(event).__name__ for event in events if isinstance(event, (Receipt, Seen))]
    assert found == ["Seen", *["Receipt"] * 4, "Seen", *["Receipt"] * 4]
    noticed = [event for event in events if isinstance(event, Seen)]
    assert [(event.name, event.by) for event in noticed] == [
        (f"{folder}/vocab.json", "model.py:7"),
        (f"{folder}/rare.json", "model.py:13"),
    ]
    state = State()
    for event in noticed:
        assert decode(encode(event)) == event
        state.fold(event)
    assert state.about.notes(0)[1].startswith(f"model.py reads {folder}/rare.json, which is not part of")


def test_a_strict_jobs_worker_keeps_nothing_of_what_used_more(lake: Lake, folder: Path, apart: Apart) -> None:
    """Its shards fail for good, with a sentence."""
    lake.write_job(model__uses="model:Predictor", identity="strict")
    events = apart(scored, lake.worker_spec(), list(lake.planned().shards())[:1])
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert (failed.cause, failed.terminal) == ("OutsideIdentity", True)
    assert failed.message.startswith(f"identity: strict: model.py reads {folder}/vocab.json")
    assert not list(lake.revision().glob("data/*"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import_module('fast' + '_rules')", "looks for fast_rules.py"),
        ("open('ru' + 'les/a.tx' + 't')", "looks for rules/a.txt"),
        ("os.listdir()", "lists the job's folder"),
    ],
)
def test_a_node_that_does_not_see_the_jobs_folder_knows_what_lay_there(
    lake: Lake, apart: Apart, line: str, said: str
) -> None:
    """Code that goes on without a file is refused there, too."""
    lake.write_model(GOES_ON.format(line=line))
    (lake.folder / "fast_rules.py").touch()
    (lake.folder / "rules").mkdir()
    (lake.folder / "rules" / "a.txt").touch()
    lake.write_job(model__uses="model:score")
    spec = lake.worker_spec()
    away = replace(spec, job=spec.job.model_copy(update={"folder": "/of/another/node"}))
    *_, last = apart(tried, away, samples(lake.planned()))
    assert isinstance(last, JobError)
    assert said in str(last)


GOES_ON = """
import os
from importlib import import_module

try:
    {line}
except (ImportError, OSError):
    pass

def score(batch):
    return {{"score": batch["x"]}}
"""


def test_a_variable_that_the_job_says_is_part_of_the_identity(lake: Lake, apart: Apart) -> None:
    """One whose value comes from where the command runs is not."""
    lake.write_model(READS)
    env = {"FACTOR": "2", "TOKEN": "${HOME}"}
    lake.write_job(identity="strict", resources__runtime_env={"env_vars": env})
    spec = replace(lake.worker_spec(), environment=lake.request().environment)
    *_, last = apart(tried, spec, samples(lake.planned()))
    assert isinstance(last, Loaded)
    assert [(seen.kind, seen.name, seen.by) for seen in last.outside] == [("environment", "TOKEN", "model.py:5")]


READS = """
import os

def score(batch):
    os.environ["TOKEN"]
    return {"score": batch["x"] * float(os.environ["FACTOR"])}
"""


def test_a_strict_job_is_refused_in_preflight(lake: Lake) -> None:
    """It lists what was seen; a folder that is only named may be where something is written."""
    lake.write_job(identity="strict")
    job: Job = lake.request().job
    with pytest.raises(JobError, match=r"identity: strict: p.py connects to host:1, whose answers are not"):
        refusals.refuse_external_reads(job, [Seen("network", "host:1", "p.py:1"), Seen("file", "/v", "p.py:2")])
    refusals.refuse_external_reads(job, [Seen("folder", "/var/log/mine", "p.py:1")])


def test_what_preflight_learnt_travels(folder: Path) -> None:
    """From the process that tried the model to the one that keeps it."""
    loaded = Loaded("cpu", outside=(Seen("file", "/v", "p.py:1"),), packages={"a": "1"})
    assert pickle.loads(pickle.dumps(loaded)) == loaded
