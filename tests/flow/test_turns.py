"""Jobs that share GPUs take turns: `resources.concurrency_limit` is a global concurrency limit of Prefect."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.sorting import LogSort
from prefect.concurrency.sync import concurrency
from prefect.settings import PREFECT_API_URL, temporary_settings

from forked import forked, forked_light
from service import client
from support import Lake, nightjar, wait_until

pytestmark = pytest.mark.flow


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
        with concurrency("shared-gpus", strict=True):
            waiting = subprocess.Popen(
                [nightjar(), *words],
                env={**os.environ, **api_env},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            # The first command has said so in the same log, before it found that there is no such limit.
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
