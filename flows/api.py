"""The Python functions, which do what the commands do, for a notebook or a script. Each returns a record.

They print nothing themselves, and raise the errors that the commands report: `nightjar.inference.errors`. A run starts
what it needs and stops it again: a Prefect server of its own if none is configured, and Ray if its engine is Ray.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nightjar.flows.prefect_api.ownserver import OwnServer
from nightjar.flows.prefect_api.terminal import as_found
from nightjar.inference.engine import LOCAL, RAY
from nightjar.inference.errors import JobError, NightjarError, RunFailed, StorageError
from nightjar.inference.garbage import seldom_collected
from nightjar.inference.run.request import RunRequest, check_date, date_named, is_run_id, make_request
from nightjar.inference.storage.lake import LakeStorage

if TYPE_CHECKING:
    from rich.console import Console

    from nightjar.flows.reports import DecisionMade, RunResult, RunStatus
    from nightjar.flows.results import Launched, Night
    from nightjar.inference.output.reading import Files
    from nightjar.inference.run.comparing import RunsCompared
    from nightjar.inference.validation.evaluations import LateEvaluation

Date = str | dt.date

_PATIENCE_S = 10.0
"""The longest time in seconds that a run waits for the user's imports after its own; then it starts anyway."""


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
        TablesBehind: it is published, but a table of the job does not show it.
        Interrupted: a person or a signal stopped it.
    """
    from nightjar.flows.pages.advice import check_tables
    from nightjar.flows.pages.finished import run_result

    done, total_s = _silently(
        job, ray, date=_date(date), run_id=run_id, limit=limit, fresh=fresh, publish=publish, engine=engine
    )
    check_tables(done.run.request, done.run.publication.tables_behind)
    return run_result(done, total_s)


def baseline(
    job: str | Path,
    inputs: str | Sequence[str],
    *,
    date: Date | None = None,
    engine: str = RAY,
    ray: str | None = None,
) -> RunResult:
    """Score and describe a training set, for the job's checks on drift to compare with; it is never published.

    inputs: the training set: files, folders or patterns. date: its logical date; default: today in the job's time
    zone. The rest is as in `run`. Repeat the call to continue it, or to replace it.
    """
    from nightjar.flows.pages.finished import run_result
    from nightjar.inference.job.checks import BASELINE

    given = {"date": _date(date), "run_id": BASELINE, "publish": False, "engine": engine, "inputs": _listed(inputs)}
    return run_result(*_silently(job, ray, **given))


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

    One night that fails does not end the others: `Night.ok` says which nights readers see. parallel: the number of
    nights at a time. engine: as in `run`; `local` scores one night at a time.

    Raises:
        JobError: The job or its model must be changed.
        ClusterError: The Ray cluster cannot be reached, or cannot do what the job asks.
        RunFailed: The backfill could not be completed; repeat it.
        TablesBehind: nights are published that a table of the job does not show.
    """
    from rich.console import Console

    with as_found():
        found = nights(job, first, last, parallel, ray, engine, Console(quiet=True), verbose=False, quiet=True)
    check_night_tables(job, found)
    return found


def status(job: str | Path, *, date: Date | None = None, run_id: str | None = None) -> RunStatus:
    """Say how far a run is, how it stands and what to do next; by default today's run, which may be going on.

    Raises:
        JobError: The job file, date or name is wrong.
        StorageError: The storage refused or failed.
    """
    from nightjar.flows.pages.standing import status

    return status(make_request(job, date=_date(date), run_id=run_id, scores=False))


def files(job: str | Path, *, date: Date | None = None, run_id: str | None = None) -> Files:
    """List the exact files of a published run, by default of the latest night; `files(…).dataset()` reads their rows.

    date: the night; if output.uri has {date}, also the output's location. Default: the latest night.

    Raises:
        JobError: The job file, date or name is wrong; or the run is not published, or was changed since.
        StorageError: The storage refused or failed.
    """
    from nightjar.inference.output import reading

    request = make_request(job, date=_date(date), run_id=run_id, scores=False)
    return reading.files(request.storage, request.output, run_id, request.date if date else None)


def evaluate(
    job: str | Path,
    labels: str | Sequence[str] = (),
    *,
    date: Date | None = None,
    run_id: str | None = None,
    key: str | Sequence[str] = (),
    label: str = "",
) -> LateEvaluation:
    """Join labels that came later to a published night, by default the latest, and keep the metrics with the night.

    labels: files, folders, patterns or tables; default: `late_labels.input` of the job. key: the columns that a label
    and its row have in common. label: the column with the label. Default: those of `late_labels` in the job.

    Raises:
        JobError: The job file, date or name is wrong; the run is not published; or the labels are wrong, contradict
            each other, or find no row.
        StorageError: The storage refused or failed.
    """
    from nightjar.flows import evaluation

    request = make_request(job, date=_date(date), run_id=run_id, scores=False)
    made, notes = evaluation.evaluate(
        request, run_id, dated=date is not None, labels=_listed(labels), key=_listed(key), label=label
    )
    _warn(notes)
    return made


def diff(
    job: str | Path,
    before: str,
    now: str,
    *,
    date: Date | None = None,
    key: str | Sequence[str] = (),
    rows: int = 20,
) -> RunsCompared:
    """Compare two runs: their figures, how far their columns are apart, and the rows whose outputs moved most.

    before, now: the runs, by date or name. date: of the output, if output.uri has {date}. key: the columns by which a
    row is found in both; default: those of late_labels, or of a check on unique keys. rows: the most rows to name of
    each output; 0: the rows are not read.

    Raises:
        JobError: The job file, date or name is wrong; a run did not pass its gates; or its rows have no such key.
        StorageError: The storage refused or failed.
    """
    from nightjar.inference.run import comparing

    request = make_request(job, date=_date(date), scores=False)
    return comparing.diff(request, before, now, key=_listed(key), rows=rows)


def approve(
    job: str | Path,
    *,
    date: Date | None = None,
    run_id: str | None = None,
    by: str = "",
    note: str = "",
    revision: int | None = None,
    question: str = "",
) -> DecisionMade:
    """Say yes to what a run's gates ask, and publish it as it was validated; by default today's run.

    by: who answers; default: this user on this machine. note: why. revision: the one that was looked at; where there
    is a newer one, the answer is refused. question: what was asked, as the error `Unanswered` and the printed commands
    name it; where the run asks anew, the answer is refused.

    Raises:
        JobError: Nothing asks, or what asked was answered or changed since.
        Held: Another command writes the run.
        TablesBehind: It is published, but a table of the job does not show it.
    """
    return _answered(job, date, run_id, True, by, note, revision, question)


def reject(
    job: str | Path,
    *,
    date: Date | None = None,
    run_id: str | None = None,
    by: str = "",
    note: str = "",
    revision: int | None = None,
    question: str = "",
) -> DecisionMade:
    """Say no to what a run's gates ask: readers keep what they see. The rest is as in `approve`."""
    return _answered(job, date, run_id, False, by, note, revision, question)


def _answered(
    job: str | Path,
    date: Date | None,
    run_id: str | None,
    approved: bool,
    by: str,
    note: str,
    revision: int | None,
    question: str,
) -> DecisionMade:
    from nightjar.flows.answering import answer
    from nightjar.flows.pages.advice import check_tables

    request = make_request(job, date=_date(date), run_id=run_id, scores=False)
    made, notes = answer(request, approved=approved, by=by, note=note, revision=revision, question=question)
    _warn(notes)
    check_tables(request, made.tables_behind)
    return made


def _warn(notes: Sequence[str]) -> None:
    """Where a command writes a note beside its result, a program has its log."""
    for said in notes:
        logging.getLogger(__name__).warning("%s", said)


def _listed(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _silently(job: str | Path, ray: str | None, **given: Any) -> tuple[Launched, float]:
    """`launched`, without a word on the terminal. given: as `make_request` takes it."""
    from rich.console import Console

    with as_found():
        return launched(requested(job, **given), ray, Console(quiet=True), verbose=False, quiet=True)


def requested(job: str | Path, **given: Any) -> RunRequest:
    """The request for a run that is to begin. given: as `make_request` takes it.

    Where code or model cannot be had, or what is kept of the run cannot be read, it is known which run was meant, so
    its reason is kept and told. A job file that cannot be read names nobody to tell; and words of the command that are
    wrong are for whoever typed them.

    Raises:
        NightjarError: As `make_request`.
    """
    try:
        return make_request(job, **given)
    except NightjarError as error:
        if (meant := _meant(job, given)) is not None:
            from nightjar.flows.unbegun import could_not_begin

            could_not_begin(meant, error, "discover")
        raise


def _meant(job: str | Path, given: dict[str, Any]) -> RunRequest | None:
    """The run that was meant where no request for it could be made; None if that cannot be known."""
    try:
        return make_request(job, **given, scores=False)
    except StorageError:
        # The job file alone says whom to tell. A run's date is in its folder, unless the command or the name says it:
        # it is taken for a new run, as one is that has no such folder.
        name = given.get("run_id")
        if name is not None and not is_run_id(name):
            return None
        day = given.get("date") or date_named(name or "")
        alone = {**given, "run_id": None, "date": str(day) if day else None}
        with suppress(NightjarError):
            found = make_request(job, **alone, scores=False, storage=LakeStorage())
            return replace(found, run_id=name or found.run_id)
    except NightjarError:
        return None
    return None


@contextmanager
def _telling(request: RunRequest, step: str, unless: tuple[type[NightjarError], ...] = ()) -> Iterator[None]:
    """Keep why the block fails before a night has begun, and tell whom the job says.

    step: where that is. unless: errors after which nights have begun, which tell for themselves.
    """
    try:
        yield
    except unless:
        raise
    except NightjarError as error:
        from nightjar.flows.unbegun import could_not_begin

        could_not_begin(request, error, step)
        raise


def launched(
    request: RunRequest, ray: str | None, console: Console, *, verbose: bool, quiet: bool
) -> tuple[Launched, float]:
    """Check the request, then launch the run. Returns its result, and the seconds that it took.

    Raises:
        NightjarError: As in `run`; that of a failed run has a note on what to do next.
    """
    began = time.monotonic()
    with OwnServer() as server:
        with _telling(request, "discover"), seldom_collected():
            waits = _look_first(request, ray, server)
        from nightjar.flows.launch import launch

        done = launch(request, ray, console, since=began, waits=waits, verbose=verbose, quiet=quiet, server=server)
    return done, time.monotonic() - began


def _look_first(request: RunRequest, ray: str | None, server: OwnServer) -> bool:
    """What must be changed first, found before Ray starts: job, input, labels of the first files, and the code.

    Returns whether the run has to wait for its input.

    The code is imported in a process of its own while this one imports Prefect, which takes as long. So does Prefect's
    server, which begins once job and input are known to be right.

    Raises:
        JobError: so it is.
        StorageError: The storage refused or failed.
    """
    from nightjar.inference.input.beginning import Beginning
    from nightjar.inference.run.inspection import Inspection
    from nightjar.inference.run.refusals import check_request, check_without_input
    from nightjar.inference.run.samples import check_labels
    from nightjar.inference.run.waiting import awaited
    from nightjar.inference.scoring.preflight import PLACES

    waits = awaited(request.storage, request.job) is not None
    if waits:
        check_without_input(request)
    else:
        beginning = Beginning(request.storage, request.job)
        schema = check_request(request, beginning)
    check_output(request, ray)
    server.begin_early()
    with Inspection(
        request, silent=True
    ) as inspection:  # what the code prints is in the run's logs, too, because the workers import it again
        if not waits:
            check_labels(request.storage, request.job, schema, beginning.pieces(PLACES), all_alike=True)
        from nightjar.flows import launch  # noqa: F401 (it is needed next, and its import takes seconds)
        from nightjar.flows.cluster import named

        # Preflight finds what is not known by then.
        inspection.found(elsewhere=named(ray) is not None, patience_s=_PATIENCE_S)
    return waits


def check_output(request: RunRequest, ray: str | None) -> None:
    """Check that this process may write to a local output, if it is this machine that writes there. It costs nothing.

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
    """Run the nights of a backfill, and print each on the console when it ends.

    Raises:
        NightjarError: As in `backfill`.
    """
    from nightjar.inference.run.refusals import check_model

    days = _date(first), _date(last)
    for day, option in zip(days, ("--from", "--to"), strict=True):
        check_date(day, option)
    start = requested(job, date=days[0], engine=engine)
    end = make_request(job, date=days[1], engine=engine, scores=False)  # of which only the date is needed
    with _telling(start, "discover"):
        check_model(start)  # the other checks depend on the night
        check_output(start, ray)
    from nightjar.flows.backfill import check_local, launch_backfill, nights_between

    # What is wrong with the words of the command is for whoever typed them, and says nothing about the first night.
    if engine == LOCAL:
        check_local(parallel)
    nights_between(start.job, dt.date.fromisoformat(start.date), dt.date.fromisoformat(end.date))
    with _telling(start, "start", unless=(RunFailed,)):
        return tuple(launch_backfill(start, end, parallel, ray, console, verbose=verbose, quiet=quiet))


def check_night_tables(job: str | Path, found: tuple[Night, ...]) -> None:
    """Return if the tables of the job show these nights. What a night could not commit is tried once more.

    Raises:
        TablesBehind: one does not.
    """
    from nightjar.flows.pages.advice import check_tables
    from nightjar.inference.run.publishing import commit_tables

    requests = (make_request(job, date=night.date, scores=False) for night in found if night.ok)
    for request in {request.output: request for request in requests}.values():
        check_tables(request, commit_tables(request))


def _date(given: Date | None) -> str | None:
    return given.isoformat() if isinstance(given, dt.date) else given
