"""The rest of the command line: help, completion, runs, show, retry, doctor."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from commands import DATE, UNUSED, OnS3, Partial, Watched
from forked import forked, forked_light
from nightjar.flows.cli import tables
from nightjar.flows.pages.advice import as_typed
from nightjar.flows.prefect_api.ownserver import go_past_proxies
from nightjar.inference.history.replay import Replayed
from nightjar.inference.history.run_tables import Incident, ShardLine
from support import Lake, command, conforms, nightjar

LOCAL = ("--engine", "local")


def test_help_fits_a_screen_and_shows_examples() -> None:
    """24 lines would be nice; a little more than 40 is what a terminal has today."""
    shown = command("--help", env={"COLUMNS": "80"}).stdout
    assert len(shown.splitlines()) <= 42
    assert "nightjar run job.yaml --date 2026-11-19" in shown
    assert "..." not in shown.partition("Commands:")[2], "no description is cut off"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_names_the_command(shell: str) -> None:
    env = {"SHELL": f"/bin/{shell}", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = command("--show-completion", shell, env=env)
    assert done.returncode == 0, done.stderr
    assert "_NIGHTJAR_COMPLETE" in done.stdout


def test_completion_completes() -> None:
    """The program answers the script with the words that may follow."""
    asked = {"_NIGHTJAR_COMPLETE": "complete_bash", "COMP_WORDS": "nightjar r", "COMP_CWORD": "1"}
    words = subprocess.run([nightjar()], env={**os.environ, **asked}, capture_output=True, text=True).stdout.split()
    assert {"run", "runs", "retry", "reject", "replay", "report", "rollback", "republish"} == set(words)


@pytest.mark.parametrize(("encoding", "arrow"), [("ascii", r"\u2192"), ("utf8", "→")])
def test_a_terminal_that_lacks_a_character_gets_it_spelled_out(tmp_path: Path, encoding: str, arrow: str) -> None:
    """A night that is published must not end in a traceback for the arrow of what to do next."""
    lake = Lake(tmp_path / "a→b").ready()
    done = command("runs", lake.job_path, env={"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, "")
    assert arrow in done.stdout


LOOPBACK = "127.0.0.1,localhost"


@pytest.mark.parametrize(
    ("lower", "upper", "then"),
    [
        ("", "", (LOOPBACK, LOOPBACK)),
        ("", "corp", (f"corp,{LOOPBACK}", f"corp,{LOOPBACK}")),
        ("corp", "", (f"corp,{LOOPBACK}", f"corp,{LOOPBACK}")),
        ("localhost, corp", LOOPBACK, ("localhost, corp,127.0.0.1", LOOPBACK)),
        ("*", "", ("*", "")),
    ],
)
def test_what_needs_no_proxy_is_added_to_and_kept(
    monkeypatch: pytest.MonkeyPatch, lower: str, upper: str, then: tuple[str, str]
) -> None:
    """Whichever spelling the user took, and once: a second server adds nothing."""
    monkeypatch.setenv("no_proxy", lower)
    monkeypatch.setenv("NO_PROXY", upper)
    for _ in range(2):
        go_past_proxies()
        assert (os.environ["no_proxy"], os.environ["NO_PROXY"]) == then


def test_without_ray_to_score_on_none_is_imported(partial: Partial) -> None:
    """By the local engine; where nothing is left to score: test_flights.py."""
    assert UNUSED.isdisjoint(partial.ended.imported)


def test_runs_lists_them_and_what_readers_see(on_s3: OnS3, partial: Partial) -> None:
    (published,) = json.loads(forked_light("runs", on_s3.job, "--json", env=on_s3.env).stdout)
    assert published["run_id"] == DATE
    assert (published["state"], published["revision"], published["shown"]) == ("published", 1, 1)
    assert published["rows_out"] == on_s3.said["rows_out"]
    assert (published["publication"], published["metric"]["name"], published["cause"]) == (1, "auroc", "")
    assert published["seconds"] > 0
    (failed,) = json.loads(forked_light("runs", partial.lake.job_path, "--json").stdout)
    assert (failed["state"], failed["standing"]) == ("failed", "failed at score")
    assert failed["cause"].startswith("1 of 8 shards has no result; the first is part-02.parquet")
    assert f"nightjar run {partial.lake.job_path} --run-id {DATE}" in failed["commands"]["repeat"]
    assert (failed["shown"], failed["done_shards"], failed["shards"]) == (0, 7, 8)
    shown = forked_light("runs", partial.lake.job_path, env={"COLUMNS": "120"}).stdout
    assert "7 of 8" in shown
    assert "nothing" in shown


def test_runs_of_a_job_that_never_ran(tmp_path: Path) -> None:
    lake = Lake(tmp_path).ready()
    assert json.loads(forked_light("runs", lake.job_path, "--json").stdout) == []


def test_show_has_the_failed_shard_first_and_why(partial: Partial) -> None:
    found = json.loads(forked_light("show", partial.lake.job_path, DATE, "--json").stdout)
    first = found["shards_shown"][0]
    assert first["status"] == "missing"
    assert "part-02.parquet" in first["input"]
    assert "not a readable Parquet file" in first["why"]
    assert found["incidents"][0]["cause"] == "InputCorrupt"
    shown = forked_light("show", partial.lake.job_path, DATE, "--lines", "3", env={"COLUMNS": "200"}).stdout
    assert "part-02.parquet" in shown
    assert "Shards (3 of 8)" in shown
    assert shown.count("committed") <= 3


def test_show_of_an_unknown_run_says_what_there_is(eventful: Watched) -> None:
    shown = forked_light("show", eventful.lake.job_path, "2020-01-01").stdout
    assert "2020-01-01: no such run is there; published runs: 2026-11-19" in shown


def test_retry_scores_what_is_missing_and_publishes(tmp_path: Path, api_env: dict[str, str]) -> None:
    """One shard at a time if asked; the night is published when the last one is there."""
    lake = Lake(tmp_path).ready(name="retried")
    files = [lake.folder / "data" / f"part-0{index}.parquet" for index in (1, 2)]
    good = [path.read_bytes() for path in files]
    for path, data in zip(files, good, strict=True):
        path.write_bytes(data[:100] + bytes(300) + data[400:])
    assert forked("run", lake.job_path, "--date", DATE, *LOCAL, env=api_env).returncode == 1
    for path, data in zip(files, good, strict=True):
        path.write_bytes(data)
    # The mended files are new content, so they are new shards.
    before = _shards(lake)
    old = [line["shard"] for line in before if line["status"] == "missing"]
    missing = [shard for shard in lake.planned().ids() if shard not in {line["shard"] for line in before}]
    assert (len(old), len(missing)) == (2, 4), "nobody knew how many rows the damaged files have"
    assert lake.snapshot().number == 0
    rest = forked("retry", lake.job_path, DATE, *LOCAL, env=api_env)
    assert rest.returncode == 0, rest.stderr
    # What failed before it was mended stays told, and asks for nothing any more.
    looked = json.loads(forked_light("status", lake.job_path, "--date", DATE, "--json").stdout)
    assert (looked["state"], looked["failed_shards"], looked["failures"]) == ("published", 0, [])
    assert lake.published()["id"].tolist() == list(range(8000))


def _shards(lake: Lake) -> list[dict[str, object]]:
    """What `show` lists now."""
    listed: list[dict[str, object]] = json.loads(
        forked_light("show", lake.job_path, DATE, "--lines", "100", "--json").stdout
    )["shards_shown"]
    return listed


def test_retry_of_a_run_that_never_was(tmp_path: Path) -> None:
    lake = Lake(tmp_path).ready()
    told = forked("retry", lake.job_path, "2020-01-01", *LOCAL)
    assert (told.returncode, told.stderr) == (
        2,
        f"nightjar: there is no run '2020-01-01' of lake yet; "
        f"`{as_typed(f'nightjar runs {lake.job_path}')}` lists them\n",
    )


@pytest.mark.long
def test_retry_of_a_limited_run_stays_limited(tmp_path: Path, api_env: dict[str, str]) -> None:
    """Whoever continues it under its name: it is never published."""
    lake = Lake(tmp_path).ready(name="tasted")
    assert forked("run", lake.job_path, "--date", DATE, "--limit", "1000", *LOCAL, env=api_env).returncode == 0
    again = forked("retry", lake.job_path, f"{DATE}-limit-1000", "--json", *LOCAL, env=api_env)
    assert again.returncode == 0, again.stderr
    assert (json.loads(again.stdout)["state"], json.loads(again.stdout)["rows_in"]) == ("validated", 1000)
    assert lake.snapshot().number == 0


SHARD = ShardLine(
    input="[bold]part-000001-of-000128.snappy.parquet[0:2]",
    status="committed",
    failed_attempts=2,
    why="",
    rows=1_000_000,
    quarantined=12,
    retries_in_place=0,
    seconds=7200.25,
    worker="",
    shard="e9ad4ee0febefa28cc86",
    printed_last=(),
)
INCIDENT = Incident(
    cause="E[/x]",
    what_was_done=":key:",
    message="list[int] [bold]\nin two lines",
    file="[/data/x]",
    row=1,
    attempt=None,
    shard="s",
    replay=f"nightjar replay {'job' * 60}.yaml",
)


def test_a_list_of_shards_fits_a_small_terminal() -> None:
    """80 columns: the name and the id take several lines, figures one, nothing is cut; brackets are no markup."""
    console = Console(width=80, file=io.StringIO())
    console.print(tables.shards([SHARD, replace(SHARD, status="missing", rows=None)], 1000))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Shards (2 of 1,000)" in shown
    assert re.search(r"committed +2 +1,000,000 +12 +7200\.25 +e9ad", shown)
    assert re.search(r"missing +2 +unknown +12 +7200\.25 +e9ad", shown)
    assert "[bold]" in shown
    assert len(re.findall(r"e9ad4ee0feb *\n.* efa28cc86 *\n", shown)) == 2


def test_a_list_of_shards_leaves_out_what_is_said_of_none() -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(tables.shards([replace(SHARD, input="a.parquet[0:1]", quarantined=0, seconds=2.5)], 1))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "quarantined" not in shown
    assert re.search(r"a\.parquet\[0:1\] +committed +2 +1,000,000 +2\.5 +e9ad4ee0febefa28cc86 *\n", shown)


def test_what_went_wrong_is_said_in_lines_that_can_be_copied() -> None:
    """As it is, one thing a line, and the command that repeats it."""
    assert tables.incidents([INCIDENT], 1, 20).splitlines() == [
        "Failed attempts and quarantined rows",
        "  E[/x]: list[int] [bold] in two lines",
        "    where    [/data/x], row 1, shard s",
        "    then     :key:",
        f"    again    {as_typed(INCIDENT.replay)}",
    ]
    bare = replace(INCIDENT, file="", row=None, replay="", what_was_done="")
    assert tables.incidents([bare], 2, 1).splitlines()[0].endswith("quarantined rows (1 of 2; --lines shows more)")
    assert tables.incidents([bare], 2, 20).splitlines()[0].endswith("quarantined rows (1 of 2)")
    assert tables.incidents([bare], 1, 1).splitlines()[0].endswith("quarantined rows"), "all that there are"
    assert tables.incidents([bare], 1, 1).splitlines()[2:] == ["    where    shard s"]


def test_a_replayed_row_shows_what_went_in_and_what_came_out() -> None:
    """A value a line; what could be taken for a line of ours is shown, not obeyed."""
    inputs = (("id", "5"), ("long name\nof a column", "'row\\n5'"))
    scored = Replayed(True, "row 5 of a.parquet is scored", inputs, (("score", "10"),))
    assert tables.replayed(scored).splitlines() == [
        "  input  id                     5",
        "  input  long name of a column  'row\\n5'",
        "row 5 of a.parquet is scored",
        "  output score  10",
    ]
    assert tables.replayed(Replayed(False, "row 5 ended its process")) == "row 5 ended its process"


def test_doctor_finds_all_well(api_env: dict[str, str]) -> None:
    done = forked("doctor", "--json", env=api_env)
    found = {line["what"]: line for line in json.loads(done.stdout)}
    conforms(list(found.values()), "doctor")
    assert done.returncode == 0, done.stdout
    assert found.keys() == {"versions", "Prefect", "Ray", "memory", "GPUs"}
    assert api_env["PREFECT_API_URL"] in found["Prefect"]["found"]


def test_doctor_names_what_is_wrong_and_the_remedy(api_env: dict[str, str]) -> None:
    """Each thing on a line of its own; one does not hide another; exit 1."""
    env = {**api_env, "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    done = forked("doctor", "--ray", "127.0.0.1:9", env=env)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    wrong = [line for line in lines if line.startswith("NO ")]
    assert [line.split()[1] for line in wrong] == ["Prefect", "Ray"], done.stdout
    assert "no usable Ray cluster at 127.0.0.1:9" in wrong[1]
    assert "; start that server, or mend PREFECT_API_URL" in wrong[0]
    assert sum("→" in line for line in lines) == 1
    assert "Traceback" not in done.stdout + done.stderr
