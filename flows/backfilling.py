"""Many nights: published ones are left alone, partial ones are continued, the others are scored.

Each night is a run of `nightly`. All report to the same API and use the same cluster, so that these start once. If the
cluster is lost, each night that follows has its own, or connects anew.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State

from nightjar.flows.cluster import check_reports
from nightjar.flows.flow_call import Call, handing
from nightjar.flows.launch import cluster_of
from nightjar.flows.nightly_flow import nightly
from nightjar.flows.notifying import request_to_begin, telling
from nightjar.flows.pages.advice import check_tables
from nightjar.flows.pages.standing import status
from nightjar.flows.prefect_api.api import API_AWAY, api_url, in_words
from nightjar.flows.prefect_api.server import reporting_to, start_api
from nightjar.flows.reports import Night
from nightjar.inference.errors import ClusterLost, JobError, NightjarError
from nightjar.inference.job.file import load_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.times import given_time, is_day
from nightjar.inference.output import publications as publish
from nightjar.inference.run.publishing import commit_tables
from nightjar.inference.run.refusals import check_model
from nightjar.inference.run.request import RunRequest, make_request


def nights_between(job: Job, first: str, last: str) -> list[str]:
    """The logical times to score: those of the job's schedule, or every day without one. first, last: as the options
    `--from` and `--to` have them; also days of a job that has instants.

    Raises:
        JobError: One of the two is wrong, or there is nothing between them to score.
    """
    first, last = given_time(first, "--from"), given_time(last, "--to")
    for time, option in ((first, "--from"), (last, "--to")):
        if not is_day(time):
            job.times.check(time, option)
    found = job.times.between(first, last)
    if not found:
        why = "the first is after the last" if first > last else "the job's schedule has none there"
        raise JobError(f"there is no night from {first} to {last}: {why}")
    return found


def nights(
    job: str | Path,
    first: str,
    last: str,
    ray: str | None,
    engine: str,
    tell: Callable[[Night], object],
    verbose: bool = False,
) -> tuple[Night, ...]:
    """Run the nights of a backfill. No error of a night ends the others. tell: called with each when it ends.

    Raises:
        NightjarError: Job, model or dates are wrong, or the API or the cluster of all nights cannot be used.
    """
    # Wrong options are no failure of the first night.
    dates = nights_between(load_job(Path(job).absolute()), first, last)
    start = request_to_begin(job, date=dates[0], engine=engine)
    with telling(start, "discover"):
        start.check_owner()
        check_model(start)  # the other checks depend on the night
    found = []
    with telling(start, "start"):
        check_reports(ray, api_url())
        api = start_api()
        with reporting_to(api, verbose), ExitStack() as shared:
            if shared.enter_context(cluster_of(start, ray, verbose)):
                from nightjar.inference.engine.ray.capacity import check_cluster

                check_cluster(start.job)
            api.wait()
            for date in dates:
                call = Call(patient=False)
                night = _night(start, ray, date, call)
                found.append(night)
                tell(night)
                if isinstance(call.ended, ClusterLost):
                    shared.close()  # each night that follows connects by itself
    return tuple(found)


def _night(start: RunRequest, ray: str | None, night: str, call: Call) -> Night:
    try:
        request = make_request(start.job_path, date=night, engine=start.engine)
        with telling(request, "discover"):
            request.check_owner()
            seen_already = _seen_already(request)
        if seen_already:
            return Night(night, "skipped", 0, seen_already)
        said = _run(request, ray, call)
        # The ledger and the publications decide, because Prefect's API may be away when the run ends.
        found = status(request)
    except NightjarError as error:
        return Night(night, "failed", 0, "; ".join([str(error), *getattr(error, "__notes__", ())]))
    if found.state == "published":
        return Night(night, "published", found.rows_out, said)
    words = found.commands.items() if found.state in {"asks", "rolled back"} else ()
    state = found.state if words else "failed"
    return Night(night, state, 0, "; ".join([said, *(f"{word}: `{command}`" for word, command in words)]))


def _seen_already(request: RunRequest) -> str:
    """In words, the run that readers see of this date, which may have another name; empty if none."""
    now = publish.newest(request.storage, request.output)
    if (run := now.nights().get(request.date)) is None:
        return ""
    said = f"published before, as r{now.runs[run].revision}"
    return said if run == request.run_id else f"{said} of the run {run}"


def _run(request: RunRequest, ray: str | None, call: Call) -> str:
    """Run one night. Returns a sentence about it."""
    try:
        with handing(call):
            state: State[Any] = nightly(
                job=request.job_path, date=request.date, ray=ray, engine=request.engine, return_state=True
            )
    except API_AWAY as error:
        return f"Prefect's API was away: {in_words(error)}"
    return state.message or state.name or ""


def check_night_tables(job: str | Path, found: tuple[Night, ...]) -> None:
    """Check that the job's tables show these nights, after another try to commit what a night could not.

    Raises:
        TablesBehind: A table does not show a night.
    """
    requests = [make_request(job, date=night.date) for night in found if night.ok]
    for request in {request.output: request for request in requests}.values():
        dates = {each.date for each in requests if each.output == request.output}
        check_tables(request, commit_tables(request, dates))
