"""Ray ends a worker when the machine runs out of memory: a death like any other, and the row to blame is found."""

from __future__ import annotations

import json

import psutil
import pytest

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
