"""One night says the same seconds, rows per second and rows wherever it is looked at."""

from __future__ import annotations

import html
import json
import os
import re
from pathlib import Path

import httpx

from commands import DATE
from forked import forked
from nightjar.flows.pages.wording import duration
from support import Lake


def test_each_figure_of_a_night_is_the_same_everywhere(lake: Lake, api_env: dict[str, str]) -> None:
    """In the terminal, `runs`, `status`, `history`, on Prefect's page and in the report."""
    lake.ready()
    ended = forked("run", lake.job_path, "--date", DATE, "--engine", "local", env=api_env)
    assert ended.returncode == 0, ended.stderr
    terminal = ended.stdout
    said = {name: json.loads(forked(*words, "--json", env=api_env).stdout) for name, words in {
        "runs": ("runs", lake.job_path),
        "history": ("history", lake.job_path),
        "status": ("status", lake.job_path, DATE),
    }.items()}  # fmt: skip
    night = said["runs"]["runs"][0] if isinstance(said["runs"], dict) else said["runs"][0]
    old = said["history"]["nights"][0] if isinstance(said["history"], dict) else said["history"][0]
    assert night["seconds"] == old["seconds"] == said["status"]["seconds"] > 0
    took = duration(night["seconds"])
    assert f"published as #1 in {took}" in terminal
    speed = re.search(r"speed +(([\d,]+) rows/s \(8,000 rows in [\d.]+ \w+\))", terminal)
    assert speed, terminal
    assert f"{speed[2]} rows/s" in said["status"]["summary"]
    found = httpx.post(
        f"{api_env['PREFECT_API_URL']}/artifacts/filter",
        json={"artifacts": {"key": {"any_": ["lake-summary"]}}},
        auth=tuple(os.environ["PREFECT_API_AUTH_STRING"].split(":", 1)),
    ).json()
    page = next(each["data"] for each in found if str(lake.out) in each["data"])
    assert page.splitlines()[0].endswith(f" in {took}")
    assert f"| speed | {speed[1]}, on " in page
    written = re.search(r"^  report +(\S+)$", terminal, re.MULTILINE)
    assert written, terminal
    report = html.unescape(Path(written[1]).read_text())
    assert f"<dt>took</dt><dd>{took}</dd>" in report
    assert f"{speed[2]} rows/s" in report
