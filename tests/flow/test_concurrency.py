"""Jobs that share GPUs take turns: `resources.concurrency_limit` is a global concurrency limit of Prefect."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.sorting import LogSort
from prefect.concurrency.sync import concurrency as occupied
from prefect.settings import PREFECT_API_URL, temporary_settings

from forked import forked, forked_light
from service import client, own_server
from support import GATE, NIGHT, Lake, nightjar, permit, wait_until

pytestmark = pytest.mark.flow


@pytest.mark.system
def test_jobs_that_share_gpus_take_turns(lake: Lake, api_env: dict[str, str]) -> None:
    """A limit that is missing is named; with its one slot taken the job waits until it is free.

    The flow waits before its step that scores, so this is the same on each engine.
    """
    lake.ready(resources__concurrency_limit="shared-gpus")
    words = ["run", str(lake.job_path), "--date", "2026-11-19", "--engine", "local", "--json"]
    told = forked(*words, env=api_env)
    assert told.returncode == 2, told.stderr
    assert "resources.concurrency_limit" in told.stderr
    assert "prefect gcl create shared-gpus --limit 1" in told.stderr
    api = api_env["PREFECT_API_URL"]
    with client(api) as asked:
        asked.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name="shared-gpus", limit=1))
    with temporary_settings({PREFECT_API_URL: api}):
        with occupied("shared-gpus", strict=True):
            waiting = subprocess.Popen(
                [nightjar(), *words],
                env={**os.environ, **api_env},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            kept = (lake.out / "runs" / "2026-11-19" / "waits").glob
            wait_until(lambda: _gone(waiting) or [*kept("*")], 90, "the run waits for a slot")
            assert not _gone(waiting), waiting.communicate()
            wait_until(lambda: _asks_for_a_slot(api), 10, "its log says so")
            assert not lake.revision().exists(), "it does not score while another holds the slot"
            told = forked_light("status", lake.job_path, "2026-11-19").stdout
            assert told.startswith(
                "lake 2026-11-19: waiting, nothing of it was begun\n  why        waiting for a slot of"
            )
            assert f"process {waiting.pid} on" in told
            assert "waiting" in forked_light("runs", lake.job_path).stdout
        out, err = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, err
    assert json.loads(out)["rows_out"] == 8000
    assert not [*lake.out.glob("runs/*/waits/*")], "it waits no more"


def _gone(process: subprocess.Popen[Any]) -> bool:
    return process.poll() is not None


def _asks_for_a_slot(api: str) -> bool:
    """Whether a run has said that it waits for this one."""
    with client(api) as asked:
        logs = asked.read_logs(limit=200, sort=LogSort.TIMESTAMP_DESC)
    said = "waiting for a slot of the concurrency limit shared-gpus; `prefect gcl inspect shared-gpus` shows how many"
    return any(said in log.message for log in logs)


SLOW = """
from gate import Gate

gate = Gate(__LIVE__ + "/permits")


def score(batch):
    gate.wait(len(batch["x"]))
    return {"score": batch["x"]}
"""


@pytest.mark.system
def test_the_slot_of_a_killed_run_is_taken_over(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch, no_leftovers: None
) -> None:
    """Each run has a server of its own. The second one waits; when the lease of the first one ends, it scores."""
    lake = Lake(tmp_path / "killed")
    lake.write_model(SLOW)
    (lake.folder / "gate.py").write_text(GATE)
    (lake.folder / "permits").mkdir()
    lake.ready(name="killed", model__batch_size=1000, resources__concurrency_limit="gpus")
    soon = {
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "0.3",
        "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "1",
    }
    env = {**os.environ, **soon, "PREFECT_HOME": str(own_home), "PREFECT_API_URL": ""}
    with monkeypatch.context() as here:
        here.setenv("PREFECT_HOME", str(own_home))
        with own_server() as api, client(api) as asked:
            asked.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name="gpus", limit=1))
    words = [nightjar(), "run", str(lake.job_path), "--date", NIGHT, "--engine", "local"]
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        wait_until(
            lambda: _counted(
                own_home, "SELECT count(*) FROM events WHERE event = 'prefect.concurrency-limit.acquired'"
            ),
            120,
            "",
        )
        first.kill()
    permit(lake.folder / "permits", 8)
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as second:
        waits = (lake.out / "runs" / NIGHT / "waits").glob
        wait_until(lambda: _gone(second) or [*waits("*")], 120, "the second run waits")
        assert not _gone(second), second.communicate()
        told = forked_light("status", lake.job_path, NIGHT).stdout
        assert "waiting for a slot of the concurrency limit gpus; " in told
        _end_leases(own_home / "concurrency_leases")
        said, _ = second.communicate(timeout=180)
    assert second.returncode == 0, said
    assert lake.snapshot().number == 1


def _counted(home: Path, query: str) -> int:
    with closing(sqlite3.connect(home / "prefect.db")) as kept:
        return int(kept.execute(query).fetchone()[0])


def _end_leases(folder: Path) -> None:
    """As after five minutes."""
    index = json.loads((folder / "expirations.json").read_text())
    assert len(index) == 1
    for name in index:
        lease = json.loads((folder / f"{name}.json").read_text())
        past = "2026-01-01T00:00:00+00:00"
        (folder / f"{name}.json").write_text(json.dumps({**lease, "expiration": past}))
        (folder / "expirations.json").write_text(json.dumps({name: past}))
