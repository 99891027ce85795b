"""What Prefect's API shows of a run, read back with Prefect's own client."""

from __future__ import annotations

import datetime as dt
import html
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import ray
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterName,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.client.schemas.objects import Artifact, FlowRun, TaskRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_API_URL, temporary_settings

from commands import DATE, OnS3, Partial, Watched
from forked import forked
from nightjar.flows.flow_call import Call, handing, keeping_ending
from nightjar.inference.errors import GateFailed
from service import Server, prefect_server, severable
from support import Lake, nightjar, wait_until

nightly = import_module("nightjar.flows.nightly_flow")

TASKS = ["discover", "score", "validate", "publish"]


@dataclass
class Page:
    """A flow run as the API has it: the run, its tasks in order, its artifacts by key."""

    run: FlowRun
    tasks: list[TaskRun]
    artifacts: dict[str, Artifact]

    @property
    def states(self) -> dict[str, str]:
        """The task runs' states by name."""
        return {task.name: str(task.state_name) for task in self.tasks}

    def table(self, key: str) -> list[dict[str, Any]]:
        """The lines of a table artifact."""
        lines: list[dict[str, Any]] = json.loads(str(self.artifacts[key].data))
        return lines


def page(api: str, name: str, *, until: Callable[[Page], object] = lambda _: True) -> Page:
    """The newest flow run of this name, once `until` holds: the server takes a task's states in a little later."""
    pages: list[Page] = []

    def ready() -> bool:
        pages.append(_read(api, name))
        return bool(until(pages[-1]))

    wait_until(ready, 30, f"the page of {name} is complete")
    return pages[-1]


def _read(api: str, name: str) -> Page:
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        named = FlowRunFilter(name=FlowRunFilterName(any_=[name]))
        run = client.read_flow_runs(flow_run_filter=named, sort=FlowRunSort.START_TIME_DESC, limit=1)[0]
        tasks = client.read_task_runs(task_run_filter=TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[run.id])))
        shown = client.read_artifacts(
            artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
        )
    # Of several versions of one key the newest is what the page shows.
    known = sorted((artifact for artifact in shown if artifact.key), key=lambda artifact: str(artifact.updated))
    return Page(
        run,
        sorted(tasks, key=lambda task: str(task.start_time)),
        {str(artifact.key): artifact for artifact in known},
    )


def completed(found: Page) -> bool:
    """Whether all four tasks have come through."""
    return found.states == dict.fromkeys(TASKS, "Completed")


@pytest.fixture(scope="module")
def flights_page(on_s3: OnS3, prefect_api: str) -> Page:
    """The flights example's run, of two months."""
    assert on_s3.ended.returncode == 0, on_s3.ended.stderr
    return page(prefect_api, f"flights-on-s3 {DATE}", until=completed)


@pytest.fixture(scope="module")
def eventful_page(eventful: Watched, prefect_api: str) -> Page:
    """A run with a quarantined row and a lost process."""
    assert eventful.exit_code == 0, eventful.written[-500:]
    return page(prefect_api, f"eventful {DATE}", until=completed)


@pytest.fixture(scope="module")
def partial_page(partial: Partial, prefect_api: str) -> Page:
    """A run that failed with one shard of eight."""
    assert partial.ended.returncode == 1
    return page(prefect_api, f"partial {DATE}", until=lambda found: "score" in found.states)


def test_the_run_shows_four_tasks_that_did_their_work(flights_page: Page) -> None:
    """discover, score, validate, publish, in this order; each Completed, none Cached."""
    assert flights_page.run.state_name == "Completed"
    assert [task.name for task in flights_page.tasks] == TASKS
    assert set(flights_page.states.values()) == {"Completed"}


def test_every_artifact_carries_the_jobs_name(flights_page: Page) -> None:
    """So that each key has a history over nights. Each belongs to a task of the run, or to the run as a whole."""
    kinds = {key: artifact.type for key, artifact in flights_page.artifacts.items()}
    assert kinds == {
        "flights-on-s3-progress": "progress",
        "flights-on-s3-shards": "table",
        "flights-on-s3-retries": "table",
        "flights-on-s3-gates": "table",
        "flights-on-s3-summary": "markdown",
    }
    tasks = {task.id for task in flights_page.tasks}
    whole = {key for key, artifact in flights_page.artifacts.items() if artifact.task_run_id not in tasks}
    assert whole == set(kinds) - {"flights-on-s3-progress"}
    assert all(artifact.flow_run_id == flights_page.run.id for artifact in flights_page.artifacts.values())


def test_the_progress_ends_at_100(eventful: Watched, eventful_page: Page) -> None:
    """With the run's true figures beside it."""
    bar = eventful_page.artifacts["eventful-progress"]
    assert bar.data == 100.0
    assert str(bar.description).startswith(f"{DATE}: 8/8 shards, ")
    assert f", {eventful.failed_attempts}" in str(bar.description)
    assert str(bar.description).endswith(", 1 quarantined")


def test_the_table_of_shards_is_the_runs(eventful: Watched, eventful_page: Page) -> None:
    """One line per shard, the same as in `shards-*.parquet`."""
    table = eventful_page.table("eventful-shards")
    [path] = eventful.lake.revision().glob("shards-*.parquet")
    truth = pq.read_table(path, columns=["shard", "rows_in", "rows_quarantined", "status"]).to_pandas()
    shown = pd.DataFrame(table).merge(truth, on="shard", validate="1:1")
    assert len(shown) == len(truth) == 8
    assert (shown["rows"] == shown["rows_in"]).all()
    assert (shown["quarantined"] == shown["rows_quarantined"]).all()
    assert (shown["rows"].sum(), shown["quarantined"].sum()) == (8000, 1)
    assert "All 8 shards" in str(eventful_page.artifacts["eventful-shards"].description)


def test_the_table_of_retries_says_what_was_done(eventful: Watched, eventful_page: Page) -> None:
    """A lost process: which shard and file, and that it was tried again. A bad row: file, row, error."""
    *lost, bad = eventful_page.table("eventful-retries")
    data = eventful.lake.folder / "data"
    for died in lost:
        assert (died["cause"], Path(died["file"]).parent) == ("ProcessDied", data)
        assert (died["attempt"], died["what was done"]) == (1, "tried again, committed")
    assert (bad["file"], bad["row"], bad["cause"]) == (str(data / "part-00.parquet"), 1234, "ValueError")
    assert (bad["message"], bad["what was done"]) == ("1234 cannot be scored", "quarantined")
    first = eventful_page.table("eventful-shards")[: len(lost)]
    assert {line["shard"] for line in first} == {died["shard"] for died in lost}, "retried shards come first"


def test_the_replay_command_of_a_quarantined_row_replays_it(eventful_page: Page) -> None:
    """As it stands in the table: pasted into a shell it fails on that row with that error."""
    replay = eventful_page.table("eventful-retries")[-1]["replay"]
    assert replay.startswith("nightjar replay ")
    assert replay.endswith(" --row 1234")
    words = [nightjar(), *replay.split()[1:]]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1234 cannot be scored" in ended.stdout + ended.stderr
    assert "  input  x     1234\n" in ended.stdout


def test_a_run_without_incidents_has_an_empty_table_of_retries(flights_page: Page) -> None:
    """And says so."""
    assert flights_page.table("flights-on-s3-retries") == []
    assert "none is an empty table" in str(flights_page.artifacts["flights-on-s3-retries"].description)


def test_the_gates_are_those_of_the_manifest(on_s3: OnS3, flights_page: Page) -> None:
    """Each gate with what was observed, its limit, and a sentence."""
    [path] = (name for name in on_s3.names() if "/r1/manifest-" in name)
    truth = json.loads(on_s3.storage.read(path))["gates"]
    shown = flights_page.table("flights-on-s3-gates")
    assert [(gate["gate"], gate["observed"], gate["limit"]) for gate in shown] == [
        (gate["name"], gate["observed"], gate["limit"]) for gate in truth
    ]
    assert {gate["passed"] for gate in shown} == {"yes"}


def test_the_summary_names_figures_and_files_that_exist(flights_page: Page, on_s3: OnS3) -> None:
    """Rows, gates, metrics, and the paths of output, shard table and manifest."""
    text = str(flights_page.artifacts["flights-on-s3-summary"].data)
    assert f"# flights-on-s3 {DATE} r1: published as " in text
    lines = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| "))
    cells = {line[0]: line[1] for line in lines if len(line) == 2}
    rows = f"{on_s3.said['rows_in']:,}"
    assert cells["rows"] == f"{rows} in = {rows} out + 0 quarantined, over {on_s3.said['shards']} shards"
    assert cells["gates"] == "6 of 6 passed"
    assert cells["auroc"].startswith("0.6")
    assert cells["speed"].endswith(", on cpu")
    for name in ("data", "shards", "manifest"):
        assert any(each.startswith(cells[name].strip("`")) for each in on_s3.names()), name


def test_a_failed_run_says_which_shards(partial: Partial, partial_page: Page) -> None:
    """The run's state is Failed with the sentence the terminal shows; the shard without result comes first."""
    assert partial_page.run.state is not None
    assert partial_page.run.state_name == "Failed"
    message = str(partial_page.run.state.message)
    assert message.startswith("1 of 8 shards has no result; the first is part-02.parquet")
    assert f"nightjar: {message}" in partial.ended.stderr
    table = partial_page.table("partial-shards")
    assert [line["status"] for line in table] == ["missing"] + ["committed"] * 7
    assert table[0]["input"].startswith("part-02.parquet")
    assert "not a readable Parquet file" in table[0]["why"]
    [incident] = partial_page.table("partial-retries")
    assert (incident["shard"], incident["cause"]) == (table[0]["shard"], "InputCorrupt")


def test_a_failed_run_stops_where_it_failed(partial_page: Page) -> None:
    """The score task failed; nothing was validated or published; the progress stays below 100."""
    assert partial_page.states["score"] == "Failed"
    assert set(partial_page.states) == {"discover", "score"}
    assert partial_page.artifacts["partial-progress"].data == 87.5


def test_the_page_of_a_failed_run_says_what_to_do(partial: Partial, partial_page: Page) -> None:
    """Why nothing was published, how far it came, and the command, which repeats it from anywhere."""
    text = str(partial_page.artifacts["partial-summary"].data)
    assert f"# partial {DATE}: failed" in text
    assert "1 of 8 shards has no result; the first is part-02.parquet" in text
    assert "so far | 7/8 shards" in text
    [repeat] = re.findall(r"`(nightjar run .*)`", text)
    assert shlex.split(repeat)[2:] == [str(partial.lake.job_path), "--run-id", DATE, "--engine", "local"]
    assert f"`nightjar show {partial.lake.job_path} {DATE}`" in text


GATED = '''
import time
from pathlib import Path

SCORED = 0


def score(batch):
    """Twice x; after four shards waits until there is a file `open`, and says so."""
    global SCORED
    if SCORED == 4:
        Path(__LIVE__, "waiting").touch()
    while SCORED == 4 and not Path(__LIVE__, "open").exists():
        time.sleep(0.05)
    SCORED += len(batch["x"]) == 1000
    return {"score": batch["x"] * 2}
'''


@pytest.fixture(scope="module")
def server_of_our_own(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[Server]:
    """A server with its own home."""
    home = tmp_path_factory.mktemp("own")
    shutil.copy(empty_database, home / "prefect.db")
    with prefect_server(home) as started:
        yield started


def gated(folder: Path, name: str) -> Lake:
    """A lake whose model waits when it has scored four of eight shards."""
    lake = Lake(folder)
    lake.write_model(GATED)
    return lake.ready(name=name, model__batch_size=1000)


def start_gated(
    folder: Path, name: str, url: str, *options: str, retries: int = 1
) -> tuple[Lake, subprocess.Popen[str]]:
    """A run that has scored four of eight shards and waits at its gate.

    retries: how often Prefect's client repeats a request; fewer than usual, since a test waits for each.
    """
    lake = gated(folder, name)
    env = {**os.environ, "PREFECT_API_URL": url, "PREFECT_CLIENT_MAX_RETRIES": str(retries)}
    line = [nightjar(), "run", str(lake.job_path), "--date", DATE, "--json", *options]
    process = subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    waiting = folder / "waiting"
    wait_until(lambda: waiting.exists() or process.poll() is not None, 120, "four shards are scored")
    assert process.poll() is None, process.communicate()
    return lake, process


def receipts(lake: Lake) -> int:
    """How many shards are committed."""
    return sum(record["t"] == "receipt" for record in lake.records())


def steps(lake: Lake) -> list[str]:
    """The tasks that have opened the ledger, in order."""
    return [record["writer"]["task"] for record in lake.records() if record["t"] == "opened"]


@pytest.mark.long
def test_an_api_that_hangs_does_not_stop_scoring_and_is_caught_up_with(
    tmp_path: Path, server_of_our_own: Server
) -> None:
    """While the server is stopped the run scores and goes on to validate; when it is back, its page is completed."""
    lake, process = start_gated(tmp_path, "hung", server_of_our_own.url)
    try:
        server_of_our_own.process.send_signal(signal.SIGSTOP)
        (tmp_path / "open").touch()
        wait_until(lambda: receipts(lake) == 8, 60, "the other shards are committed meanwhile")
        wait_until(lambda: "validate" in steps(lake), 60, "the run goes on without the bar of the score task")
    finally:
        server_of_our_own.process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["unreported"] == ""
    found = page(server_of_our_own.url, f"hung {DATE}", until=completed)
    assert found.run.state_name == "Completed"
    assert found.artifacts["hung-progress"].data == 100.0
    assert len(found.table("hung-shards")) == 8
    assert {f"hung-{kind}" for kind in ("retries", "gates", "summary")} <= set(found.artifacts)


TELLS = """
import sys
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from nightjar.flows.prefect_api.ownserver import PrefectApi
from nightjar.flows.prefect_api.server import reporting_to

api = PrefectApi(sys.argv[1])
with reporting_to(api, verbose=False):
    for number in range(10):
        emit_event("nightjar.test", {"prefect.resource.id": "nightjar.test"})
        if number == 0:
            EventsWorker.instance().wait_until_empty()
            print("told", flush=True)
            sys.stdin.readline()
"""
"""A command whose API takes its first event, and perhaps no other."""


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.long)])
def test_an_api_that_is_gone_costs_its_page_and_nothing_else(tmp_path: Path, prefect_api: str, engine: str) -> None:
    """Gone in mid-run and never back: the run is published, exits 0, and says that Prefect was not told.

    Nor does a command wait for it when its work is done: Prefect alone would try for 7 s for each event.
    """
    missed = gated(tmp_path / "nights", "orphans")
    nights = ("backfill", missed.job_path, "--from", DATE, "--to", DATE, "--engine", "local", "--json")
    with severable(prefect_api) as (url, cut), ThreadPoolExecutor(1) as pool:
        telling = subprocess.Popen([sys.executable, "-c", TELLS, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        backfill = pool.submit(forked, *nights, env={"PREFECT_API_URL": url, "PREFECT_CLIENT_MAX_RETRIES": "1"})
        lake, process = start_gated(tmp_path / "run", "orphan", url, "--engine", engine, retries=0)
        waiting = missed.folder / "waiting"
        wait_until(lambda: waiting.exists() or backfill.done(), 60, "the backfill has scored four shards")
        assert not backfill.done(), backfill.result()
        assert telling.stdout is not None
        assert telling.stdout.readline() == b"told\n"
        cut()
        telling.communicate(b"\n", timeout=40)
        assert telling.returncode == 0
        for folder in (lake.folder, missed.folder):
            (folder / "open").touch()
        out, err = process.communicate(timeout=180)
        ended = backfill.result(180)
    assert (process.returncode, err) == (0, "")
    found = json.loads(out)
    assert (found["state"], found["rows_out"]) == ("published", 8000)
    assert found["unreported"]
    assert len(lake.published()) == 8000
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [(night["date"], night["state"]) for night in json.loads(ended.stdout)] == [(DATE, "published")]
    assert len(missed.published()) == 8000


def test_an_api_that_is_away_at_the_start_is_one_sentence(lake: Lake) -> None:
    """Nothing is started, nothing written; the sentence says which address, and what to do."""
    lake.ready()
    ended = forked("run", lake.job_path, "--json", env={"PREFECT_API_URL": "http://127.0.0.1:1/api"})
    assert ended.returncode == 2
    said = json.loads(ended.stdout)["message"]
    assert said.startswith("no Prefect API at http://127.0.0.1:1/api: ")
    assert "start that server, or mend PREFECT_API_URL" in said
    assert not lake.out.exists()


def test_a_night_whose_input_does_not_come_waits_without_a_cluster_then_fails_its_gate(
    lake: Lake, prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what it waits for where it is started, on its page and in its log; no Ray is started for it."""
    lake.write_file("part-00.parquet", 0, 1000)
    lake.write_model()
    lake.write_job(name="late", input__wait={"for": "1s", "until": "_SUCCESS"})
    shown: list[str] = []
    call = Call(show=shown.append)
    connected = ray.is_initialized()  # by a test before this one; a command's process is not
    monkeypatch.setattr(nightly, "is_connected", lambda: False)
    with (
        temporary_settings({PREFECT_API_URL: prefect_api}),
        keeping_ending(call),
        handing(call),
        pytest.raises(GateFailed, match=r"Waited 1s for _SUCCESS in .*/data: not there \(1 file there\)"),
    ):
        nightly.nightly(job=str(lake.job_path), date=dt.date.fromisoformat(DATE))
    assert isinstance(call.ended, GateFailed)
    assert ray.is_initialized() == connected
    left = [path for path in lake.out.rglob("*") if path.is_file()]
    assert left == [], "what it waited for is over, and the output is nobody's"
    waiting = f"waiting for _SUCCESS in {lake.folder}/data (1 file there), at most 1s"
    assert shown == [waiting]  # and no empty text: it never went on
    found = page(prefect_api, f"late {DATE}")
    assert found.run.state_name == "Failed"
    assert found.tasks == []
    assert html.unescape(str(found.artifacts["late-progress"].description)).replace("\\", "") == f"{DATE}: {waiting}"
    (gate,) = found.table("late-gates")
    assert (gate["gate"], gate["passed"], gate["observed"]) == ("input.wait", "NO", "1 file there")
    summary = str(found.artifacts["late-summary"].data)
    assert "Waited 1s" in summary
    assert "Nothing was scored and nothing new was published." in summary
    assert f"nightjar check {lake.job_path} --date {DATE}" in summary
    assert "nightjar show" not in summary, "no command knows of this run"
