"""The Python functions: what the commands do, for a notebook or a script, with a record as the result.

They print nothing of their own, and raise what the commands report: `nightjar.inference.errors`. A run starts what it
needs and stops it again: a Prefect server of its own if none is configured, and Ray if its engine is Ray.
"""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nightjar.inference.engine import RAY
from nightjar.inference.errors import JobError
from nightjar.inference.run.request import RunRequest, make_request

if TYPE_CHECKING:
    from rich.console import Console

    from nightjar.flows.outcome import Launched, Night
    from nightjar.flows.reports import RunResult, RunStatus
    from nightjar.inference.output.reading import Files

Date = str | dt.date

_PATIENCE_S = 10.0
"""So long a run waits for the user's imports, once its own are done, before it starts all the same."""


def run(
    job: str | Path,
    *,
    date: Date | None = None,
    run_id: str | None = None,
    limit: int | None = None,
    fresh: bool = False,
    publish: bool = True,
    engine: str = RAY,
    ray: str | None = None,
) -> RunResult:
    """Score one night, check it, and publish it all or nothing. A run that was interrupted is continued.

    job: path of the job file. date: the night, as `2026-11-19`; default: today in the job's time zone. run_id: a name
    for the run; default: its date. limit: only the first shards that hold so many rows; never published. fresh: score
    everything again, as a new revision. publish: False: stop after the gates. engine: `ray`, or `local`: in this
    process, without Ray, for small nights. ray: an existing cluster, as `--ray`.

    Raises:
        JobError: the job, its input or its model must be changed.
        ClusterError: the Ray cluster cannot be reached, or cannot do what the job asks.
        RunFailed: the run did not come to its end; what was committed is kept.
        Held: another writer holds the run.
        StorageError: the storage refused or failed.
        Interrupted: a person or a signal stopped it.
    """
    from rich.console import Console

    from nightjar.flows.pages.summary import run_result

    request = make_request(
        job, date=_date(date), run_id=run_id, limit=limit, fresh=fresh, publish=publish, engine=engine
    )
    return run_result(*launched(request, ray, Console(quiet=True), verbose=False, quiet=True))


def backfill(
    job: str | Path,
    first: Date,
    last: Date,
    *,
    parallel: int = 1,
    ray: str | None = None,
    engine: str = RAY,
) -> tuple[Night, ...]:
    """Score the nights from `first` to `last`: published ones are left alone, partial ones continued.

    One night that fails does not end the others: `Night.ok` says which nights readers see. parallel: so many at a time.
    engine: as of `run`; `local` scores one night at a time.

    Raises:
        JobError: the job or its model must be changed.
        ClusterError: the Ray cluster cannot be reached, or cannot do what the job asks.
        RunFailed: the backfill did not come to its end; repeat it.
    """
    from rich.console import Console

    return nights(job, first, last, parallel, ray, engine, Console(quiet=True), verbose=False, quiet=True)


def status(job: str | Path, *, date: Date | None = None, run_id: str | None = None) -> RunStatus:
    """How far a run is, how it stands and what to do about it; by default today's. It may run meanwhile.

    Raises:
        JobError: the job file, date or name is wrong.
        StorageError: the storage refused or failed.
    """
    from nightjar.flows.pages.summary import status

    return status(make_request(job, date=_date(date), run_id=run_id, scores=False))


def files(job: str | Path, *, date: Date | None = None, run_id: str | None = None) -> Files:
    """The exact files of a published run, by default of the latest night; `files(…).dataset()` reads their rows.

    date: the night; where output.uri has {date}, also the place. Default: the latest night.

    Raises:
        JobError: the job file, date or name is wrong; or the run is not published, or not as it was published.
        StorageError: the storage refused or failed.
    """
    from nightjar.inference.output import reading

    request = make_request(job, date=_date(date), run_id=run_id, scores=False)
    return reading.files(request.storage, request.output, request.run_id if run_id or date else None)


def launched(
    request: RunRequest, ray: str | None, console: Console, *, verbose: bool, quiet: bool
) -> tuple[Launched, float]:
    """Look at what must be changed first, then launch the run; how it came out, and the seconds it took.

    Raises:
        NightjarError: as `run`; a failed run's with a note of what to do next.
    """
    began = time.monotonic()
    try:
        _look_first(request, ray)
    except JobError as error:
        from nightjar.inference.run import reasons

        reasons.keep(request, error, "discover")
        raise
    from nightjar.flows.launch import launch

    done = launch(request, ray, console, verbose=verbose, quiet=quiet)
    return done, time.monotonic() - began


def _look_first(request: RunRequest, ray: str | None) -> None:
    """What must be changed first, found before Ray starts: job, input, labels of the first files, and the code.

    The code is imported in a process of its own while this one imports Prefect, which takes as long.

    Raises:
        JobError: so it is.
    """
    from nightjar.inference.input.discovery import first_pieces
    from nightjar.inference.run.inspection import Inspection
    from nightjar.inference.run.refusals import check_request, check_without_input
    from nightjar.inference.run.samples import check_labels
    from nightjar.inference.run.waiting import awaited
    from nightjar.inference.scoring.preflight import PLACES

    waits = awaited(request.storage, request.job) is not None
    if waits:
        check_without_input(request)
    else:
        schema = check_request(request)
    with Inspection(request, silent=True) as inspection:  # the workers print it, too, into the run's logs
        if not waits:
            pieces = first_pieces(request.storage, request.job, PLACES)
            check_labels(request.storage, request.job, schema, pieces, all_alike=True)
        from nightjar.flows import launch  # noqa: F401 (it is needed next; importing it takes seconds)
        from nightjar.flows.cluster import named

        # What is not known by then, preflight will tell.
        inspection.found(elsewhere=named(ray) is not None, patience_s=_PATIENCE_S)


def nights(
    job: str | Path,
    first: Date,
    last: Date,
    parallel: int,
    ray: str | None,
    engine: str,
    console: Console,
    *,
    verbose: bool,
    quiet: bool,
) -> tuple[Night, ...]:
    """The nights of a backfill, told of on the console as they end.

    Raises:
        NightjarError: as `backfill`.
    """
    from nightjar.inference.run.refusals import check_model

    start, end = (make_request(job, date=_date(date), engine=engine) for date in (first, last))
    check_model(start)  # the rest depends on the night
    from nightjar.flows.backfill import launch_backfill

    return tuple(launch_backfill(start, end, parallel, ray, console, verbose=verbose, quiet=quiet))


def _date(given: Date | None) -> str | None:
    return given.isoformat() if isinstance(given, dt.date) else given
