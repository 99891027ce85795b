"""Nothing goes on for ever on Ray: models that hang, and actors that cannot be made.

What a run makes of a row that hangs the model, and shards that are too slow: tests/runs/test_deaths.py.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
import ray
from ray.data import DataContext

from nightjar.inference.engine.auditing import FEW_BYTES, audited
from nightjar.inference.engine.ray.engine import RayEngine, each_in_tasks
from nightjar.inference.engine.ray.passes import run_pass
from nightjar.inference.errors import ClusterLost, JobError, RunFailed
from nightjar.inference.records import Failed, Receipt
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.preflight import Loaded, samples
from nightjar.inference.scoring.suspects import Attempt
from support import HANGS_AT_A_ROW, ONCE, Lake, wait_until

pytestmark = pytest.mark.usefixtures("ray_local")

MADE_LATER = (
    ONCE
    + '''
class Model:
    """Twice x. Preflight makes it; the actors of the pool do not, or not at first."""

    def __init__(self):
        if not once("preflight"):
            HERE_IT_FAILS

    def __call__(self, batch):
        return {"score": batch["x"] * 2}
'''
)


def failures(lake: Lake) -> list[dict[str, object]]:
    return [record for record in lake.records() if record["t"] == "failed"]


ONE_ROW_GROUP = [("all.parquet", 0, 2000)]
FILES = [("a.parquet", 0, 1000), ("b.parquet", 1000, 1000)]
A_BAD_ROW_FIRST = [("a.parquet", 0, 1), ("b.parquet", 1, 999), ("c.parquet", 1000, 1000)]


def placed(lake: Lake, files: list[tuple[str, int, int]], model: str, stall_s: float = 5) -> WorkerSpec:
    """Two thousand rows, each file one row group."""
    for name, first, rows in files:
        lake.write_file(name, first, rows, row_group=rows)
    lake.write_model(model)
    lake.write_job(retry__stall_s=stall_s)
    return lake.worker_spec()


def preflown(lake: Lake, files: list[tuple[str, int, int]], model: str) -> Loaded:
    """What preflight on Ray comes to."""
    return RayEngine().preflight(placed(lake, files, model), samples(lake.planned()))


@pytest.mark.parametrize(
    "files", [pytest.param(ONE_ROW_GROUP, id="one-row-group", marks=pytest.mark.long), pytest.param(FILES, id="files")]
)
def test_a_row_that_hangs_the_model_may_be_the_first(lake: Lake, files: list[tuple[str, int, int]]) -> None:
    """Preflight meets it and scores elsewhere: the model is well, and the passes will find the row."""
    loaded = preflown(lake, files, HANGS_AT_A_ROW.replace("5300", "7"))
    assert loaded.hung
    assert loaded.sample_error == "scoring the first rows took longer than retry.stall_s = 5 s and was ended"


@pytest.mark.long
def test_a_row_that_hangs_the_model_may_come_after_a_bad_file(lake: Lake) -> None:
    """Where preflight hung is not where it began: it goes on after that place."""
    bad = 'if 0 in batch["x"]:\n        raise ValueError("not this row")\n    if 7 in'
    assert preflown(lake, A_BAD_ROW_FIRST, HANGS_AT_A_ROW.replace("if 5300 in", bad)).hung


@pytest.mark.parametrize(
    "files", [ONE_ROW_GROUP, pytest.param(FILES, marks=pytest.mark.long)], ids=["one-row-group", "files"]
)
def test_a_model_that_hangs_everywhere_is_refused(lake: Lake, files: list[tuple[str, int, int]]) -> None:
    """At two places of the input it is the model, and nothing is scored for it."""
    hangs = HANGS_AT_A_ROW.replace('if 5300 in batch["x"]:', 'if len(batch["x"]):')
    with pytest.raises(JobError, match=r"scoring the first rows took longer than retry\.stall_s = 5 s and was ended"):
        preflown(lake, files, hangs)


def test_a_row_that_ends_preflights_process_at_once_is_not_taken_for_the_model(lake: Lake) -> None:
    """What that process said before has arrived: the model was loaded, so the passes look for the row."""
    kills = "import os, signal\n\n\ndef score(batch):\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    spec = placed(lake, FILES, kills, stall_s=60)
    for _ in range(3):  # without the wait for each answer, some are lost
        said = RayEngine().preflight(spec, samples(lake.planned())).sample_error
        assert said.startswith("scoring the first rows ended its process")


def test_an_actor_in_which_a_row_hangs_says_so_before_it_ends(lake: Lake) -> None:
    """Its last event arrives, and the pass ends. What comes of it: tests/runs/test_deaths.py."""
    # Until an actor has been started there is no event, and three times this ends the pass: a slow machine takes 15 s.
    spec = placed(lake, FILES, HANGS_AT_A_ROW.replace("5300", "7"), stall_s=12)
    events = [event for batch in run_pass(spec, lake.planned().table, [Attempt()] * 2) for event in batch]
    (failed,) = (event for event in events if isinstance(event, Failed))
    assert (failed.cause, failed.rows, failed.died) == ("Stalled", 256, True)
    assert failed.message.startswith("Stalled: no progress for retry.stall_s = 12 s, in wait")
    assert not [event for event in events if isinstance(event, Receipt) and event.shard == failed.shard]


def test_a_pass_keeps_its_limits_to_itself(lake: Lake) -> None:
    """Whoever else uses Ray Data in this process has neither its time limit nor its small blocks, and sees its log."""
    before = DataContext.get_current().copy(), logging.getLogger("ray.data").level
    events = run_pass(lake.ready(retry__stall_s=77).worker_spec(), lake.planned().table, [Attempt()] * 8)
    assert len([event for batch in events for event in batch if isinstance(event, Receipt)]) == 8
    assert (DataContext.get_current(), logging.getLogger("ray.data").level) == before


def test_an_actor_that_cannot_be_made_at_first_is_made_again(lake: Lake) -> None:
    """A pass that could not start charges no shard."""
    lake.write_model(MADE_LATER.replace("HERE_IT_FAILS", 'if once("pool"): raise OSError("the weights are locked")'))
    ran = lake.ready(model__uses="model:Model").run()
    assert lake.published()["id"].tolist() == list(range(8000))
    assert ran.scored.progress.failed_attempts == 0


def test_actors_that_can_never_be_made_end_the_run(lake: Lake) -> None:
    """In bounded time, with what Ray says of it, and with every CPU free again."""
    lake.write_model(MADE_LATER.replace("HERE_IT_FAILS", "raise OSError('the weights are gone')"))
    lake.ready(model__uses="model:Model", retry__attempts=2)
    with pytest.raises(RunFailed, match=r"(?s)2 passes in a row started nothing.*the weights are gone"):
        lake.run()
    assert failures(lake) == []
    wait_until(lambda: ray.available_resources().get("CPU") == 2, 30, "every CPU is free again")


def test_actors_that_are_made_for_ever_end_the_pass(lake: Lake) -> None:
    """Nothing is to be waited for but the limit, however long it takes here to start an actor."""
    lake.write_model(MADE_LATER.replace("HERE_IT_FAILS", "import threading; threading.Event().wait()"))
    lake.ready(model__uses="model:Model", retry__stall_s=3)
    (lake.folder / "preflight").touch()
    with pytest.raises(RunFailed, match="no progress"):
        list(run_pass(lake.worker_spec(), lake.planned().table, [Attempt()] * 8))
    wait_until(lambda: ray.available_resources().get("CPU") == 2, 30, "every CPU is free again")


def test_nothing_goes_on_when_nobody_waits_for_it(lake: Lake, tmp_path: Path) -> None:
    """Another command may have taken the run over meanwhile."""

    def work(place: int) -> None:
        (tmp_path / f"begun-{place}-{os.getpid()}").touch()
        time.sleep(600)

    steps = each_in_tasks(work, range(2), lake.ready().request().job, "work")
    wait_until(lambda: next(steps) is None and any(tmp_path.glob("begun-*")), 60, "it has begun")
    pids = {int(path.name.rpartition("-")[2]) for path in tmp_path.glob("begun-*")}
    steps.close()
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), 30, "its processes end")


def test_a_requirement_that_cannot_be_installed_is_said_by_its_key(lake: Lake) -> None:
    spec = lake.ready(resources__runtime_env={"pip": ["/nowhere/none-1.0-py3-none-any.whl"]}).worker_spec()
    with pytest.raises(JobError, match=r"^resources\.runtime_env\.pip: Ray cannot install it: "):
        RayEngine().preflight(spec, samples(lake.planned()))


def test_what_no_process_is_started_for_is_ended(lake: Lake, tmp_path: Path) -> None:
    """Here because somebody else holds the CPUs: preflight, a pass and an audit end by themselves, and say so."""

    @ray.remote(num_cpus=2)
    def hold(stop: Path) -> None:
        while not stop.exists():
            time.sleep(0.05)

    stop = tmp_path / "stop"
    holder = hold.remote(stop)
    wait_until(lambda: ray.available_resources().get("CPU", 0) == 0, 30, "the CPUs are held")
    try:
        spec = lake.ready(retry__stall_s=1).worker_spec()
        with pytest.raises(ClusterLost, match=r"3 × retry\.stall_s = 1 s: no process was there for it"):
            RayEngine().preflight(spec, [])
        events = run_pass(spec, lake.planned().table, [Attempt()] * 8)
        with pytest.raises(RunFailed, match="no progress"):
            list(events)
        with pytest.raises(ClusterLost, match=r"^the audit stood still for 3 × retry\.stall_s = 1 s"):
            large = pa.table({"data": [{"size": FEW_BYTES}] * 2, "quarantine": [{"size": 0}] * 2})
            list(audited(RayEngine(), spec.storage, spec.revision, spec.job, large))
    finally:
        stop.touch()
        ray.get(holder)
