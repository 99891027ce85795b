"""Nights that come by themselves: `nightjar serve`, and a worker of a pool; from the form, by schedule, cancelled."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.concurrency import _leases
from prefect.exceptions import PrefectHTTPStatusError
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Pending
from test_artifacts import page

from forked import forked
from nightjar.flows.pages import standing
from nightjar.flows.serving import serve
from nightjar.flows.serving.deploy import as_deployment
from nightjar.flows.serving.serve import _run_until_ended, _start, unless_cancelled
from nightjar.inference.errors import ClusterError
from nightjar.inference.job.file import load_job
from ports import quiet_ports
from service import Service, client, deployments, ended, prefect_server, runs_of, service, start_run, state_of
from support import FREED_S, GATE, NIGHT, Lake, is_true, leaves_nothing, permit, signed_in, wait_until

nightly = import_module("nightjar.flows.nightly_flow")


LOCAL = ("--engine", "local")

GATED = """
from gate import Gate

gate = Gate(__LIVE__ + "/permits")


def score(batch):
    gate.wait(len(batch["x"]))
    return {"score": batch["x"] * 2}
"""
"""Scores as many shards as the test permits."""


def other_day() -> str:
    """A time zone where it is another day than in UTC, so that the wall clock's date would be the wrong night."""
    return "Pacific/Kiritimati" if dt.datetime.now(dt.UTC).hour >= 10 else "Pacific/Pago_Pago"


@dataclass
class Soon:
    """A schedule that fires once, soon: the moment, and the night it is."""

    due: dt.datetime
    schedule: dict[str, str]

    @property
    def night(self) -> str:
        return self.due.date().isoformat()


def soon() -> Soon:
    """Far enough ahead for services to start, which takes half a minute here."""
    due = (dt.datetime.now(ZoneInfo(other_day())) + dt.timedelta(seconds=90)).replace(second=0, microsecond=0)
    cron = f"{due.minute} {due.hour} {due.day} {due.month} *"
    return Soon(due, {"cron": cron, "timezone": other_day()})


@dataclass
class Services:
    """A serving process and a worker, each with jobs of its own."""

    folder: Path
    api: str
    soon: Soon
    serving: Service

    def lake(self, name: str) -> Lake:
        return Lake(self.folder / name)

    def deployment(self, name: str) -> DeploymentResponse:
        wait_until(lambda: deployments(self.api, name), 60, f"the deployment {name} is there")
        return deployments(self.api, name)[name]

    def start(self, name: str, **parameters: object) -> FlowRun:
        """A run of this deployment, from its form."""
        return start_run(self.api, self.deployment(name), **parameters)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Iterator[Services]:
    """`nightjar serve served/`, and `nightjar deploy pooled/` with a worker of the pool; by default without Ray."""
    folder = tmp_path_factory.mktemp("services")
    at = soon()
    for name in ("form", "broken"):
        Lake(folder / "served" / name).ready(name=name)
    Lake(folder / "served" / "soon-served").ready(name="soon-served", schedule=at.schedule)
    gated = Lake(folder / "served" / "gated")
    gated.write_model(GATED)
    (gated.folder / "gate.py").write_text(GATE)
    (gated.folder / "permits").mkdir()
    new_year = {**at.schedule, "cron": "0 0 1 1 *"}
    gated.ready(name="gated", resources={"actors": 2}, model__batch_size=1000, schedule=new_year)
    Lake(folder / "pooled" / "soon-pooled").ready(name="soon-pooled", schedule=at.schedule)
    done = forked("deploy", folder / "pooled", "--pool", "service-tests", *LOCAL, env=api_env)
    assert done.returncode == 0, done.stderr
    worker = ("worker", "start", "--pool", "service-tests", "--limit", "1")
    with (
        service(folder, "serve", folder / "served", "--parallel", "2", *LOCAL, env=api_env) as serving,
        service(folder, *worker, env=api_env, program="prefect"),
    ):
        wait_until(lambda: serving.says("Ctrl-C ends"), 90, "it serves")
        yield Services(folder, api_env["PREFECT_API_URL"], at, serving)


@pytest.fixture(scope="module")
def runs(services: Services) -> dict[str, FlowRun]:
    """Runs from forms, all asked for at once and ended.

    tried: a night that is not to be published. broken: its job file was broken since it was deployed.
    """
    path = services.lake("served/broken").job_path
    path.write_text(path.read_text().replace("shard_rows", "shard_rowz"))
    asked = {
        "tried": services.start("form", date="2026-10-31", publish=False),
        "broken": services.start("broken"),
    }
    return {name: ended(services.api, run) for name, run in asked.items()}


def test_a_run_from_the_form(services: Services, runs: dict[str, FlowRun]) -> None:
    """A changed parameter counts; the run has its name, and its state says what came of it."""
    run = runs["tried"]
    assert run.name == "form 2026-10-31"
    assert run.state is not None
    assert run.state.is_completed(), run.state.message
    assert run.state.message == "validated, not published: 8,000 of 8,000 rows, 8 shards"
    summary = page(services.api, run.name).artifacts["form-summary"]
    assert f"({reports_at(services.serving)}/jobs/form/runs/2026-10-31)" in str(summary.data)
    assert services.lake("served/form").snapshot().number == 0


def test_parameters_are_checked(services: Services) -> None:
    """By the server against the form, and by the flow: a word that is no date ends the run at once."""
    with pytest.raises(PrefectHTTPStatusError, match="0 is less than the minimum of 1"):
        services.start("form", limit=0)
    given = {"job": str(services.lake("served/form").job_path), "date": "yesterday"}
    with temporary_settings({PREFECT_API_URL: services.api}):
        state = run_flow(nightly.nightly, parameters=given, return_type="state")
    assert state.is_failed()
    assert state.message == "--date 'yesterday': write a date as 2026-11-19"


def test_a_failed_run_says_why(runs: dict[str, FlowRun]) -> None:
    """A job file that was broken since: the run's page shows the sentence, not a traceback."""
    run = runs["broken"]
    assert run.state is not None
    assert run.state.is_failed()
    assert run.name == "broken: could not begin", "its deployment's name: its file tells none"
    assert "unknown key 'input.shard_rowz'; did you mean 'input.shard_rows'?" in str(run.state.message)


def test_cancelling_stops_the_pool_and_the_next_run_resumes(services: Services, api_env: dict[str, str]) -> None:
    """Through the API, as the page's button does: actors gone within 10 s, Cancelled, and nothing scored twice.

    On Ray, as a night is by default; the next run goes on without. Without a date the night is that of the job's time
    zone.
    """
    lake = services.lake("served/gated")
    permit(lake.folder / "permits", 2)
    run = services.start("gated", engine="ray")
    assert run.expected_start_time is not None
    night = run.expected_start_time.astimezone(ZoneInfo(other_day())).date().isoformat()
    wait_until(lambda: _receipts(lake, night) == 2, 120, "two shards are committed")
    assert services.serving.descendants("MapWorker")
    with client(services.api) as asked:
        asked.set_flow_run_state(run.id, Cancelling(), force=True)
    freed = is_true(lambda: not services.serving.descendants("MapWorker"), FREED_S)
    assert freed, services.serving.descendants("ray")
    wait_until(lambda: not services.serving.descendants("ray"), 30, "the rest of its Ray is gone, too")
    wait_until(lambda: state_of(services.api, run).is_cancelled(), 30, "the run is Cancelled")
    with client(services.api) as asked:
        assert asked.read_flow_run(run.id).name == f"gated {night}"
    assert _receipts(lake, night) == 2, "it was cancelled in mid-run"
    found = standing.status(lake.request(date=night))
    assert found.standing == "stopped at score"
    assert found.cause.startswith("stopped by SIGTERM, process ")
    permit(lake.folder / "permits", 6)
    again = forked("run", lake.job_path, "--date", night, *LOCAL, env=api_env)
    assert again.returncode == 0, again.stderr
    assert _receipts(lake, night) == 8, "what was committed is not scored again"
    assert lake.published(night)["id"].tolist() == list(range(8000))


def _receipts(lake: Lake, night: str) -> int:
    if not lake.revision(run_id=night).exists():
        return 0
    return sum(record["t"] == "receipt" for record in lake.records(run_id=night))


def test_a_run_goes_on_without_its_slot_in_prefect(
    tmp_path: Path, api_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an absence of the API: Prefect cannot renew the slot's lease, and would end the run in mid-step."""
    monkeypatch.setattr(_leases, "_RENEWAL_FRACTION", 0.001)  # three times a second
    lake, api = Lake(tmp_path), api_env["PREFECT_API_URL"]
    lake.write_model(GATED)
    (lake.folder / "gate.py").write_text(GATE)
    (lake.folder / "permits").mkdir()
    lake.ready(name="slotless", model__batch_size=1000)
    job = str(lake.job_path)

    def lose_slot() -> None:
        """When a shard is committed. Most others wait until nobody renews the lease any more."""
        permit(lake.folder / "permits", 2)
        try:
            wait_until(lambda: _receipts(lake, NIGHT) > 0, 60, "a shard is committed")
            with client(api) as asked:
                lease = asked.read_flow_run(run.id).state.state_details.deployment_concurrency_lease_id
                asked.release_concurrency_slots_with_lease(lease)
            renewing = [each for each in threading.enumerate() if each.name == f"concurrency-lease-renewal-{lease}"]
            assert renewing
            wait_until(lambda: not any(each.is_alive() for each in renewing), 60, "nobody renews the lease")
        finally:
            permit(lake.folder / "permits", 6)

    with temporary_settings({PREFECT_API_URL: api}), ThreadPoolExecutor(1) as beside:
        as_deployment(job, load_job(job), None, engine="local").apply()
        run = start_run(api, deployments(api, "slotless")["slotless"], date=NIGHT)
        with client(api) as asked:
            asked.set_flow_run_state(run.id, Pending())
            run = asked.read_flow_run(run.id)
        losing = beside.submit(lose_slot)
        state = run_flow(nightly.nightly, flow_run=run, parameters=run.parameters, return_type="state")
        losing.result()
    assert state.is_completed(), state
    assert state_of(api, run).is_completed()
    assert lake.published(NIGHT)["id"].tolist() == list(range(8000))


def reports_at(serving: Service) -> str:
    """Where it says that the reports are."""
    found = re.search(r"^Reports: (http://127\.0\.0\.1:\d+)$", serving.log.read_text(), re.MULTILINE)
    assert found, serving.log.read_text()
    return found[1]


def test_serve_starts_its_own_server_and_takes_it_along(tmp_path: Path, own_home: Path) -> None:
    """With nothing configured: it says where its pages are, they answer, and SIGTERM leaves nothing behind.

    Two weeks of nights are made ahead: what falls due while nothing serves is run late only if its run was made.
    """
    in_half_a_day = f"0 {(dt.datetime.now(dt.UTC).hour + 12) % 24} * * *"
    Lake(tmp_path / "own").ready(name="own", schedule={"cron": in_half_a_day})
    with leaves_nothing() as mark, ExitStack() as here:
        env = {**mark, "PREFECT_HOME": str(own_home), "PREFECT_API_URL": "", "NIGHTJAR_REPORTS": "https://nights.test"}
        with service(tmp_path, "serve", tmp_path / "own", env=env) as serving:
            serving.ends_by = signal.SIGTERM  # as systemd and containers do; the others here end by Ctrl-C
            wait_until(lambda: serving.says("Ctrl-C ends"), 120, "it serves")
            found = re.search(r"Pages: (http://127\.0\.0\.1:\d+)/deployments", serving.log.read_text())
            assert found, serving.log.read_text()
            assert "<html" in httpx.get(found[1], follow_redirects=True).text.lower()
            known = json.loads((own_home / "nightjar-passwords.json").read_text())
            here.enter_context(signed_in(known["Pages"]))
            made = deployments(f"{found[1]}/api", "own")
            assert set(made) == {"own"}
            assert not made["own"].paused
            wait_until(lambda: len(runs_of(f"{found[1]}/api", made["own"])) == 14, 60, "fourteen nights are made")
            reports = reports_at(serving)
            jobs = httpx.get(reports, timeout=60, auth=tuple(known["Reports"].split(":"))).text
            assert "no night yet" in jobs
            assert f'href="{found[1]}/deployments/deployment/{made["own"].id}"' in jobs
            assert "](https://nights.test/jobs/own/)" in str(made["own"].description), "as people reach it"
    said = serving.log.read_text()
    assert "nights that Prefect has made ahead are run when something serves again" in said
    assert "`nightjar backfill`" in said
    assert "Traceback" not in said
    assert "ERROR" not in said
    assert "Warning" not in said
    assert serving.process.returncode == 0


@pytest.mark.parametrize("ends_by", [signal.SIGTERM, signal.SIGINT])
def test_what_serves_stops_a_run_that_goes_on_in_order(
    tmp_path: Path, api_env: dict[str, str], ends_by: signal.Signals
) -> None:
    """The run says who stopped it, and Prefect knows its end: its slot is free for the next run."""
    lake, api = Lake(tmp_path / "jobs" / "stopped"), api_env["PREFECT_API_URL"]
    lake.write_model(GATED)
    (lake.folder / "gate.py").write_text(GATE)
    (lake.folder / "permits").mkdir()
    lake.ready(name=f"stopped-{ends_by.name.lower()}", model__batch_size=1000)
    permit(lake.folder / "permits", 2)
    with service(tmp_path, "serve", tmp_path / "jobs", *LOCAL, env=api_env) as serving:
        serving.ends_by = ends_by
        wait_until(lambda: serving.says("Ctrl-C ends"), 120, "it serves")
        name = lake.request().job.name
        run = start_run(api, deployments(api, name)[name], date=NIGHT)
        wait_until(lambda: _receipts(lake, NIGHT) > 0, 120, "a shard is committed")
    assert serving.process.returncode == 0
    found = standing.status(lake.request(date=NIGHT))
    assert found.standing == "stopped at score"
    assert found.cause.startswith("stopped by SIGTERM, process ")
    assert state_of(api, run).is_final()


class Terminated(serve._PatientClient):
    """A client whose process gets SIGTERM when it asks for work."""

    async def request(self, method: Any, path: Any, *args: Any, **kwargs: Any) -> httpx.Response:
        if path == serve._POLL:
            signal.raise_signal(signal.SIGTERM)
        return await super().request(method, path, *args, **kwargs)


def test_sigterm_in_the_middle_of_a_request_ends_it_in_order(
    prefect_api: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever the loop happens to be: no request is shown as failed, as it was when the handler raised an error."""

    monkeypatch.setattr(serve, "_PatientClient", Terminated)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with temporary_settings({PREFECT_API_URL: prefect_api}), pytest.raises(asyncio.CancelledError):
            asyncio.run(_start(serve.PatientRunner(lambda: None, name="ended")))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_another_sigterm_does_not_cut_off_the_end(
    prefect_api: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither while the runner stops, nor when its loop is closed and the servers are ended."""

    class Hurried(serve.PatientRunner):
        async def __aexit__(self, *exc_info: Any) -> None:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
            stopped.append("in order")
            await super().__aexit__(*exc_info)

    stopped: list[str] = []
    monkeypatch.setattr(serve, "_PatientClient", Terminated)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with temporary_settings({PREFECT_API_URL: prefect_api}):
            _run_until_ended(Hurried(lambda: None, name="hurried"), [], print)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped == ["in order"]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("ends", [KeyboardInterrupt, ClusterError("gone")])
def test_sigterm_after_any_other_end_of_serving_is_no_error(ends: Any) -> None:
    """As by Ctrl-C, when a service manager ends the command, too."""

    class Ending:
        async def start(self) -> None:
            signal.signal(
                signal.SIGTERM, lambda *_: asyncio.get_running_loop()
            )  # as the runner's own, bound to its loop
            raise ends

    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(ClusterError) if isinstance(ends, ClusterError) else nullcontext():
            _run_until_ended(Ending(), [], print)  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.long
def test_serving_outlives_an_api_that_is_away(tmp_path: Path, own_home: Path) -> None:
    """Prefect's runner ends itself, and the run that is going on, after three polls without an answer."""
    lake = Lake(tmp_path / "jobs" / "patient").ready(name="patient")
    (port,) = quiet_ports(1)
    api = f"http://127.0.0.1:{port}/api"
    env = {
        "PREFECT_API_URL": api,
        "PREFECT_HOME": str(own_home),
        "PREFECT_CLIENT_MAX_RETRIES": "2",  # a busy server may say 503 once
    }

    with ExitStack() as stack:
        with prefect_server(own_home, port):
            serving = stack.enter_context(service(tmp_path, "serve", tmp_path / "jobs", env=env))
            wait_until(lambda: serving.says("Ctrl-C ends"), 120, "it serves")
        wait_until(lambda: serving.says("Prefect's API is away"), 60, "it says that the API is away")
        # Some ten polls long; `says` sees that it is still there.
        assert not is_true(lambda: serving.says("API is back"), 12)
        stack.enter_context(prefect_server(own_home, port))
        wait_until(lambda: serving.says("Prefect's API is back"), 60, "it says that the API is back")
        ran = ended(api, start_run(api, deployments(api, "patient")["patient"], date="2026-11-19"))
        assert ran.state_name == "Completed", ran.state
        assert lake.snapshot().number == 1
        assert serving.log.read_text().count("Prefect's API is away") == 1


def test_serving_ends_with_its_own_server(tmp_path: Path, own_home: Path) -> None:
    """It would never fire again: one sentence, and an exit code that a service manager acts on."""
    Lake(tmp_path / "jobs" / "orphan").ready(name="orphan")
    env = {
        "PREFECT_API_URL": "",
        "PREFECT_HOME": str(own_home),
        "PREFECT_CLIENT_MAX_RETRIES": "2",  # a busy server may say 503 once
    }
    with service(tmp_path, "serve", tmp_path / "jobs", env=env) as serving:
        wait_until(lambda: serving.says("Ctrl-C ends"), 120, "it serves")
        [server] = serving.descendants("nightjar.flows.prefect_api.ownserver")
        server.kill()
        serving.process.wait(60)
    said = serving.log.read_text()
    assert serving.process.returncode == 2
    assert "nightjar: the Prefect server that this command started has ended (" in said
    assert "Traceback" not in said


def test_what_is_cancelled_in_the_end_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Prefect's runner has a connection open to each run; ending in mid-run must not show a traceback for it."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(unless_cancelled)
    loop.call_exception_handler({"message": "ended", "exception": asyncio.CancelledError()})
    assert caplog.text == ""
    loop.call_exception_handler({"message": "went wrong", "exception": ValueError("no")})
    assert "went wrong" in caplog.text
    loop.close()


def test_serving_a_wrong_folder_is_one_sentence(tmp_path: Path) -> None:
    ended_at_once = forked("serve", tmp_path / "nowhere", env={"PREFECT_API_URL": ""})
    assert (ended_at_once.returncode, ended_at_once.stderr) == (2, f"nightjar: {tmp_path}/nowhere: no such folder\n")


def test_serving_for_a_ray_that_cannot_reach_prefect_is_one_sentence(tmp_path: Path) -> None:
    ended_at_once = forked("serve", tmp_path, "--ray", "ray://10.1.2.3:10001", env={"PREFECT_API_URL": ""})
    assert ended_at_once.returncode == 2
    assert "cannot reach Prefect at http://127.0.0.1/api; set PREFECT_API_URL" in ended_at_once.stderr


def test_a_run_of_a_deployment_on_a_ray_that_cannot_reach_prefect_ends_so(tmp_path: Path, prefect_api: str) -> None:
    given = {"job": str(Lake(tmp_path).ready().job_path), "ray": "ray://10.1.2.3:10001"}
    with temporary_settings({PREFECT_API_URL: prefect_api}):
        state = run_flow(nightly.nightly, parameters=given, return_type="state")
    assert state.is_failed()
    assert f"cannot reach Prefect at {prefect_api}; set PREFECT_API_URL" in str(state.message)


@pytest.mark.parametrize("place", ["served", "pooled"])
def test_the_schedule_fires_and_scores_the_right_night(services: Services, place: str) -> None:
    """The scheduled time's date in the job's time zone, which is not the date in UTC, is the night that is scored.

    The last test of the file: it is due a while after the services have started.
    """
    name = f"soon-{place}"
    assert services.soon.night != services.soon.due.astimezone(dt.UTC).date().isoformat()

    def due() -> list[FlowRun]:
        found = runs_of(services.api, services.deployment(name))
        return [run for run in found if run.auto_scheduled and run.expected_start_time == services.soon.due]

    wait_until(due, 120, "the run is scheduled")
    run = ended(services.api, due()[0], timeout_s=240)
    assert run.state is not None
    assert run.state.is_completed(), run.state.message
    assert run.name == f"{name} {services.soon.night}"
    assert set(services.lake(f"{place}/{name}").snapshot().runs) == {services.soon.night}
