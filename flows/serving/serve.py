"""`nightjar serve`: the jobs of a folder, scheduled and run from one process, on one machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from prefect.runner import Runner
from rich.console import Console

from nightjar.flows.pages.report.writing import REPORTS_VARIABLE
from nightjar.flows.parameters import SERVED
from nightjar.flows.prefect_api.api import without_user
from nightjar.flows.prefect_api.application import nights_ahead
from nightjar.flows.prefect_api.ownserver import password_file, passwords
from nightjar.flows.prefect_api.server import PrefectApi, reporting_to, start_api
from nightjar.flows.serving.deploy import find_jobs, none_found, serve
from nightjar.flows.serving.siteprocess import LOCAL, Place, pages_of, place
from nightjar.inference.engine import check_name
from nightjar.inference.environ import environment
from nightjar.inference.errors import ClusterError


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
        ClusterError: Prefect's API does not answer or has ended, or no reports can be served at that host and port.
    """
    check_name(engine)
    jobs = find_jobs(folder)
    if not jobs:
        raise none_found(folder)

    def tell(said: str) -> None:
        console.print(said, highlight=False, markup=False, soft_wrap=True)

    with place(reports_host, reports_port) as reports:
        api = start_api(complete=True)
        with reporting_to(api, verbose=True) as reporting:
            reporting.wait()
            runner, served, paused = serve(jobs, folder, ray, engine, limit, api.check_alive, reports=reports.address)
            base = os.environ.get(REPORTS_VARIABLE) or reports.address  # where people reach the reports
            runs = {REPORTS_VARIABLE: base, SERVED: json.dumps(list(jobs))}
            with pages_of(served, reports, api.url, tell), environment(runs):
                said = [f"serving nightly/{each.name}: {each.schedule}" for each in served]
                said += [f"paused nightly/{each.name}: {each.schedule}" for each in paused]
                said += _addresses(api, reports, console.is_terminal)
                try:
                    _run_until_ended(runner, said, tell)
                except RuntimeError as error:  # Prefect's runner: it cannot start, because the server has ended, say
                    api.check_alive()
                    raise ClusterError(f"Prefect's runner has failed: {error}; repeat the command") from error
            tell(_ended(api.own))


def _run_until_ended(runner: Runner, said: Sequence[str], tell: Callable[[str], object]) -> None:
    """Tell what is served, and run what falls due."""
    try:
        # SIGTERM cancels the runner, but only once it has started. Until then it is as Ctrl-C.
        with suppress(KeyboardInterrupt, asyncio.CancelledError):
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            for line in said:
                tell(line)
            asyncio.run(_start(runner))
    except BaseExceptionGroup as group:
        if (lost := _first(group)) is None:
            raise
        raise lost from None
    finally:
        # All that is left is to end in order; the runner's own handler would fail, as its loop is closed.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _addresses(api: PrefectApi, reports: Place, private: bool) -> list[str]:
    """Where the pages are. private: a person reads this, and no log has it: then the addresses sign in."""
    pages, ends = f"{without_user(api.url).removesuffix('/api')}/deployments", ""
    if api.server is not None:
        ends = "; this server ends with this command, its records stay"
        pages = f"{api.url.removesuffix('/api')}/sign-in#{quote(api.server.password)}" if private else pages
    shown = reports.address.replace("//", f"//{passwords()['Reports']}@") if private else reports.address
    file = [] if private else [f"The names and passwords for these addresses are in {password_file()}."]
    return [f"Reports: {shown}", f"Pages: {pages}{ends}. Ctrl-C ends.", *file]


async def _start(runner: Runner) -> None:
    asyncio.get_running_loop().set_exception_handler(unless_cancelled)
    await runner.start()


def _first(group: BaseExceptionGroup[BaseException]) -> ClusterError | None:
    """The ClusterError that our code raised in one of the runner's tasks, if any."""
    ours: BaseException | None = group.subgroup(ClusterError)
    while isinstance(ours, BaseExceptionGroup):
        ours = ours.exceptions[0]
    return ours if isinstance(ours, ClusterError) else None


def unless_cancelled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore cancellations at the end; Python before 3.12 would show a traceback for each open connection."""
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)


def _ended(own: bool) -> str:
    """A message on what happens to later nights. Prefect's server makes their runs ahead, but only while it is up."""
    if not own:
        return (
            "stopped serving; schedules stay; runs that fall due while Prefect is up start when something serves again"
        )
    return (
        f"stopped serving; schedules stay; the first {nights_ahead()} nights of each job that fall due are run "
        "when something serves again; for more, use `nightjar backfill`"
    )
