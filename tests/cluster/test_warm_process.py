"""The processes that import early: one for preflight, which takes it once and ends it, and one for the flow's tasks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import psutil
import pytest
import ray
from ray import cloudpickle

from nightjar.flows.cluster import tasks
from nightjar.flows.cluster.tasks import importing, wait_for_imports
from nightjar.inference.engine.ray.engine import RayEngine
from nightjar.inference.engine.ray.warming import taken, warmed
from nightjar.inference.errors import JobError
from nightjar.inference.records import Piece
from nightjar.inference.scoring.preflight import Loaded, preflight_steps, samples
from nightjar.inference.scoring.worker import ShardWorker
from support import Lake, wait_until

pytestmark = pytest.mark.usefixtures("ray_local")

DIES = '''
import os

class Model:
    """Ends its process."""

    def __init__(self):
        os._exit(1)

    def __call__(self, batch):
        return {"score": batch["x"]}
'''


def with_pid(worker: ShardWorker, places: Sequence[Piece]) -> Iterator[Loaded]:
    """The usual steps; the device says which process took them, and the notes what was imported meanwhile."""
    before: set[str] = set()
    for step in preflight_steps(worker, places):
        before = before or set(sys.modules)  # from the first step on it is the rows whose time is limited
        late = tuple(sorted(set(sys.modules) - before))
        yield replace(step, device=str(os.getpid()), notes=late)


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> None:
    """Ray's processes do not find this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_preflight_takes_the_warm_process_and_ends_it(lake: Lake) -> None:
    """The next one has a process of its own; both hold no CPU afterwards.

    In both all imports are over before the first rows are scored: what scoring may take is the model's.
    """
    lake.ready()
    spec, places = lake.worker_spec(), samples(lake.planned())
    with warmed(spec.job):
        warm = ray.get(ray.get_actor("nightjar-preflight").__ray_call__.remote(lambda _: os.getpid()))
        loaded = RayEngine().preflight(spec, places, with_pid)
        first = int(loaded.device)
        assert (first, loaded.notes) == (warm, ())
        wait_until(lambda: not psutil.pid_exists(first), 30, "preflight's process has ended")
        loaded = RayEngine().preflight(spec, places, with_pid)
        second = int(loaded.device)
    assert second != first
    assert loaded.notes == ()
    wait_until(lambda: ray.available_resources().get("CPU") == 2, 30, "every CPU is free again")


def test_only_one_caller_has_it(lake: Lake) -> None:
    with warmed(lake.ready().request().job):
        first, second = taken(60), taken(60)
    assert first is not None
    assert second is None


def test_without_one_there_is_none(lake: Lake) -> None:
    """Also after the context: it ends with it. A job with GPUs starts none."""
    job = lake.ready().request().job
    with warmed(job):
        pass
    wait_until(lambda: taken(60) is None, 30, "the process has ended")
    gpus = job.model_copy(update={"resources": job.resources.model_copy(update={"gpus": 1})})
    with warmed(gpus):
        assert taken(60) is None


def test_a_model_that_ends_the_warm_process_is_refused_as_elsewhere(lake: Lake) -> None:
    lake.write_model(DIES)
    lake.ready(model__uses="model:Model")
    said = r"^model\.uses: loading the model ended its process \(exit, signal or out of memory\); load it once"
    spec = lake.worker_spec()
    with warmed(spec.job), pytest.raises(JobError, match=said):
        RayEngine().preflight(spec, samples(lake.planned()))


def test_a_warm_process_that_was_lost_is_not_missed(lake: Lake) -> None:
    lake.ready()
    spec = lake.worker_spec()
    with warmed(spec.job):
        ray.kill(ray.get_actor("nightjar-preflight"))
        assert RayEngine().preflight(spec, samples(lake.planned())).device == "cpu"


def has_the_tasks() -> bool:
    return {"prefect.task_engine", "nightjar.inference.run.scoring"} <= set(sys.modules)


def test_the_next_task_runs_in_the_process_that_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a wait for its imports. Where nobody imports, nobody waits.

    An environment of its own keeps the idle processes of other tests from taking the task.
    """
    monkeypatch.setattr("nightjar.flows.cluster.tasks._IMPORT_S", 120.0)
    options = {**tasks.driving(), "runtime_env": {"env_vars": {"NIGHTJAR_TEST": "importing"}}}
    wait_for_imports()
    with importing(options):
        wait_for_imports()
        assert ray.get(ray.remote(**options)(has_the_tasks).remote())
    wait_for_imports()
