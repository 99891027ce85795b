"""`nightjar report` and `nightjar history`: what they print, and the pages that they open."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from typer.testing import CliRunner

from nightjar.flows.cli.main import app
from nightjar.flows.cli.options import out
from nightjar.flows.pages.reportpage import history_page
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError
from nightjar.inference.history.run_status import Metric, RunLine, Standing, list_runs
from nightjar.inference.run import waiting
from support import Lake, command, conforms

NASTY = "<script>alert(1)</script>"


def said(*words: object) -> str:
    done = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def nights(lake: Lake) -> Lake:
    """Two published nights, and one that failed."""
    lake.engine = LOCAL
    lake.ready(checks=[{"column": "score", "max": 1e9}])
    for day in ("18", "19"):
        lake.run(date=f"2026-11-{day}")
    lake.write_model("def score(batch):\n    raise ValueError('never')\n")
    with pytest.raises(JobError):
        lake.run(date="2026-11-20")
    return lake


def test_history_has_a_line_for_each_night_the_latest_first(nights: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(said("history", nights.job_path, "--json"))
    conforms(found, "history")
    assert [(each["date"], each["state"], each["publication"]) for each in found] == [
        ("2026-11-20", "rejected", 0),
        ("2026-11-19", "published", 2),
        ("2026-11-18", "published", 1),
    ]
    assert found[1]["metric"] == {"name": "score.max", "value": 2 * 7999}
    assert [each["rows"] for each in found[1:]] == [8000, 8000]
    monkeypatch.setattr(out, "width", 160)
    lines = said("history", nights.job_path, "--lines", 2).splitlines()
    assert any("published r1" in line and "r1 (#2)" in line for line in lines)
    assert not any("2026-11-18" in line for line in lines)


def test_runs_with_other_names_hide_no_night(nights: Lake) -> None:
    nights.write_model()
    for name in ("try-1", "2try"):
        nights.run(run_id=name, publish=False)
    for words in (("runs", nights.job_path, "--lines", 3), ("history", nights.job_path, "--lines", 3)):
        found = said(*words)
        assert "2026-11-18" in found
        assert "try-1" not in found
        assert "2try" not in found
    names = [each["run_id"] for each in json.loads(said("runs", nights.job_path, "--json"))]
    assert names == ["2026-11-20", "2026-11-19", "2026-11-18", "try-1", "2try"]


@pytest.mark.parametrize("words", [("unpublish", "2026-11-18"), ("republish", "2026-11-19")], ids=" ".join)
def test_dates_show_what_readers_see_where_the_number_of_a_deleted_publication_is_given_again(
    nights: Lake, words: tuple[str, str]
) -> None:
    """As the error of a damaged publication says: delete it."""
    assert {path.parent.name for path in (nights.out / "dates").glob("*/files.json")} == {"2026-11-18", "2026-11-19"}
    (nights.out / "publications" / "00000002.json").unlink()
    said(words[0], nights.job_path, words[1])
    assert nights.snapshot().number == 2
    shown = {path.parent.name for path in (nights.out / "dates").glob("*/files.json")}
    assert shown == set(nights.snapshot().nights())


def test_report_writes_the_page_and_says_where(nights: Lake) -> None:
    found = json.loads(said("report", nights.job_path, "2026-11-19", "--json"))
    conforms(found, "report")
    page = nights.revision() / "report.html"
    assert (found["state"], found["page"]) == ("published", str(page))
    page.unlink()
    assert said("report", nights.job_path, "2026-11-19").strip() == str(page)
    assert page.exists()


@pytest.mark.parametrize("words", [("report", "2026-11-19"), ("history",)], ids=" ".join)
def test_open_gives_the_page_to_the_browser(nights: Lake, words: tuple[str, ...]) -> None:
    name, *run = words
    done = command(name, nights.job_path, *run, "--open", env={"BROWSER": "echo %s"})
    assert done.returncode == 0, done.stderr
    (address,) = re.findall(r"file://\S+", done.stdout)
    page = Path(unquote(urlparse(address).path)).read_text()
    assert "2026-11-19" in page
    assert page.startswith("<!doctype html>")


def a_night(date: str, rows: int, metric: Metric | None, state: str = "published") -> RunLine:
    return RunLine(
        run_id=NASTY,
        date=date,
        standing=Standing(state),
        revision=1,
        shown=1,
        publication=rows,
        began="",
        seconds=3.0,
        rows=rows,
        metric=metric,
    )


def test_the_page_of_all_nights_has_plots_and_escapes_what_it_is_given() -> None:
    nights = [a_night(f"2026-11-{day}", day, Metric(NASTY, day / 10)) for day in (20, 19, 18)]
    page = history_page(NASTY, NASTY, nights)
    assert page == history_page(NASTY, NASTY, nights)
    assert "<script" not in page
    assert page.count("<svg") == 4
    assert page.count("<tr>") > 3


def test_a_metric_that_is_too_large_to_draw_leaves_the_page_of_all_nights_whole() -> None:
    nights = [a_night(f"2026-11-{day}", day, Metric(NASTY, 1.7e308)) for day in (20, 19, 18)]
    page = history_page(NASTY, NASTY, nights)
    assert page.count("<svg") == 3
    assert page.count("<figure") == 4
    assert "3 of them not drawn: NaN, infinite or too large" in page


def test_a_single_night_has_nothing_to_compare_with() -> None:
    assert "nothing to compare" in history_page("job", "/out", [a_night("2026-11-20", 0, None, "failed")])


def test_a_night_that_never_began_has_the_date_of_its_name(nights: Lake) -> None:
    """And no revision."""
    night, request = "2026-12-24", nights.request(date="2026-12-24")
    waiting.keep_failure(request, JobError("there is no input"), "discover")
    lines = {each.run_id: each for each in list_runs(request)}
    assert (lines[night].date, lines[night].revision) == (night, 0)
    assert f"{night} r0" not in said("history", nights.job_path)
