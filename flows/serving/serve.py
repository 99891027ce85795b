"""`nightjar serve`: the jobs of a folder, scheduled and run from one process, on one machine."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.context import AsyncClientContext, ContextModel
from prefect.deployments.runner import RunnerDeployment
from prefect.logging import get_logger
from prefect.runner import Runner
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_KEY, PREFECT_API_URL
from rich.console import Console

from nightjar.flows.cluster import check_reports
from nightjar.flows.flow_call import SERVED
from nightjar.flows.pages.reportfiles import REPORTS_VARIABLE, job_address, reports_base
from nightjar.flows.prefect_api.api import api_url, home, in_words, is_away, page_of
from nightjar.flows.prefect_api.ownserver import PrefectApi, password_file, passwords
from nightjar.flows.prefect_api.server import reporting_to, start_api
from nightjar.flows.serving.deploy import (
    TAG,
    Deployed,
    answering_api,
    as_deployment,
    find_jobs,
    known_deployments,
    none_found,
    pause,
    schedule_of,
    without_job,
)
from nightjar.flows.serving.lookup import Served
from nightjar.flows.serving.site import LOCAL, Place, pages_of, place
from nightjar.inference.engine import RAY, check_name
from nightjar.inference.errors import ClusterError
from nightjar.inference.job.model import Job
from nightjar.inference.process import environment

SEEN_ON = {"prefect": "3.9.1"}
"""The versions with which `PatientRunner`, which uses a private name of Prefect, has been seen to work."""

_ASK_S = 10.0
"""Seconds between two requests to an API that is away."""

_POLL = "/deployments/get_scheduled_flow_runs"
"""The path of the request for due runs. Its error ends the runner; any other request's error is only logged."""

_log = get_logger("runner")


class PatientRunner(Runner):
    """Prefect's runner, which outlives an absence of its API. over: raises when the API will not come back.

    With Prefect's own client the runner and its runs would end after three polls without an answer.
    """

    def __init__(self, over: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._asking: _PatientClient | None = None
        self._over = over
        self._serving: asyncio.Task[Any] | None = None

    async def start(self, run_once: bool = False, webserver: bool | None = None) -> None:
        self._serving = asyncio.current_task()
        self._asking = _PatientClient(self._over)
        async with _Client(self._asking):
            await super().start(run_once, webserver)

    async def __aexit__(self, *exc_info: Any) -> None:
        if self._asking is not None:
            self._asking.ends = True
        # Prefect kills the processes of runs at once. One that gets SIGTERM first keeps why its run has ended.
        processes = self._process_manager
        await asyncio.gather(*map(processes.kill, processes.flow_run_ids()))
        await super().__aexit__(*exc_info)

    def handle_sigterm(self, *_: Any, **__: Any) -> None:
        """Stop as for Ctrl-C: cancel what `start` does, which then stops everything in order; once.

        Prefect's own handler first cancels each run by its API, which may be away, and before the start it raises
        `SystemExit` wherever the loop happens to be.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert self._serving is not None
        self._serving.get_loop().call_soon_threadsafe(self._serving.cancel)


class _PatientClient(PrefectClient):
    """Prefect's client, whose requests are repeated until the API answers. ends: the runner stops, and waits for no
    API.
    """

    def __init__(self, over: Callable[[], None]) -> None:
        api, key, password = PREFECT_API_URL.value(), PREFECT_API_KEY.value(), PREFECT_API_AUTH_STRING.value()
        super().__init__(api, api_key=key, auth_string=password)
        self.ends = False
        self._over, self._away = over, False

    async def request(self, method: Any, path: Any, *args: Any, **kwargs: Any) -> httpx.Response:
        while True:
            try:
                answer = await super().request(method, path, *args, **kwargs)
            except httpx.HTTPError as error:
                if not is_away(error) or self.ends:
                    raise
                if path == _POLL:
                    self._over()
                if not self._away:
                    _log.warning("Prefect's API is away, asking again until it is back: %s", in_words(error))
                self._away = True
            else:
                if self._away:
                    _log.warning("Prefect's API is back")
                self._away = False
                return answer
            await asyncio.sleep(_ASK_S)


class _Client(AsyncClientContext):
    """A context in which Prefect uses this client wherever it needs one."""

    def __init__(self, client: PrefectClient) -> None:
        ContextModel.__init__(self, client=client)  # AsyncClientContext's would make a client of its own


def serve_until_ended(
    folder: str,
    console: Console,
    *,
    ray: str | None,
    engine: str,
    limit: int,
    reports_host: str = LOCAL,
    reports_port: int | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM, with a Prefect server of its own if none is configured.

    Raises:
        JobError: There is no job file, or one of them is wrong.
        ClusterError: Prefect's API does not answer or has ended, or tasks on that Ray cannot reach it; or no reports
            can be served at that host and port.
    """
    check_name(engine)
    if engine == RAY:
        check_reports(ray, api_url())
    jobs = find_jobs(folder)
    if not jobs:
        raise none_found(folder)

    def tell(said: str) -> None:
        console.print(said, highlight=False, markup=False, soft_wrap=True)

    with place(reports_host, reports_port) as reports:
        api = start_api(complete=True)
        with reporting_to(api, verbose=True):
            api.wait()
            base = reports_base() or reports.address  # where people reach the reports
            runner, served, paused = _deployed(jobs, folder, ray, engine, limit, api.check_alive, base)
            runs = {REPORTS_VARIABLE: base, SERVED: json.dumps(list(jobs))}
            with pages_of(served, reports), environment(runs):
                said = [f"serving nightly/{each.name}: {each.schedule}" for each in served]
                said += [f"paused nightly/{each.name}: {each.schedule}" for each in paused]
                said += _addresses(api, reports, console.is_terminal)
                try:
                    _run_until_ended(runner, said, tell)
                except RuntimeError as error:  # Prefect's runner: it cannot start, because the server has ended, say
                    api.check_alive()
                    raise ClusterError(f"Prefect's runner has failed: {in_words(error)}; repeat the command") from error
                except BaseExceptionGroup:  # of the runner's tasks
                    api.check_alive()
                    raise
            tell(
                "stopped serving; schedules stay; nights that Prefect has made ahead are run when something serves "
                "again, others by `nightjar backfill`"
            )


def _deployed(
    jobs: dict[str, Job],
    folder: str,
    ray: str | None,
    engine: str,
    limit: int | None,
    over: Callable[[], None],
    reports: str,
) -> tuple[PatientRunner, list[Served], list[Deployed]]:
    """Deploy the jobs of a folder. Returns their runner, the jobs as they are served, and the deployments that were
    paused because their jobs are gone.

    over: as `PatientRunner` has it. reports: the address of the pages of all jobs. Raises as `deploy`.
    """
    with answering_api() as client:
        known = known_deployments(client)
        made = [
            as_deployment(
                path, job, known.get(job.name), ray=ray, engine=engine, nights=f"{reports}/{job_address(job.name)}"
            )
            for path, job in jobs.items()
        ]
        # Schedules stay active while nothing serves, so a night that falls due meanwhile is late, not lost.
        runner = PatientRunner(over, name=TAG, pause_on_shutdown=False, limit=limit)
        served = [
            Served(job.name, path, schedule_of(job), page_of("deployment", _added(runner, deployment)))
            for (path, job), deployment in zip(jobs.items(), made, strict=True)
        ]
        return runner, served, pause(client, without_job(folder, jobs, known))


def _added(runner: PatientRunner, deployment: RunnerDeployment) -> UUID:
    made = runner.add_deployment(deployment)
    assert isinstance(made, UUID)  # where an event loop runs, it would be something to await
    return made


def _run_until_ended(runner: Runner, said: Sequence[str], tell: Callable[[str], object]) -> None:
    """Print what is served, and run the nights that fall due."""
    try:
        # SIGTERM cancels the runner, but only once it has started. Until then it is as Ctrl-C.
        with suppress(KeyboardInterrupt, asyncio.CancelledError):
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            for line in said:
                tell(line)
            asyncio.run(_start(runner))
    finally:
        # All that is left is to end in order; the runner's own handler would fail, as its loop is closed.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _addresses(api: PrefectApi, reports: Place, private: bool) -> list[str]:
    """The lines with the addresses of the pages. private: on a terminal, where the addresses may sign in."""
    pages, ends = f"{home()}/deployments", ""
    if api.own:
        ends = "; this server ends with this command, its records stay"
        pages = f"{api.url.removesuffix('/api')}/sign-in#{quote(api.password)}" if private else pages
    shown = reports.address.replace("//", f"//{passwords()['Reports']}@") if private else reports.address
    file = [] if private else [f"The names and passwords for these addresses are in {password_file()}."]
    return [f"Reports: {shown}", f"Pages: {pages}{ends}. Ctrl-C ends.", *file]


async def _start(runner: Runner) -> None:
    asyncio.get_running_loop().set_exception_handler(unless_cancelled)
    await runner.start()


def unless_cancelled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore cancellations at the end; Python before 3.12 would show a traceback for each open connection."""
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)
