"""Promise 3, with the real command: killed in mid-score and run again, it scores only what was not committed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from nightjar.inference.engine import LOCAL
from nightjar.inference.scoring.preflight import SAMPLE_ROWS
from support import Lake
from victim import Victim, committed
from writers import assert_published_once, metrics_of

STOPS = '''
import os
import time
from pathlib import Path

import pyarrow as pa

FOLDER = Path(__LIVE__)

def score(batch):
    """Twice x; past the middle only when told to go. Notes how memory is held, and each batch's first row and size."""
    with (FOLDER / "memory").open("a") as memory:
        memory.write(f"{pa.default_memory_pool().backend_name} {os.environ.get('MALLOC_ARENA_MAX')}\\n")
    with (FOLDER / "calls").open("a") as calls:
        calls.write(f"{int(batch['x'][0])} {len(batch['x'])}\\n")
    while batch["x"][0] >= 4000 and not (FOLDER / "go").exists():
        time.sleep(0.05)
    return {"score": batch["x"] * 2}
'''


@pytest.mark.usefixtures("own_home")
def test_a_command_killed_in_mid_score_continues_where_it_stopped(
    lake: Lake, tmp_path: Path, prefect_api: str, prefect_home: Path
) -> None:
    """Same rows and metrics as a run never killed, committed shards untouched, and no process left behind.

    The killed command has a Ray and a Prefect server of its own, which must end, too. The next one reports to another
    server and scores without Ray: what a run continues is the same on each engine (tests/cluster/test_run.py).
    """
    lake.write_model(STOPS)
    lake.ready(checks=[{"column": "score", "max": 15998.0}])
    victim = Victim.start(lake, tmp_path)
    victim.wait_for_receipts(2)
    victim.kill()
    assert victim.trouble == "", "Ray and Prefect say nothing unless --verbose is given"
    assert not (lake.out / "publications").exists()
    held = set((tmp_path / "memory").read_text().splitlines())
    assert held == {"system 1"}, "Ray's actors keep the pages that they need again, with one arena for their one core"
    api = {"PREFECT_API_URL": prefect_api, "PREFECT_HOME": str(prefect_home)}
    heir = Victim.start(lake, tmp_path, "--engine", LOCAL, **api)
    # What the killed command had started may commit for another moment, and no longer.
    victim.assert_nothing_left()
    done, parts = committed(lake, epoch=1), _parts(lake, epoch=1)
    assert 2 <= len(done) <= 4
    (tmp_path / "calls").unlink()
    (tmp_path / "go").touch()
    said = heir.end()
    assert (said["publication"], said["reused_shards"], said["rows_out"]) == (1, len(done), 8000)
    assert _scored_again(lake, done) == set()
    assert committed(lake, epoch=1) == done
    assert _parts(lake, epoch=1) == parts

    lake.run(run_id="never-killed", engine=LOCAL)
    assert_published_once(lake, "2026-11-19", lake.published("never-killed"))
    assert metrics_of(lake, "2026-11-19") == metrics_of(lake, "never-killed")


def _parts(lake: Lake, epoch: int) -> dict[str, int]:
    """The parts an epoch committed, and when each was written."""
    records = [record for record in lake.records() if record["t"] == "receipt" and record["epoch"] == epoch]
    paths = [lake.revision() / record["data"]["name"] for record in records]
    return {path.name: path.stat().st_mtime_ns for path in paths}


def _scored_again(lake: Lake, done: set[str]) -> set[int]:
    """First rows of committed shards that the predictor was given again; preflight's small sample aside."""
    records = [r for r in lake.records() if r["t"] == "receipt" and r["shard"] in done]
    frames = [pd.read_parquet(lake.revision() / r["data"]["name"], columns=["id"]) for r in records]
    calls = [map(int, line.split()) for line in (lake.folder / "calls").read_text().splitlines()]
    return {first for first, rows in calls if rows > SAMPLE_ROWS} & set(pd.concat(frames)["id"])
