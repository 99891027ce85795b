"""Memory: actors keep the pages they need again, and running out of it is a death like any other.

Ray ends a worker when the machine runs out of memory; the row to blame is found.
"""

from __future__ import annotations

import json

import psutil
import pytest

from nightjar.inference.job.file import load_job
from nightjar.inference.scoring import memory
from support import Lake, command

pytestmark = [pytest.mark.cluster]

GREEDY = '''
import numpy as np

def score(batch):
    """Twice x; one row takes all the memory it can get, up to some GiB."""
    if 5300 in batch["x"]:
        hoard = [np.ones(1 << 25) for _ in range(48)]
        del hoard
        raise ValueError("nobody ended this process")
    return {"score": batch["x"] * 2}
'''
LEFT = 5 << 30
"""Bytes above what is in use now, at which Ray begins to end workers. One row takes 12 GiB."""

ARENAS = '''
import os
import numpy as np
import pyarrow as pa

def score(batch):
    """What this process's allocator was started with, and where Arrow takes its memory from."""
    rows = len(batch["x"])
    assert pa.default_memory_pool().backend_name == "system"
    return {"score": np.full(rows, float(os.environ["MALLOC_ARENA_MAX"]))}
'''


@pytest.mark.parametrize(
    ("own", "arenas"), [({}, 1), pytest.param({"MALLOC_ARENA_MAX": "3"}, 3, marks=pytest.mark.long)]
)
def test_actors_keep_pages_unless_the_environment_says_otherwise(
    lake: Lake, prefect_api: str, own: dict[str, str], arenas: int
) -> None:
    lake.write_model(ARENAS)
    lake.ready()
    ended = command("run", lake.job_path, "--date", "2026-11-19", env={"PREFECT_API_URL": prefect_api, **own})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert set(lake.published()["score"]) == {arenas}


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


@pytest.mark.skipif(psutil.virtual_memory().available < 15 << 30, reason="needs 15 GiB of free memory")
def test_a_row_that_takes_all_memory_costs_that_row(lake: Lake, prefect_api: str) -> None:
    lake.write_model(GREEDY)
    lake.ready()
    memory = psutil.virtual_memory()
    threshold = (memory.total - memory.available + LEFT) / memory.total
    ended = command(
        *("run", lake.job_path, "--date", "2026-11-19", "--json"),
        env={
            "PREFECT_API_URL": prefect_api,
            "RAY_memory_usage_threshold": f"{threshold:.3f}",
            "RAY_memory_monitor_refresh_ms": "50",
        },
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads(ended.stdout)["rows_quarantined"] == 1
    lost = lake.quarantined()
    assert lost["_row"].tolist() == [1300]
    assert lost["error"].tolist() == ["ProcessDied"]
    assert lake.published()["id"].tolist() == [i for i in range(8000) if i != 5300]
