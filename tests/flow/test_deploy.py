"""Job files become deployments: created, updated, paused when gone; all of a folder or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.settings import PREFECT_API_URL, temporary_settings

from forked import forked
from nightjar.flows.serving.deploy import as_deployment
from nightjar.inference.job.file import load_job
from service import client, deployments
from support import Lake, conforms


@pytest.fixture
def jobs(tmp_path: Path, api_env: dict[str, str]) -> Path:
    """A folder with two job files, one of them scheduled, and a YAML that is none; nothing is deployed of them yet."""
    api = api_env["PREFECT_API_URL"]
    with client(api) as asked:
        for each in deployments(api, "deploy-a", "deploy-b", "deploy-c").values():
            asked.delete_deployment(each.id)
    berlin = {"schedule": {"cron": "30 1 * * *", "timezone": "Europe/Berlin"}}
    for name, changes in (("deploy-a", berlin), ("deploy-b", {})):
        lake = Lake(tmp_path / name).ready(name=name, **changes)
        assert lake.job_path.exists()
    (tmp_path / "notes.yaml").write_text("remember: this\n")
    return tmp_path


def deploy(folder: Path, env: dict[str, str], *options: str) -> list[dict[str, Any]]:
    done = forked("deploy", folder, "--pool", "tests", "--json", *options, env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    conforms(found, "deploy")
    return list(found)


def test_one_deployment_per_job_file(jobs: Path, api_env: dict[str, str]) -> None:
    """Schedule and time zone, pool, parameters with their descriptions, one run at a time."""
    assert [(d["name"], d["what"]) for d in deploy(jobs, api_env)] == [("deploy-a", "created"), ("deploy-b", "created")]
    found = deployments(api_env["PREFECT_API_URL"], "deploy-a", "deploy-b")
    first, second = found["deploy-a"], found["deploy-b"]
    (schedule,) = first.schedules
    assert (schedule.schedule.cron, schedule.schedule.timezone) == ("30 1 * * *", "Europe/Berlin")
    assert schedule.active
    assert second.schedules == []
    assert first.work_pool_name == "tests"
    assert first.parameters == {"job": str(jobs / "deploy-a" / "job.yaml")}
    assert first.global_concurrency_limit is not None
    assert first.global_concurrency_limit.limit == 1
    assert first.concurrency_options is not None
    assert first.concurrency_options.collision_strategy == "ENQUEUE"
    assert set(first.tags) == {"nightjar", "deploy-a"}
    form = first.parameter_openapi_schema
    assert form is not None
    assert {"job", "date", "limit", "fresh", "publish"} <= set(form["properties"])
    assert all(field["description"] for field in form["properties"].values())
    assert first.enforce_parameter_schema


def test_an_engine_that_was_asked_for_is_the_deployments(jobs: Path, api_env: dict[str, str]) -> None:
    """Its runs score there without being told; asked for no more, it is gone; a wrong name deploys nothing."""
    wrong = forked("deploy", jobs, "--pool", "tests", "--engine", "lokal", env=api_env)
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "nightjar: --engine 'lokal': choose one of ray, local; did you mean 'local'?\n",
    )
    api = api_env["PREFECT_API_URL"]
    assert deployments(api, "deploy-a") == {}
    deploy(jobs, api_env, "--engine", "local")
    job = str(jobs / "deploy-a" / "job.yaml")
    assert deployments(api, "deploy-a")["deploy-a"].parameters == {"job": job, "engine": "local"}
    deploy(jobs, api_env)
    assert deployments(api, "deploy-a")["deploy-a"].parameters == {"job": job}


def test_a_deployment_that_is_served_leaves_its_pool(jobs: Path, api_env: dict[str, str]) -> None:
    """Its runs would wait there for a worker, and `serve` would start none of them."""
    deploy(jobs, api_env)
    api, job = api_env["PREFECT_API_URL"], str(jobs / "deploy-a" / "job.yaml")
    before = deployments(api, "deploy-a")["deploy-a"]
    with temporary_settings({PREFECT_API_URL: api}):
        as_deployment(job, load_job(job), before).apply()
    after = deployments(api, "deploy-a")["deploy-a"]
    assert after.id == before.id
    assert (before.work_pool_name, before.work_queue_name) == ("tests", "default")
    assert (after.work_pool_name, after.work_queue_name) == (None, None)
    deploy(jobs, api_env)
    assert deployments(api, "deploy-a")["deploy-a"].work_pool_name == "tests"


def test_deploying_again_changes_only_what_changed(jobs: Path, api_env: dict[str, str]) -> None:
    """Same ids, the new schedule once, and a deployment that a person paused stays paused."""
    api = api_env["PREFECT_API_URL"]
    deploy(jobs, api_env)
    before = deployments(api, "deploy-a", "deploy-b")
    with client(api) as asked:
        asked.pause_deployment(before["deploy-b"].id)
    Lake(jobs / "deploy-a").write_job(name="deploy-a", schedule={"cron": "0 3 * * *"})
    assert [d["what"] for d in deploy(jobs, api_env)] == ["updated", "updated"]
    after = deployments(api, "deploy-a", "deploy-b")
    assert {name: each.id for name, each in after.items()} == {name: each.id for name, each in before.items()}
    (schedule,) = after["deploy-a"].schedules
    assert (schedule.schedule.cron, schedule.schedule.timezone) == ("0 3 * * *", "UTC")
    assert after["deploy-b"].paused
    Lake(jobs / "deploy-a").write_job(name="deploy-a")
    deploy(jobs, api_env)
    assert deployments(api, "deploy-a")["deploy-a"].schedules == [], "a schedule that was removed must not fire"


def test_what_is_gone_is_paused_and_woken_when_it_is_back(jobs: Path, api_env: dict[str, str]) -> None:
    api = api_env["PREFECT_API_URL"]
    deploy(jobs, api_env)
    hidden = (jobs / "deploy-a").rename(jobs.parent / f"{jobs.name}-away")
    assert [(d["name"], d["what"]) for d in deploy(jobs, api_env)] == [("deploy-b", "updated"), ("deploy-a", "paused")]
    found = deployments(api, "deploy-a", "deploy-b")
    assert (found["deploy-a"].paused, found["deploy-b"].paused) == (True, False)
    hidden.rename(jobs / "deploy-a")
    deploy(jobs, api_env)
    assert not deployments(api, "deploy-a")["deploy-a"].paused


def test_a_job_whose_file_is_another_jobs_now_is_paused(jobs: Path, api_env: dict[str, str]) -> None:
    """The same path with another name in it: what was deployed from there would score somebody else's night."""
    deploy(jobs, api_env)
    Lake(jobs / "deploy-a").write_job(name="deploy-c")
    found = {each["name"]: each["what"] for each in deploy(jobs, api_env)}
    assert found == {"deploy-c": "created", "deploy-b": "updated", "deploy-a": "paused"}
    assert deployments(api_env["PREFECT_API_URL"], "deploy-a")["deploy-a"].paused


def test_what_a_person_paused_stays_paused(jobs: Path, api_env: dict[str, str]) -> None:
    """A schedule switched off on its page; and a deployment whose job file went away and came back."""
    api = api_env["PREFECT_API_URL"]
    deploy(jobs, api_env)
    before = deployments(api, "deploy-a", "deploy-b")
    with client(api) as asked:
        asked.update_deployment_schedule(before["deploy-a"].id, before["deploy-a"].schedules[0].id, active=False)
        asked.pause_deployment(before["deploy-b"].id)
    (jobs / "deploy-b").rename(jobs.parent / f"{jobs.name}-b-away")
    deploy(jobs, api_env)
    (jobs.parent / f"{jobs.name}-b-away").rename(jobs / "deploy-b")
    deploy(jobs, api_env)
    after = deployments(api, "deploy-a", "deploy-b")
    assert [schedule.active for schedule in after["deploy-a"].schedules] == [False]
    assert after["deploy-b"].paused


def test_the_last_job_file_gone_pauses_its_deployment(jobs: Path, api_env: dict[str, str]) -> None:
    deploy(jobs, api_env)
    for name in ("deploy-a", "deploy-b"):
        (jobs / name / "job.yaml").unlink()
    assert [d["what"] for d in deploy(jobs, api_env)] == ["paused", "paused"]


@pytest.mark.parametrize(("old", "new"), [("name: deploy-a", "name: ["), ("input:", "inputt:")])
def test_a_damaged_job_file_is_an_error_and_not_gone(jobs: Path, api_env: dict[str, str], old: str, new: str) -> None:
    """Pausing the night of somebody who mistyped a key would be found out in the morning."""
    path = (jobs / "deploy-a" / "job.yaml").rename(jobs / "churn.yaml")
    deploy(jobs, api_env)
    path.write_text(path.read_text().replace(old, new))
    done = forked("deploy", jobs, "--pool", "tests", env=api_env)
    assert (done.returncode, f"{path}: " in done.stderr) == (2, True), done.stderr
    assert not deployments(api_env["PREFECT_API_URL"], "deploy-a")["deploy-a"].paused


def test_a_name_that_is_taken_is_not_taken_over(jobs: Path, api_env: dict[str, str], tmp_path: Path) -> None:
    """Another team's folder with a job of the same name."""
    deploy(jobs, api_env)
    other = tmp_path.parent / f"{tmp_path.name}-other"
    Lake(other).ready(name="deploy-a")
    done = forked("deploy", other, "--pool", "tests", env=api_env)
    assert done.returncode == 2
    assert f"deploy-a is deployed from {jobs}/deploy-a/job.yaml already; give this job another name" in done.stderr


def test_a_job_deployed_with_a_relative_path_is_the_same_one(
    jobs: Path, api_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `prefect deploy` from the checkout; from another folder that path is nobody's."""
    api, job = api_env["PREFECT_API_URL"], str(jobs / "deploy-a" / "job.yaml")
    deploy(jobs, api_env)
    relative = DeploymentUpdate(parameters={"job": "deploy-a/job.yaml"})
    with client(api) as asked:
        asked.update_deployment(deployments(api, "deploy-a")["deploy-a"].id, relative)
    monkeypatch.chdir(jobs)
    assert [d["what"] for d in deploy(jobs, api_env)] == ["updated", "updated"]
    assert deployments(api, "deploy-a")["deploy-a"].parameters == {"job": job}


def test_a_wrong_job_file_deploys_nothing(jobs: Path, api_env: dict[str, str]) -> None:
    """Every fault of the folder in one go: wrong key, same name, same output."""
    Lake(jobs / "x-new").ready(name="deploy-x")
    Lake(jobs / "y-new").ready(name="deploy-y", retry__attempts="three")
    Lake(jobs / "z-new").ready(name="deploy-x", output__uri=str(jobs / "x-new" / "out"))
    done = forked("deploy", jobs, env=api_env)
    assert done.returncode == 2
    assert "retry.attempts: must be a whole number, not 'three'" in done.stderr
    assert "z-new/job.yaml: name: deploy-x belongs to" in done.stderr
    assert "z-new/job.yaml: output.uri: " in done.stderr
    assert "Traceback" not in done.stderr
    assert deployments(api_env["PREFECT_API_URL"], "deploy-x", "deploy-y") == {}


def test_without_an_api_or_a_job_it_says_what_to_do(tmp_path: Path, api_env: dict[str, str]) -> None:
    done = forked("deploy", tmp_path, env={**api_env, "PREFECT_API_URL": ""})
    assert done.returncode == 2
    assert "PREFECT_API_URL is not set" in done.stderr
    assert "nightjar serve" in done.stderr
    done = forked("deploy", tmp_path, env=api_env)
    assert (done.returncode, f"{tmp_path}: no job file in it" in done.stderr) == (2, True), done.stderr
