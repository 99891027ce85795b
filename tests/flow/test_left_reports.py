"""A night that a command runs leaves its report beside its manifest, however it ends, and says where it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_artifacts import page

from forked import Done, forked
from support import NIGHT, Lake

LOCAL = ("--date", NIGHT, "--engine", "local")


def ran(lake: Lake, env: dict[str, str]) -> Done:
    return forked("run", lake.job_path, *LOCAL, env=env)


def left(lake: Lake) -> Path:
    return lake.revision() / "report.html"


def test_a_published_night_leaves_its_report(lake: Lake, api_env: dict[str, str]) -> None:
    """It is named in the closing lines and linked from the summary; a run with nothing to do changes nothing of it."""
    lake.ready(name="left-published")
    done = ran(lake, api_env)
    assert done.returncode == 0, done.stderr
    assert f"  report     {left(lake)}\n" in done.stdout
    assert '<h2 id="verdict">Published as #1</h2>' in left(lake).read_text()
    summary = page(api_env["PREFECT_API_URL"], f"left-published {NIGHT}").artifacts["left-published-summary"]
    assert f"(file://{left(lake)})" in str(summary.data)
    before = left(lake).read_text()
    again = ran(lake, api_env)
    assert "nothing was scored" in again.stdout
    assert left(lake).read_text() == before


@pytest.mark.parametrize(("on_fail", "code", "verdict"), [("block", 1, "Refused by gate"), ("ask", 5, "Asks a person")])
def test_a_night_that_is_not_published_leaves_its_report(
    lake: Lake, api_env: dict[str, str], on_fail: str, code: int, verdict: str
) -> None:
    name = f"left-{on_fail}"
    lake.ready(name=name, checks=[{"column": "score", "max": 100, "on_fail": on_fail}])
    done = ran(lake, api_env)
    assert done.returncode == code, done.stderr
    assert str(left(lake)) in done.stderr + done.stdout
    assert verdict in left(lake).read_text()
    summary = page(api_env["PREFECT_API_URL"], f"{name} {NIGHT}").artifacts[f"{name}-summary"]
    assert f"(file://{left(lake)})" in str(summary.data)


def test_an_answer_makes_the_report_anew(lake: Lake, api_env: dict[str, str]) -> None:
    lake.ready(name="left-answered", checks=[{"column": "score", "max": 100, "on_fail": "ask"}])
    asked = ran(lake, api_env)
    assert asked.returncode == 5
    printed = re.search(rf"approve \S+ {NIGHT} --question ([0-9a-f]{{8}})\n", asked.stderr)
    assert printed, asked.stderr
    answer = ["approve", lake.job_path, NIGHT, "--by", "ana", "--note", "a sale", "--question"]
    other = forked(*answer, "00000000", env=api_env)
    assert other.returncode == 2
    assert f"the question is now {printed[1]}, not 00000000; look at it" in other.stderr
    done = forked(*answer, printed[1], env=api_env)
    assert done.returncode == 0, done.stderr
    text = left(lake).read_text()
    assert "Published as #1" in text
    assert "approved by ana" in text


def test_a_run_that_failed_leaves_its_report(lake: Lake, api_env: dict[str, str]) -> None:
    """With the shard that has no result, why, and the command that repeats the run."""
    lake.ready(name="left-failed")
    broken = lake.folder / "data" / "part-01.parquet"
    broken.write_bytes(broken.read_bytes()[:-500])
    done = ran(lake, api_env)
    assert done.returncode == 1
    text = left(lake).read_text()
    assert "part-01.parquet" in text
    assert "not a readable Parquet file" in text
    assert f"nightjar run {lake.job_path} --run-id {NIGHT} --engine local" in text


def test_a_report_that_cannot_be_written_does_not_fail_the_night(lake: Lake, api_env: dict[str, str]) -> None:
    """A folder lies where it would be."""
    lake.ready(name="left-out")
    left(lake).mkdir(parents=True)
    done = ran(lake, api_env)
    assert done.returncode == 0, done.stderr
    assert "published as #1" in done.stdout
    assert "\n  report" not in done.stdout
