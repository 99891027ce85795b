"""The flow `backfill`: published nights are left alone, partial ones are continued, the others are scored.

Each night is a run of `nightly` below the backfill's own flow run. All use the same cluster, so that Ray starts once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from rich.console import Console

from nightjar.flows.cluster import ClusterRunner, check_reports
from nightjar.flows.flow_call import API_AWAY, Call, handing
from nightjar.flows.nightly_flow import nightly
from nightjar.flows.pages.advice import Commands, reaching
from nightjar.flows.pages.artifacts import deliver
from nightjar.flows.pages.escaping import code, markdown
from nightjar.flows.prefect_api.api import api_url, worker_env
from nightjar.flows.prefect_api.logs import expect_failures
from nightjar.flows.prefect_api.server import reporting_to, start_api
from nightjar.flows.results import Night
from nightjar.flows.start_failures import request_to_begin, telling
from nightjar.inference.engine import LOCAL, RAY
from nightjar.inference.environ import held
from nightjar.inference.errors import (
    JobError,
    NightjarError,
    RunFailed,
    TakenBack,
)
from nightjar.inference.job.model import Job
from nightjar.inference.ledger.lines import Published
from nightjar.inference.output import publications as publish
from nightjar.inference.run import approving
from nightjar.inference.run.request import RunRequest, make_request
from nightjar.inference.validation.manifest import read_manifest


def nights_between(job: Job, first: dt.date, last: dt.date) -> list[dt.date]:
    """The logical dates to score: those of the job's schedule, or every day without one.

    Raises:
        JobError: There is no date to score.
    """
    days = [first + dt.timedelta(days=day) for day in range((last - first).days + 1)]
    found = job.schedule.dates(first, last) if job.schedule else days
    if not found:
        why = "the first is after the last" if first > last else "the job's schedule has none there"
        raise JobError(f"there is no night from {first} to {last}: {why}")
    return found


def _silent(_: Night) -> None:
    """Nobody is listening."""


_tell: ContextVar[Callable[[Night], None]] = ContextVar("tell", default=_silent)


def _name() -> str:
    given = flow_run.parameters
    try:
        name = make_request(given["job"], scores=False).job.name
    except NightjarError:
        name = str(given["job"])
    return f"{name} {given['first']} to {given['last']}"


@flow(name="backfill", flow_run_name=_name, persist_result=False, task_runner=ClusterRunner())
def backfill(job: str, first: dt.date, last: dt.date, ray: str | None = None, engine: str = RAY) -> State[Any]:
    """Score the nights from `first` to `last`. A night that readers see already is left alone.

    Args:
        job: Path of the job file, where the run's process sees it.
        first: The first logical date.
        last: The last logical date.
        ray: The Ray cluster, host:port or ray://host:port. Default: NIGHTJAR_RAY, or one of the run's own.
        engine: Where shards are scored: `ray`, or `local` in a process of the night's own on this machine.
    """
    expect_failures()
    asked = _Asked(job, ray, engine)
    try:
        request = make_request(job, date=first.isoformat(), engine=engine)
        dates = nights_between(request.job, first, last)
        if engine == LOCAL:
            found = [_night(asked, date) for date in dates]
        else:
            from nightjar.inference.engine.ray.capacity import check_cluster

            with _shared(ray, request.job, verbose=False):
                check_cluster(request.job)
                found = [_night(asked, date) for date in dates]
    except NightjarError as error:
        return Failed(message=str(error), data=error)
    _show(request, found, asked.options)
    bad = [night for night in found if not night.ok]
    said = f"{len(found) - len(bad)} of {len(found)} nights are published"
    if bad:
        return Failed(message=f"{said}; first without: {bad[0].date}: {bad[0].said}", data=tuple(found))
    return Completed(message=said, data=tuple(found))


def _shared(ray: str | None, job: Job, verbose: bool) -> AbstractContextManager[None]:
    """Connect to the cluster of all nights. Only this imports Ray: a backfill on the local engine does not need it."""
    from nightjar.flows.cluster.connection import cluster

    return cluster(ray, job, worker_env(), verbose)


@dataclass(frozen=True)
class _Asked:
    """The options that all nights of a backfill share."""

    job: str
    ray: str | None
    engine: str

    @property
    def options(self) -> list[str]:
        """The options of the `nightjar` command."""
        return [*([] if self.engine == RAY else ["--engine", self.engine]), *reaching(self.ray)]


def _night(asked: _Asked, date: dt.date) -> Night:
    """Score one night. No error of it ends the other nights."""
    night = _scored(asked, date)
    _tell.get()(night)
    return night


def _scored(asked: _Asked, date: dt.date) -> Night:
    night, job = date.isoformat(), asked.job
    try:
        request = request_to_begin(job, date=night, scores=False)
        with telling(request, "discover"):
            request.check_owner()
            seen_already = _seen_already(request)
        if seen_already:
            return Night(night, "skipped", 0, seen_already)
        unseen, said = _run(asked, date, Call(patient=False))
        # The publications decide, because Prefect's API may be away when the run ends.
        if (seen := _seen(request)) is not None:
            totals = read_manifest(request.storage, request.output, seen).totals
            return Night(night, "published", totals.rows_out, said)
        if (question := approving.waits(request)) is not None:
            yes = Commands(request, job=job).answer("approve", question.name)
            return Night(night, "asks", 0, f"{said} `{yes}` publishes it")
    except NightjarError as error:
        for note in getattr(error, "__notes__", ()):
            get_run_logger().warning("%s", note)
        return Night(night, "failed", 0, str(error))
    if unseen:
        commands = Commands(request, job=job)
        again = commands.command("republish", *request.words)
        anew = commands.command("run", "--date", night, "--fresh", *asked.options)
        remedy = f"`{again}` shows it again, `{anew}` scores it anew"
        return Night(night, "rolled back", 0, f"{said}: {remedy}")
    return Night(night, "failed", 0, said)


def _seen_already(request: RunRequest) -> str:
    """In words, the run that readers see of this date, which may have another name; empty if none."""
    now = publish.newest(request.storage, request.output)
    if (run := now.nights().get(request.date)) is None:
        return ""
    said = f"published before, as r{now.runs[run].revision}"
    return said if run == request.run_id else f"{said} of the run {run}"


def _seen(request: RunRequest) -> Published | None:
    return publish.shown(request.storage, request.output, request.run_id)


def _run(asked: _Asked, date: dt.date, call: Call) -> tuple[bool, str]:
    """Run one night. Returns whether Prefect knows it as done, published or not, and a sentence about it."""
    try:
        with handing(call):
            state: State[Any] = nightly(job=asked.job, date=date, ray=asked.ray, engine=asked.engine, return_state=True)
    except API_AWAY as error:
        return False, f"Prefect's API was away: {str(error) or type(error).__name__}"
    done = state.is_completed() or isinstance(state.result(raise_on_failure=False), TakenBack)
    return done, state.message or state.name or ""


def _show(request: RunRequest, found: list[Night], options: list[str]) -> None:
    """Make the page with the state of each night. options: of the command that continues the backfill."""
    lines = [
        f"# {request.job.name}: {found[0].date} to {found[-1].date}",
        "",
        "| night | state | rows | |",
        "|---|---|--:|---|",
    ]
    lines += [f"| {n.date} | {n.state} | {n.rows:,} | {markdown(n.said)} |" for n in found]
    if not all(night.ok for night in found):
        again = Commands(request).command("backfill", "--from", found[0].date, "--to", found[-1].date, *options)
        lines += ["", f"Continue what is missing: {code(again)}"]
    key = f"{request.job.name}-backfill"
    page = "\n".join(lines)
    deliver({key: lambda: create_markdown_artifact(page, key=key, description="Nights of a backfill")})


def launch_backfill(
    start: RunRequest, dates: list[dt.date], ray: str | None, console: Console, *, verbose: bool, quiet: bool
) -> tuple[Night, ...]:
    """Run the flow from the command line, and print each night when it ends.

    start: the request of the first night. dates: as of `nights_between`.

    Raises:
        NightjarError: The flow could not begin.
    """
    engine = start.engine
    check_reports(ray, api_url())
    api = start_api()
    with (
        reporting_to(api, verbose) as reporting,
        nullcontext() if engine == LOCAL else _shared(ray, start.job, verbose),
        _telling(console, quiet) as ended,
    ):
        reporting.wait()
        try:
            state: State[Any] = backfill(
                job=start.job_path,
                first=dates[0],
                last=dates[-1],
                ray=ray,
                engine=engine,
                return_state=True,
            )
            found, said = state.result(raise_on_failure=False), state.message
        except API_AWAY as error:
            found, said = None, f"Prefect's API was away: {error}"
    if isinstance(found, NightjarError):
        raise found
    # How the nights ended is known here, even if Prefect could not be told.
    if len(ended) != len(dates):
        raise RunFailed(f"the backfill ended early, after {len(ended)} of {len(dates)} nights: {said}; repeat it")
    return tuple(ended)


@contextmanager
def _telling(console: Console, quiet: bool) -> Iterator[list[Night]]:
    """Print each night when it ends, unless `quiet`. Yields the nights that have ended, in order."""
    ended: list[Night] = []

    def tell(night: Night) -> None:
        ended.append(night)
        if not quiet:
            console.print(f"{night.date}: {night.state}: {night.said}", highlight=False, markup=False, soft_wrap=True)

    with held(_tell, tell):
        yield ended
