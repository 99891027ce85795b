"""`nightjar serve`: the jobs of a folder, scheduled and run from one process, on one machine."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import Any

from prefect.runner import Runner
from rich.console import Console

from nightjar.flows.prefect_api.server import nights_ahead, reporting_to, start_api
from nightjar.flows.serving.deploy import (
    find_jobs,
    none_found,
    schedule_of,
    serve,
)
from nightjar.inference.engine import check_name
from nightjar.inference.errors import ClusterError


def serve_until_ended(folder: str, console: Console, *, ray: str | None, engine: str, limit: int) -> None:
    """Serve until Ctrl-C or SIGTERM. If no Prefect API is configured, a server with pages runs as long as this command.

    Raises:
        JobError: There is no job file, or one of them is wrong.
        ClusterError: Prefect's API does not answer, or this command's own server has ended.
    """
    check_name(engine)
    jobs = find_jobs(folder)
    if not jobs:
        raise none_found(folder)
    api = start_api(complete=True)
    with reporting_to(api, verbose=True) as reporting:
        reporting.wait()
        runner, paused = serve(jobs, folder, ray, engine, limit, api.check_alive)
        said = [f"serving nightly/{job.name}: {schedule_of(job)}" for job in jobs.values()]
        said += [f"paused nightly/{each.name}: {each.schedule}" for each in paused]
        pages = api.url.removesuffix("/api")
        own = "; this server ends with this command, its records stay" if api.own else ""
        said += [f"Pages: {pages}/deployments{own}. Ctrl-C ends."]
        try:
            # SIGTERM cancels the runner, but only once it has started. Until then it is as Ctrl-C.
            with suppress(KeyboardInterrupt, asyncio.CancelledError):
                signal.signal(signal.SIGTERM, signal.default_int_handler)
                for line in said:
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
                asyncio.run(_start(runner))
        except BaseExceptionGroup as group:
            if (lost := _first(group)) is None:
                raise
            raise lost from None
        console.print(_ended(api.own), highlight=False, markup=False, soft_wrap=True)


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
