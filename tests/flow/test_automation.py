"""The project's prefect.yaml, deployed as its first lines say: a night is published, and what follows it starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.objects import FlowRun
from prefect.events.schemas.events import ReceivedEvent

from forked import forked
from service import client, deployments, ended, events, runs_of, service, start_run
from support import FLIGHTS, ROOT, Lake, conforms, wait_until

NIGHT = "2026-11-19"
MONTHS = ("flights-2013-01.parquet", "flights-2013-07.parquet")
ROWS = sum(pq.read_metadata(FLIGHTS / "data" / name).num_rows for name in MONTHS)


@dataclass
class Deployed:
    """A copy of the checkout from which everything was deployed."""

    checkout: Path
    api: str


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Iterator[Deployed]:
    """`prefect deploy --all`, and a worker of the pool."""
    checkout = tmp_path_factory.mktemp("checkout")
    (checkout / "deployments").mkdir()
    shutil.copy(ROOT / "deployments" / "prefect.yaml", checkout / "deployments")
    flights = checkout / "examples" / "flights"
    flights.mkdir(parents=True)
    for name in ("job.yaml", "after.py"):
        shutil.copy(FLIGHTS / name, flights)
    (flights / "models").symlink_to(FLIGHTS / "models")
    (flights / "data").mkdir()
    for name in MONTHS:
        shutil.copy(FLIGHTS / "data" / name, flights / "data")
    # A shell sets PWD when it changes the folder.
    env = {**os.environ, **api_env, "PWD": str(checkout)}
    prefect = str(Path(sys.executable).parent / "prefect")
    pool = [prefect, "work-pool", "create", "nightjar", "--type", "process"]
    subprocess.run(pool, env=env, check=True, capture_output=True)
    words = [prefect, "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml"]
    done = subprocess.run(words, cwd=checkout, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    with service(checkout, "worker", "start", "--pool", "nightjar", env=api_env, program="prefect"):
        yield Deployed(checkout, api_env["PREFECT_API_URL"])
    with client(api_env["PREFECT_API_URL"]) as asked:
        for each in deployments(api_env["PREFECT_API_URL"], "flight-delays", "late-by-carrier").values():
            asked.delete_deployment(each.id)


def told_by(api: str, run: FlowRun) -> list[ReceivedEvent]:
    """What this very run told of a publication."""
    found = events(api, "nightjar.run.published")
    return [event for event in found if f"prefect.flow-run.{run.id}" in {related.id for related in event.related}]


def test_prefect_deploy_accepts_the_prefect_yaml(deployed: Deployed) -> None:
    """The same deployment as `nightjar deploy` makes, but for where the job file is looked up."""
    found = deployments(deployed.api, "flight-delays", "late-by-carrier")
    assert set(found) == {"flight-delays", "late-by-carrier"}
    night = found["flight-delays"]
    assert night.entrypoint == "nightjar.flows.nightly_flow.nightly"
    assert night.parameters == {"job": "examples/flights/job.yaml"}
    (schedule,) = night.schedules
    assert (schedule.schedule.cron, schedule.schedule.timezone) == ("0 2 * * *", "America/New_York")
    assert night.global_concurrency_limit is not None
    assert night.global_concurrency_limit.limit == 1


def test_a_published_night_starts_what_follows_it(deployed: Deployed) -> None:
    """The event carries what the follower needs, and the automation starts it with the run's name.

    Events are sent from the flow's process, so they are the same on each engine.
    """
    found = deployments(deployed.api, "flight-delays", "late-by-carrier")
    run = ended(deployed.api, start_run(deployed.api, found["flight-delays"], date=NIGHT, engine="local"))
    assert run.state is not None
    assert run.state.is_completed(), run.state.message
    wait_until(lambda: told_by(deployed.api, run), 30, "the event is there")
    told = told_by(deployed.api, run)
    assert len(told) == 1
    assert told[0].resource.id == "nightjar.job.flight-delays"
    assert told[0].payload["run_id"] == NIGHT
    assert told[0].payload["rows_in"] == told[0].payload["rows_out"] == ROWS
    assert Path(told[0].payload["data"]).is_dir()
    wait_until(lambda: runs_of(deployed.api, found["late-by-carrier"]), 60, "the follower is started")
    (after,) = runs_of(deployed.api, found["late-by-carrier"])
    assert after.parameters == {"job": "examples/flights/job.yaml", "run_id": NIGHT}
    followed = ended(deployed.api, after)
    assert followed.state is not None
    assert followed.state.is_completed(), followed.state.message
    with client(deployed.api) as asked:
        shown = asked.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["late-by-carrier"])))
    counts = {line["carrier"]: line["late"] for line in json.loads(str(shown[0].data))}
    assert counts
    assert sum(counts.values()) < ROWS


def test_a_night_published_before_is_no_news(deployed: Deployed) -> None:
    """Running a published night again tells nobody; on another engine it is published, too."""
    night = deployments(deployed.api, "flight-delays")["flight-delays"]
    run = ended(deployed.api, start_run(deployed.api, night, date=NIGHT))
    assert run.state is not None
    assert str(run.state.message).startswith(f"nothing to score: published before, as #1: {ROWS:,} of {ROWS:,} rows, ")
    assert told_by(deployed.api, run) == []


IN_THE_WAY = """
from pathlib import Path


def score(batch):
    Path(__LIVE__, "table").write_text("no table")
    return {"score": batch["x"] * 2}
"""
"""A model that makes the place of the job's table unusable, after the command has looked at it."""


def test_a_night_that_a_table_does_not_show_is_published_and_the_command_says_what_is_behind(
    tmp_path: Path, api_env: dict[str, str]
) -> None:
    """With an exit code of its own; `status` tells it, until `nightjar tables` has committed it."""
    lake = Lake(tmp_path)
    lake.write_model(IN_THE_WAY)
    lake.ready(name="behind", output__tables=[{"delta": "table"}])
    job, table = str(lake.job_path), str(lake.folder / "table")
    done = forked("run", job, "--date", NIGHT, "--engine", "local", "--json", env=api_env)
    assert done.returncode == 4, done.stderr
    assert f"readers of the files see it, but {table} does not show it: " in done.stderr
    (result,) = map(json.loads, done.stdout.splitlines())
    conforms(result, "run")
    assert (result["state"], result["publication"]) == ("published", 1)
    assert result["tables_behind"][0].startswith(f"{table} does not show it: ")
    backfilled = forked("backfill", job, "--from", NIGHT, "--to", NIGHT, "--engine", "local", env=api_env)
    assert backfilled.returncode == 4, backfilled.stderr
    status = json.loads(forked("status", job, NIGHT, "--json").stdout)
    conforms(status, "status")
    assert (status["state"], status["tables"][0]["publication"]) == ("published", 0)
    assert status["commands"]["commit"].endswith(f"nightjar tables {job}")
    told = forked("status", job, NIGHT).stdout
    assert f"  table      {table}: " in told
    assert f"nightjar tables {job}" in told
    api = api_env["PREFECT_API_URL"]

    def told() -> list[ReceivedEvent]:
        return [event for event in events(api, "nightjar.run.published") if event.resource.id == "nightjar.job.behind"]

    wait_until(told, 30, "the event is there")
    assert len(told()) == 1
    (lake.folder / "table").unlink()
    assert json.loads(forked("status", job, NIGHT, "--json").stdout)["tables"][0]["publication"] == 0
    shown = json.loads(forked("tables", job, "--json").stdout)
    conforms(shown, "tables")
    assert shown == [{"kind": "delta", "uri": table, "publication": 1, "problem": "", "lacks": []}]
    assert "commit" not in json.loads(forked("status", job, NIGHT, "--json").stdout)["commands"]


AS_ENGINE = """
import logging, sys
from prefect.flow_engine import run_flow
from nightjar.flows.nightly_flow import nightly

named = {"flow_run_name": "churn", "flow_name": "nightly"}
logger = logging.LoggerAdapter(logging.getLogger("prefect.flow_runs"), named)
try:
    run_flow(nightly, parameters={"job": sys.argv[1]}, error_logger=logger)
except Exception as error:
    print("raised", type(error).__name__)
"""
"""Runs the flow as the process of a deployment's run does."""


def test_a_job_that_cannot_begin_is_one_sentence_in_the_log(tmp_path: Path, api_env: dict[str, str]) -> None:
    """Its file can be read and its code cannot."""
    lake = Lake(tmp_path)
    lake.write_model("def score(batch:\n")
    lake.ready(name="churn")
    env = {**os.environ, **api_env}
    ended = subprocess.run(
        [sys.executable, "-c", AS_ENGINE, str(lake.job_path)], env=env, capture_output=True, text=True, timeout=120
    )
    # As the page has it: the sentence, where Prefect would show its own frames.
    assert ended.stdout == "raised JobError\n"
    assert re.search(r"ERROR .* JobError: model.uses: .*model.py, line 1", ended.stderr), ended.stderr
    assert "Traceback" not in ended.stderr
