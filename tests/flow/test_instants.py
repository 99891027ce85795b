"""A job that is due several times a day has a run for each time: for readers, gates, commands, and by its schedule."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from forked import forked
from nightjar.inference.output import publications
from nightjar.inference.storage.lake import LakeStorage
from service import client, deployments, runs_of, service
from support import Lake, leaves_nothing, wait_until

DAY = "2026-11-19"
HOURS = [f"{DAY}T{hour:02d}" for hour in (4, 5, 6)]
LOCAL = ("--engine", "local")


def snapshot(lake: Lake) -> publications.Snapshot:
    return publications.newest(LakeStorage(), str(lake.out))


def shown_in(place: Path) -> str:
    """The run that a folder for readers leads to; its link and its list say the same."""
    found = json.loads((place / "files.json").read_text())
    assert found["date"] in (place / "data").resolve().parts
    return str(found["run"])


def gates(lake: Lake, run: str) -> dict[str, str]:
    """What each gate said of a run."""
    (manifest,) = lake.revision(1, run).glob("manifest-*.json")
    return {gate["name"]: gate["sentence"] for gate in json.loads(manifest.read_text())["gates"]}


@pytest.fixture
def hourly(tmp_path: Path) -> Lake:
    """A lake with a folder of input for each of three hours; those of the first two are alike."""
    lake = Lake(tmp_path)
    for number, hour in enumerate(HOURS):
        lake.write_file(f"{hour[:10].replace('-', '/')}/{hour[11:]}/part.parquet", 5000 * (number // 2), 1000)
    lake.write_model()
    checks = [{"drift": "x", "on_fail": "warn"}, {"rows": {"against": "last", "change": 0.1}}]
    schedule = {"cron": "0 * * * *", "timezone": "Europe/Berlin"}
    lake.write_job(name="hourly", input__uri="data/{date:%Y/%m/%d/%H}/", schedule=schedule, checks=checks)
    return lake


def test_three_hours_of_an_hourly_job(hourly: Lake, api_env: dict[str, str]) -> None:
    """Each hour has a run, a place and a last one before it; an hour that is scored late rewinds nobody."""

    def done(*words: str | Path) -> Any:
        ended = forked(words[0], hourly.job_path, *words[1:], "--json", env=api_env)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    for hour in (HOURS[0], HOURS[2]):
        assert done("run", "--date", hour, *LOCAL)["run_id"] == hour
    found = done("backfill", "--from", HOURS[0], "--to", HOURS[2], *LOCAL)
    assert [(night["date"], night["state"]) for night in found] == [
        (HOURS[0], "skipped"),
        (HOURS[1], "published"),
        (HOURS[2], "skipped"),
    ]
    assert snapshot(hourly).nights() == {hour: hour for hour in HOURS}
    assert snapshot(hourly).latest() == HOURS[2]
    assert shown_in(hourly.out / "latest") == HOURS[2]
    assert sorted(path.name for path in (hourly.out / "dates").iterdir()) == HOURS
    assert [shown_in(hourly.out / "dates" / hour) for hour in HOURS] == HOURS
    assert f'"hourly-{HOURS[1]}"' in (hourly.out / "dates" / HOURS[1] / "view.sql").read_text()

    assert "nothing to compare with" in gates(hourly, HOURS[0])["x.drift"]
    # The hour between them was scored after the last one, and the one before it is its last one.
    for hour in HOURS[1:]:
        said = gates(hourly, hour)
        assert f"{HOURS[0]}, the last published night" in said["x.drift"]
        assert HOURS[0] in said["rows.last"]

    assert [line["date"] for line in done("history")] == HOURS[::-1]
    assert [line["run_id"] for line in done("runs")] == HOURS[::-1]
    assert done("status", "--date", HOURS[1])["state"] == "published"
    compared = done("diff", HOURS[0], HOURS[1])
    assert (compared["before"], compared["now"]) == (HOURS[0], HOURS[1])
    taken = done("unpublish", "--date", HOURS[2])
    assert taken["latest"] == HOURS[1]
    assert shown_in(hourly.out / "latest") == HOURS[1]


def test_a_day_of_an_hourly_job_is_no_run_and_its_instants_are_told(hourly: Lake, api_env: dict[str, str]) -> None:
    for words in (("run", "--date", DAY), ("files", "--date", DAY), ("status", DAY)):
        ended = forked(words[0], hourly.job_path, *words[1:], env=api_env)
        assert ended.returncode == 2
        assert f"of that day {DAY}T00, {DAY}T01, …, {DAY}T23" in ended.stderr, ended.stderr


CHANGES = {
    "2026-03-29": ["2026-03-29T00", "2026-03-29T01"],
    "2026-10-25": ["2026-10-24T23", "2026-10-25T00", "2026-10-25T02"],
}
"""The days on which clocks change in Berlin, with the instants of 01:00, 02:00 and 03:00. In spring 02:00 is 03:00. In
autumn 02:00 is due once, although it comes again."""


def test_each_time_that_prefect_schedules_is_one_run(tmp_path: Path, api_env: dict[str, str]) -> None:
    """Prefect's own scheduler makes the flow runs of the days on which clocks change, twice, and `serve` runs them.

    Those that wait until another run of the job has ended keep their instants.
    """
    lake = Lake(tmp_path / "jobs" / "changing")
    schedule = {"cron": "0 1-3 * * *", "timezone": "Europe/Berlin"}
    lake.ready(name="changing", schedule=schedule)
    api, times = api_env["PREFECT_API_URL"], [time for day in CHANGES.values() for time in day]
    with (
        leaves_nothing() as mark,
        service(tmp_path, "serve", tmp_path / "jobs", "--parallel", "3", *LOCAL, env={**api_env, **mark}) as serving,
        client(api) as asked,
    ):
        wait_until(lambda: serving.says("Ctrl-C ends"), 90, "it serves")
        made = deployments(api, "changing")["changing"]
        for day in [*CHANGES, *CHANGES]:
            midnight = dt.datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Berlin"))
            bounds = {"start_time": midnight, "end_time": midnight.replace(hour=12)}
            given = {"min_runs": 50, **{name: moment.isoformat() for name, moment in bounds.items()}}
            asked.request("POST", "/deployments/{id}/schedule", path_params={"id": made.id}, json=given)

        def past() -> list[Any]:
            return [run for run in runs_of(api, made) if str(run.expected_start_time)[:10] <= "2026-10-25"]

        wait_until(lambda: all(run.state.is_final() for run in past()), 300, "all of them have ended")
        assert [(run.name, run.state.name) for run in past()] == [(f"changing {time}", "Completed") for time in times]
    assert sorted(path.name for path in (lake.out / "runs").iterdir()) == times
    assert {run: entry.revision for run, entry in snapshot(lake).runs.items()} == dict.fromkeys(times, 1)
    assert snapshot(lake).number == len(times)
    words = ("--from", times[0], "--to", times[1], "--json", *LOCAL)
    found = json.loads(forked("backfill", lake.job_path, *words, env=api_env).stdout)
    assert [(night["date"], night["state"]) for night in found] == [(time, "skipped") for time in times[:2]]
