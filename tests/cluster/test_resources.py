"""What `resources` asks for is what each actor gets, and what the cluster must have."""

from __future__ import annotations

import json
from typing import Any

import pytest
import ray

from nightjar.inference.engine.ray.capacity import check_cluster
from nightjar.inference.errors import ClusterError, Unanswered
from nightjar.inference.run.approving import answer
from support import Lake, wait_until

pytestmark = pytest.mark.usefixtures("ray_local")

TOLD = """
import json
from pathlib import Path

import ray

class Model:
    def __init__(self):
        here = ray.get_runtime_context()
        told = {"resources": here.get_assigned_resources(), "actor": here.get_actor_id()}
        (Path(__LIVE__) / f"{here.get_worker_id()}.told").write_text(json.dumps(told))

    def __call__(self, batch):
        return {"score": batch["x"] * 2}
"""


def test_each_process_gets_what_the_job_asks_for(lake: Lake) -> None:
    """In preflight, in the pool, and where shards are scored."""
    lake.write_model(TOLD)
    asked = {"actors": 1, "memory_gb": 0.25, "custom": {"licence": 0.5, "accelerator_type:A100": 0.001}}
    lake.ready(model__uses="model:Model", resources={**asked, "labels": {"zone": "eu"}}, rescore__share=1.0).run()
    told = [json.loads(path.read_text()) for path in lake.folder.glob("*.told")]
    assert sorted(each["actor"] is not None for each in told) == [False, False, True]
    for each in told:
        got = each["resources"]
        assert (got["memory"], got["licence"], got["CPU"]) == (0.25 * 2**30, 0.5, 1)
        assert got["accelerator_type:A100"] > 0


GPUS = """
from pathlib import Path

import ray

class Model:
    def __init__(self):
        if ray.get_runtime_context().get_actor_id():
            (Path(__LIVE__) / "held").write_text(str(ray.get_gpu_ids()))

    def __call__(self, batch):
        return {"score": batch["x"] * 2}
"""


def free_gpus() -> float:
    return float(ray.available_resources().get("GPU", 0))


def test_a_run_that_asks_a_person_holds_no_gpu_and_no_actor(lake: Lake) -> None:
    """Its actor had one. After the yes nothing is scored."""
    lake.write_model(GPUS)
    every = free_gpus()
    lake.ready(
        model__uses="model:Model",
        resources={"actors": 1, "gpus": 1},
        checks=[{"column": "score", "max": 1, "on_fail": "ask"}],
    )
    with pytest.raises(Unanswered):
        lake.run()
    assert (lake.folder / "held").read_text() != "[]"
    wait_until(lambda: free_gpus() == every, 30, "every GPU is free")
    parts = sorted((lake.revision() / "data").iterdir())
    done = answer(lake.request(), approved=True, by="anna")
    assert done.publication is not None
    assert done.publication.number == 1
    assert sorted((lake.revision() / "data").iterdir()) == parts
    assert free_gpus() == every


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"memory_gb": 9000}, r"1 actors of 1 CPUs, 0 GPUs and 9000 GiB of memory each .*2 CPUs, 2 GPUs and \S+ GiB"),
        ({"custom": {"licence": 3}}, r"and 3 licence each do not fit: .*2 licence\), room for 0"),
        ({"custom": {"seat": 1}}, r"and 1 seat each do not fit: .*0 seat\)"),
        (
            {"custom": {"accelerator_type:H100": 0.001}},
            r"accelerator_type:H100 each do not fit",
        ),
        ({"labels": {"zone": "us"}}, r"label zone=us each do not fit: .*label zone=eu\)"),
        ({"labels": {"rack": "7"}}, r"label rack=7 each do not fit: .*no label rack\)"),
    ],
)
def test_a_cluster_that_has_not_what_is_asked_for_is_refused(lake: Lake, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ClusterError, match=rf"^resources: .*{why}"):
        check_cluster(lake.ready(resources={"actors": 1, **asked}).request().job)
