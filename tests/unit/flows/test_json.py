"""`--json`: every command prints the JSON form of a record, in snake case, as the schema in docs/json/ says."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import json_schemas as schemas
from nightjar.flows.cli.main import app, main
from nightjar.flows.cli.options import emit
from nightjar.flows.finished_run import FinishedRun, Launched
from nightjar.flows.pages import standing
from nightjar.flows.pages.advice import typed
from nightjar.flows.pages.ending import closing_text, run_result, summary
from nightjar.flows.pages.escaping import markdown
from nightjar.flows.pages.reportfiles import made
from nightjar.flows.pages.standing import status_text
from nightjar.inference.errors import GateFailed, NightjarError
from support import NIGHT, ROOT, Lake, conforms

DOCS = ROOT / "docs" / "json"


@pytest.mark.parametrize("command", schemas.REPORTS)
def test_the_schema_in_the_docs_is_the_records(command: str) -> None:
    same = (DOCS / f"{command}.json").read_text() == schemas.schema(command)
    assert same, "run `make pages`"


def test_every_command_with_json_has_a_schema() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    with_json = {name for name, each in commands.items() if any("--json" in param.opts for param in each.params)}
    assert with_json | {"error"} == set(schemas.REPORTS) == {path.stem for path in DOCS.iterdir()}


@pytest.mark.parametrize("command", schemas.REPORTS)
def test_keys_are_snake_case(command: str) -> None:
    assert [key for key in keys(json.loads(schemas.schema(command))) if not re.fullmatch("[a-z][a-z0-9_]*", key)] == []


def keys(schema: Any) -> Iterator[str]:
    """Every key of an object that the schema describes."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {}) if isinstance(schema.get("properties"), dict) else ()
        for part in schema.values():
            yield from keys(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from keys(part)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two published nights, one of them with a quarantined row; a third one that was given up."""
    lake = Lake(tmp_path_factory.mktemp("json"))
    lake.write_model(
        "def score(batch):\n    print('scoring')\n    if 1234 in batch['x']:\n        raise ValueError('1234')\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    lake.ready(retry__max_quarantined=0.01)
    for date in ("2026-11-18", NIGHT):
        lake.run(engine="local", date=date)
    lake.write_job(retry__max_quarantined=0.0)
    with pytest.raises(NightjarError):
        lake.run(engine="local", date="2026-11-20", fresh=True)
    return lake


def said(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """What `nightjar … --json` prints, in this process."""
    capsys.readouterr()
    app([*map(str, words), "--json"], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


def test_looking_at_a_run_says_what_the_schema_says(job: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    for date, state in ((NIGHT, "published"), ("2026-11-20", "failed"), ("2026-11-21", "unknown")):
        status, show = (said(capsys, word, job.job_path, date) for word in ("status", "show"))
        conforms(status, "status")
        conforms(show, "show")
        assert status["state"] == show["state"] == state
        assert {key: show[key] for key in status} == status
    shown = said(capsys, "show", job.job_path, NIGHT)
    assert [(each["cause"], each["row"], each["attempt"]) for each in shown["incidents"]] == [
        ("ValueError", 1234, None)
    ]
    listed = said(capsys, "runs", job.job_path)
    conforms(listed, "runs")
    assert [each["run_id"] for each in listed] == ["2026-11-20", NIGHT, "2026-11-18"]


def test_what_readers_see_is_said_as_the_schemas_say(job: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    conforms(said(capsys, "files", job.job_path), "files")
    conforms(json.loads((job.out / "latest" / "files.json").read_text()), "files")
    conforms(said(capsys, "publications", job.job_path), "publications")
    conforms(said(capsys, "rollback", job.job_path, "--dry-run"), "rollback")
    conforms(said(capsys, "unpublish", job.job_path, "2026-11-18"), "unpublish")
    conforms(said(capsys, "republish", job.job_path, "2026-11-18"), "republish")
    conforms(said(capsys, "tables", job.job_path), "tables")


def test_looking_ahead_says_what_the_schemas_say(job: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    planned = said(capsys, "plan", job.job_path, "--date", "2026-11-22")
    conforms(planned, "plan")
    # What the model prints in this process is not in it.
    conforms(said(capsys, "check", job.job_path, "--engine", "local"), "check")


def test_a_finished_run_is_what_the_schema_says(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with the profile of its columns."""
    ran = lake.ready(name="finished", profile="all").run(engine="local")
    done = Launched(FinishedRun(lake.request(), ran.scored, ran.verdict, ran.publication))
    emit(run_result(done), one_line=True)
    found = json.loads(capsys.readouterr().out)
    conforms(found, "run")
    conforms(found, "retry")
    assert (found["rows_in"], found["publication"]) == (8000, 1)
    assert found["metrics"]["profile"]["x"]["numbers"]["mean"] == 3999.5
    assert found["engine"]["rows_per_s"] > 0


def test_what_the_summary_names_to_take_a_run_back_takes_it_back(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """That run and no other, also where a later night was published before somebody types it."""
    lake.ready()
    nights, commands = ["2026-11-18", "2026-11-19", "2026-11-20"], []
    for date in nights:
        ran = lake.run(date=date, engine="local")
        finished = FinishedRun(lake.request(date=date), ran.scored, ran.verdict, ran.publication)
        text = closing_text(Launched(finished))
        (line,) = (line for line in text.splitlines() if line.startswith("  take back "))
        commands.append(shlex.split(line.removeprefix("  take back "))[1:])
    for words in commands:
        nights.pop(0)
        assert list(said(capsys, *words)["runs"]) == nights


def test_a_run_beside_the_night_says_which_run_stands_for_the_date_and_what_makes_way(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the summary, on the pages and in `status`; the command does what they say."""
    request = lake.ready().request(run_id="repair", date=NIGHT)
    for _ in range(2):
        ran = lake.run(run_id="repair", date=NIGHT, engine="local")
        done = Launched(FinishedRun(request, ran.scored, ran.verdict, ran.publication))
        pages = (
            closing_text(done),
            summary(done.run, "")[1],
            made(request)[1],
        )
        assert not [page for page in pages if "not this run" in page], "no other run is there"
        assert said(capsys, "status", lake.job_path, "repair")["instead"] == ""
    lake.run(engine="local")
    means = f"latest/, dates/ and tables show the run '{NIGHT}' for its date, not this run"
    status = said(capsys, "status", lake.job_path, "repair")
    assert (status["shown"], status["instead"]) == (1, NIGHT)
    assert f"  but        {means}\n" in status_text(standing.status(request))
    unpublish = f"unpublish {lake.job_path} {NIGHT}"
    assert status["commands"]["make way"].endswith(unpublish)
    text = closing_text(done)
    assert f"  note       published, but {means}; `{typed('nightjar')} {unpublish}` makes way for it\n" in text
    page = summary(done.run, "")[1]
    assert f"| note | {markdown(f'published, but {means}')}" in page
    report = html.unescape(made(request)[1])
    assert f"Readers see r1 of this run, but {means}." in report
    assert f'<dt>make way</dt><dd><code class="command">nightjar {unpublish}</code></dd>' in report
    assert said(capsys, "status", lake.job_path, NIGHT)["instead"] == ""

    def named() -> list[str]:
        places = (lake.out / "latest" / "files.json", lake.out / "dates" / NIGHT / "files.json")
        return [said(capsys, "files", lake.job_path)["run"], *(json.loads(path.read_text())["run"] for path in places)]

    assert named() == [NIGHT] * 3
    said(capsys, *shlex.split(status["commands"]["make way"])[1:])
    assert named() == ["repair"] * 3
    assert "instead" in status
    assert "make way" not in said(capsys, "status", lake.job_path, "repair")["commands"]


def test_the_summary_says_which_command_shows_why_rows_are_in_the_quarantine(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.write_model(
        "def score(batch):\n"
        "    if set(batch['x']) & {7, 8}:\n"
        "        raise ValueError('no score for\\nsuch x')\n"
        "    return {'score': batch['x']}\n"
    )
    ran = lake.ready().run(engine="local")
    text = closing_text(Launched(FinishedRun(lake.request(), ran.scored, ran.verdict, ran.publication)))
    assert "/quarantine\n" in text
    (line,) = (line for line in text.splitlines() if line.startswith("  look "))
    _, *words = shlex.split(line.removeprefix("  look "))
    rows = [(each["row"], each["cause"]) for each in said(capsys, *words)["incidents"]]
    assert rows == [(7, "ValueError"), (8, "ValueError")]


@pytest.mark.parametrize("words", [["status", "nowhere.yaml", "--json"], ["status", "--bogus", "--json"]])
def test_an_error_is_what_the_schema_says(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["nightjar", *words])
    with pytest.raises(SystemExit):
        main()
    found = json.loads(capsys.readouterr().out)
    conforms(found, "error")
    assert found["state"] == "failed"


def test_a_check_that_only_warns_publishes_and_says_so_wherever_the_run_is_shown(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the same check blocks without `on_fail: warn`."""
    check = {"column": "score", "max": 5}
    lake.ready(checks=[{**check, "on_fail": "warn"}])
    ran = lake.run(engine="local")
    warning = (
        "score.max: The greatest 'score' is 15998, above checks[0].max = 5. Mend the input or the model, or raise "
        "checks[0].max. Row "
    )
    request = lake.request()
    finished = FinishedRun(request, ran.scored, ran.verdict, ran.publication)
    done = Launched(finished)
    (said_of_it,) = run_result(done).warnings
    text = closing_text(done)
    assert said_of_it.startswith(warning)
    assert f"  gates      2 of 3 passed, 1 warned\n  warning    {said_of_it}\n" in text
    state, page = summary(done.run, "")
    assert state == "published as #1, 1 gate warned"
    assert "| gates | 2 of 3 passed, 1 warned |\n| warning | score.max: " in page
    status = said(capsys, "status", lake.job_path, NIGHT)
    assert (status["state"], status["warnings"]) == ("published", [said_of_it])
    app(["status", str(lake.job_path), NIGHT], standalone_mode=False)
    assert f"\n  warning    {said_of_it}\n" in capsys.readouterr().out
    lake.write_job(checks=[check])
    with pytest.raises(GateFailed):
        lake.run(engine="local", date="2026-11-20")
