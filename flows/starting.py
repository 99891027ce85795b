"""Begins a run, a check or a backfill for a command, after everything that can be checked before Ray starts."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nightjar.flows.notifying import request_to_begin, telling
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError
from nightjar.inference.garbage import seldom_collected
from nightjar.inference.run.request import RunRequest, check_date, make_request

if TYPE_CHECKING:
    from rich.console import Console

    from nightjar.flows.reports import CheckReport, Launched, Night
    from nightjar.inference.input.discovery import Discovery

_PATIENCE_S = 10.0
"""The longest time in seconds that a run waits for the user's imports after its own; then it starts anyway."""


def launched(request: RunRequest, ray: str | None, console: Console, *, verbose: bool, quiet: bool) -> Launched:
    """Check the request, then launch the run.

    Raises:
        NightjarError: As in `run`; that of a failed run has a note on what to do next.
    """
    began = time.monotonic()
    with telling(request, "discover"), seldom_collected():
        waits = look_first(request, ray)
    from nightjar.flows.launch import launch

    return launch(request, ray, console, since=began, waits=waits, verbose=verbose, quiet=quiet)


def look_first(request: RunRequest, ray: str | None) -> bool:
    """Check job, input, labels of the first files, and code. Returns whether the run has to wait for its input.

    A process of its own imports the user's code while this one imports Prefect, which takes as long.

    Raises:
        JobError: One of them must be changed.
        StorageError: The storage refused or failed.
    """
    from nightjar.inference.input.discovery import discover_first
    from nightjar.inference.run.inspection import Inspection
    from nightjar.inference.run.refusals import check_request, check_without_input
    from nightjar.inference.run.samples import check_labels
    from nightjar.inference.run.waiting import awaited
    from nightjar.inference.scoring.preflight import PLACES

    waits = awaited(request.storage, request.job) is not None
    if waits:
        check_without_input(request)
    else:
        beginning = discover_first(request.storage, request.job)
        schema = check_request(request, beginning)
    check_output(request, ray)
    with Inspection(
        request, silent=True
    ) as inspection:  # the workers import the code again, so what it prints is in the run's logs
        if not waits:
            check_labels(request.storage, request.job, schema, beginning.pieces(PLACES), all_alike=True)
        from nightjar.flows import launch  # noqa: F401 (it is needed next, and its import takes seconds)
        from nightjar.flows.cluster import named

        # Preflight finds whatever this process has not found by then.
        inspection.found(elsewhere=named(ray) is not None, patience_s=_PATIENCE_S)
    return waits


def check_output(request: RunRequest, ray: str | None) -> None:
    """Check that this process may write to a local output, if this machine is to write there.

    Raises:
        JobError: It may not; names `output.uri`.
    """
    from nightjar.inference.output.owner import check_writable

    try:
        check_writable(request.output)
    except JobError:
        from nightjar.flows.cluster import named  # only now: Prefect is imported with it, which takes a second

        # The machines of a named cluster may write where this one may not.
        if request.engine == LOCAL or named(ray) is None:
            raise


def check(request: RunRequest, discovery: Discovery, ray: str | None, verbose: bool) -> CheckReport:
    """Check everything that a night needs besides its input; the cheapest checks come first.

    Raises:
        JobError, ClusterError: Something must be changed.
    """
    from nightjar.flows.cluster import named
    from nightjar.flows.pages.estimate import checked
    from nightjar.flows.prefect_api.api import check_limit
    from nightjar.inference.run import checking
    from nightjar.inference.run.inspection import inspect_code

    checking.check_input(request, discovery)
    check_output(request, ray)
    limit = request.job.resources.concurrency_limit
    notes = [check_limit(limit) if limit else "", inspect_code(request, elsewhere=named(ray) is not None)]
    if request.engine == LOCAL:
        found = checking.check(request, discovery)
    else:
        from nightjar.flows.cluster.connection import cluster  # Ray takes a while to import
        from nightjar.flows.cluster.tasks import call

        with cluster(ray, request.job, {}, verbose):
            found = call(checking.check, request, discovery)
    return checked(request, discovery, found, [note for note in notes if note])


def nights(
    job: str | Path,
    first: str,
    last: str,
    ray: str | None,
    engine: str,
    console: Console,
    *,
    verbose: bool,
    quiet: bool,
) -> tuple[Night, ...]:
    """Run the nights of a backfill, and print each on the console when it ends.

    Raises:
        NightjarError: As in `api.backfill`.
    """
    from nightjar.inference.run.refusals import check_model

    for day, option in ((first, "--from"), (last, "--to")):
        check_date(day, option)
    start = request_to_begin(job, date=first, engine=engine)
    end = make_request(job, date=last, engine=engine, scores=False)  # of which only the date is needed
    with telling(start, "discover"):
        start.check_owner()
        check_model(start)  # the other checks depend on the night
        check_output(start, ray)
    from nightjar.flows.backfilling import nights_between, run_nights

    # Wrong options are no failure of the first night.
    dates = nights_between(start.job, dt.date.fromisoformat(start.date), dt.date.fromisoformat(end.date))
    with telling(start, "start"):
        return run_nights(start, dates, ray, console, verbose=verbose, quiet=quiet)


def check_night_tables(job: str | Path, found: tuple[Night, ...]) -> None:
    """Check that the job's tables show these nights, after another try to commit what a night could not.

    Raises:
        TablesBehind: A table does not show a night.
    """
    from nightjar.flows.pages.advice import check_tables
    from nightjar.inference.run.publishing import commit_tables

    requests = [make_request(job, date=night.date, scores=False) for night in found if night.ok]
    for request in {request.output: request for request in requests}.values():
        dates = {each.date for each in requests if each.output == request.output}
        check_tables(request, commit_tables(request, dates))
