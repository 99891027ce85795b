"""The Python functions, which do what the commands do, for a notebook or a script. Each returns a record.

They print nothing themselves, and raise the errors that the commands report: `nightjar.inference.errors`. A run starts
what it needs and stops it again: a Prefect server of its own if none is configured, and Ray if its engine is Ray.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nightjar.flows.finished_run import Launched
from nightjar.flows.notifying import request_to_begin
from nightjar.flows.pages import reportfiles, standing
from nightjar.flows.pages.advice import check_tables
from nightjar.flows.pages.ending import run_result
from nightjar.flows.reports import DecisionMade, Night, RunResult, RunStatus
from nightjar.flows.starting import launched
from nightjar.inference.engine import RAY
from nightjar.inference.history import comparison
from nightjar.inference.history.evaluation import evaluate_late
from nightjar.inference.job.checks import BASELINE
from nightjar.inference.output import nights
from nightjar.inference.run.request import make_request
from nightjar.inference.validation.evaluations import LateEvaluation

Date = str | dt.date


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

    job: path of the job file. date: the night, as `2026-11-19`, or as `2026-11-19T05` if the job is due several times
    a day; default: today in the job's time zone, or the last time the job was due. run_id: a name for the run; default:
    its date. limit: only the first shards that hold so many rows; never published. fresh: score
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
    done = _silently(
        job, ray, date=_date(date), run_id=run_id, limit=limit, fresh=fresh, publish=publish, engine=engine
    )
    check_tables(done.run.request, done.run.publication.tables_behind)
    return run_result(done)


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
    given = {"date": _date(date), "run_id": BASELINE, "publish": False, "engine": engine, "inputs": _listed(inputs)}
    return run_result(_silently(job, ray, **given))


def backfill(
    job: str | Path,
    first: Date,
    last: Date,
    *,
    ray: str | None = None,
    engine: str = RAY,
) -> tuple[Night, ...]:
    """Score the nights from `first` to `last`: published ones are left alone, partial ones continued.

    One night that fails does not end the others: `Night.ok` says which nights readers see. engine: as in `run`.

    Raises:
        JobError: The job or its model must be changed.
        ClusterError: The Ray cluster cannot be reached, or cannot do what the job asks.
        TablesBehind: nights are published that a table of the job does not show.
    """
    from nightjar.flows import backfilling
    from nightjar.flows.prefect_api.server import as_found

    with as_found():
        found = backfilling.nights(job, str(first), str(last), ray, engine, lambda _: None)
    backfilling.check_night_tables(job, found)
    return found


def status(job: str | Path, *, date: Date | None = None, run_id: str | None = None) -> RunStatus:
    """Say how far a run is, how it stands and what to do next; by default today's run, which may be going on.

    Raises:
        JobError: The job file, date or name is wrong.
        StorageError: The storage refused or failed.
    """
    return standing.status(make_request(job, date=_date(date), run_id=run_id))


def files(job: str | Path, *, date: Date | None = None, run_id: str | None = None) -> nights.Files:
    """List the exact files of a published run, by default of the latest night; `files(…).dataset()` reads their rows.

    date: the night; if output.uri has {date}, also the output's location. Default: the latest night.

    Raises:
        JobError: The job file, date or name is wrong; or the run is not published, or was changed since.
        StorageError: The storage refused or failed.
    """
    request = make_request(job, date=_date(date), run_id=run_id)
    return nights.published(request.storage, request.output, run_id, request.date if date else None)


def evaluate(
    job: str | Path,
    labels: str | Sequence[str] = (),
    *,
    date: Date | None = None,
    run_id: str | None = None,
) -> LateEvaluation:
    """Join labels that came later to a published night, by default the latest, and keep the metrics with the night.

    labels: files, folders, patterns or tables; default: `late_labels.input` of the job.

    Raises:
        JobError: The job file, date or name is wrong; the run is not published; or the labels are wrong, contradict
            each other, or find no row.
        StorageError: The storage refused or failed.
    """
    request = make_request(job, date=_date(date), run_id=run_id)
    night = request.date if date else None
    made = evaluate_late(request, run_id, night, labels=_listed(labels))
    reportfiles.leave(replace(request, run_id=made.run_id, date=made.date), _warn)
    return made


def diff(
    job: str | Path,
    before: str,
    now: str,
    *,
    date: Date | None = None,
    key: str | Sequence[str] = (),
    rows: int = 20,
) -> comparison.RunsCompared:
    """Compare two runs: their figures, how far their columns are apart, and the rows whose outputs moved most.

    before, now: the runs, by date or name. date: of the output, if output.uri has {date}. key: the columns by which a
    row is found in both; default: those of late_labels, or of a check on unique keys. rows: the most rows to name of
    each output; 0: the rows are not read.

    Raises:
        JobError: The job file, date or name is wrong; a run did not pass its gates; or its rows have no such key.
        StorageError: The storage refused or failed.
    """
    request = make_request(job, date=_date(date))
    return comparison.diff(request, before, now, key=_listed(key), rows=rows)


def approve(
    job: str | Path,
    *,
    date: Date | None = None,
    run_id: str | None = None,
    by: str = "",
    note: str = "",
    question: str = "",
) -> DecisionMade:
    """Say yes to what a run's gates ask, and publish it as it was validated; by default today's run.

    by: who answers; default: this user on this machine. note: why. question: what was asked, as the error `Unanswered`
    and the printed commands name it; where the run asks anew, the answer is refused.

    Raises:
        JobError: Nothing asks, or what asked was answered or changed since.
        Held: Another command writes the run.
        TablesBehind: It is published, but a table of the job does not show it.
    """
    return _answered(job, date, run_id, approved=True, by=by, note=note, question=question)


def reject(
    job: str | Path,
    *,
    date: Date | None = None,
    run_id: str | None = None,
    by: str = "",
    note: str = "",
    question: str = "",
) -> DecisionMade:
    """Say no to what a run's gates ask: readers keep what they see. The rest is as in `approve`."""
    return _answered(job, date, run_id, approved=False, by=by, note=note, question=question)


def _answered(job: str | Path, date: Date | None, run_id: str | None, **given: Any) -> DecisionMade:
    from nightjar.flows.outcome import answer

    request = make_request(job, date=_date(date), run_id=run_id)
    made = answer(request, _warn, **given)
    check_tables(request, made.tables_behind)
    return made


def _warn(said: str) -> None:
    """Where a command writes a note beside its result, a program has its log."""
    logging.getLogger(__name__).warning("%s", said)


def _listed(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _silently(job: str | Path, ray: str | None, **given: Any) -> Launched:
    """`launched`, without a word on the terminal. given: as `make_request` takes it."""
    from nightjar.flows.prefect_api.server import as_found

    with as_found():
        return launched(request_to_begin(job, **given), ray)


def _date(given: Date | None) -> str | None:
    return given.isoformat() if isinstance(given, dt.date) else given
