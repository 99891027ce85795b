"""Memory: actors hold it as the environment says, and running out of it is a death like any other.

Ray ends a worker when the machine runs out of memory; the row to blame is found.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

import psutil
import pytest

from nightjar.inference.job.file import load_job
from nightjar.inference.scoring import memory
from support import Lake, command

MODEL = '''
import os
import numpy as np
import pyarrow as pa

def score(batch):
    """What this process's allocator was started with; one row takes all the memory it can get, up to some GiB."""
    rows = len(batch["x"])
    assert pa.default_memory_pool().backend_name == "system"
    if GREEDY in batch["x"]:
        hoard = [np.ones(1 << 25) for _ in range(48)]
        del hoard
        raise ValueError("nobody ended this process")
    return {"score": np.full(rows, float(os.environ["MALLOC_ARENA_MAX"]))}
'''
LEFT = 8 << 30
"""Bytes above what is in use now, at which Ray begins to end workers. One row takes 12 GiB.

Other programs may take memory at the same time; if they took all of it, Ray would end other workers, too.
"""

ENOUGH = psutil.virtual_memory().available > 15 << 30
"""Whether there is memory for a row that takes so much."""


@dataclass
class Ended:
    """A command on a Ray of its own, and the lake it ran over."""

    lake: Lake
    command: subprocess.CompletedProcess[str]


def run(lake: Lake, **env: str) -> Ended:
    """One night."""
    return Ended(lake.ready(), command("run", lake.job_path, "--date", "2026-11-19", "--json", env=env))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Ended:
    """Where memory runs out before the machine's does: minutes, since the pages of each lost process are made anew."""
    lake = Lake(tmp_path_factory.mktemp("memory"))
    lake.write_model(MODEL.replace("GREEDY", "5300"))
    memory = psutil.virtual_memory()
    limits = {
        "RAY_memory_usage_threshold": f"{(memory.total - memory.available + LEFT) / memory.total:.3f}",
        "RAY_memory_monitor_refresh_ms": "50",
    }
    return run(lake, PREFECT_API_URL=prefect_api, **limits)


@pytest.mark.long
def test_actors_keep_pages_as_the_environment_says(lake: Lake, prefect_api: str) -> None:
    lake.write_model(MODEL.replace("GREEDY", "-1"))
    done = run(lake, PREFECT_API_URL=prefect_api, MALLOC_ARENA_MAX="3").command
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(lake.published()["score"]) == {3}


def test_the_allocator_has_an_arena_for_each_core_of_an_actor(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    settings = memory.environment(load_job(lake.ready(resources__cpus=4).job_path))
    assert settings["MALLOC_ARENA_MAX"] == "4"
    assert memory.environment(load_job(lake.ready(resources__cpus=0.5).job_path)) == {
        **settings,
        "MALLOC_ARENA_MAX": "1",
    }
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")
    assert memory.environment(load_job(lake.job_path)) == {}


@pytest.mark.long
@pytest.mark.skipif(not ENOUGH, reason="needs 15 GiB of free memory")
def test_a_row_that_takes_all_memory_costs_that_row(ended: Ended) -> None:
    assert ended.command.returncode == 0, ended.command.stdout + ended.command.stderr
    assert json.loads(ended.command.stdout)["rows_quarantined"] == 1
    lost = ended.lake.quarantined()
    assert lost["_row"].tolist() == [1300]
    assert lost["error"].tolist() == ["ProcessDied"]
    assert ended.lake.published()["id"].tolist() == [i for i in range(8000) if i != 5300]
