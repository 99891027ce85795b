"""The content of the pages of served jobs, read anew from the storage of each job. Nothing is written."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from nightjar.flows.pages.advice import Commands
from nightjar.flows.pages.report import writing
from nightjar.flows.pages.report.overview import MAX_NIGHTS, Served, ShownNight, by_date, history_page
from nightjar.inference.errors import JobError
from nightjar.inference.history.run_status import UNREADABLE, RunLine, list_runs
from nightjar.inference.job.checks import BASELINE
from nightjar.inference.job.file import load_job
from nightjar.inference.job.locations import is_dated
from nightjar.inference.job.model import Job
from nightjar.inference.output import revisions as revs
from nightjar.inference.run.request import RunRequest, is_run_id, make_request

_SHOWN, _LOOKED_AT = 5, 12
"""The nights of a job on the page of all jobs; and the most runs that are read to find them, as some are no nights."""

_DAYS, _MORE_DAYS = 7, 31
"""Where each night has an output of its own, the days that are looked at: for the page of all jobs, and for a job's."""


def newest(served: Served) -> Served:
    """The job with its newest nights, and the commands for those that need a person.

    Raises:
        JobError: Its file is wrong now.
        StorageError: Its storage refused or failed.
    """
    job = _job(served)
    lines = [line for line in _lines(served, job, _DAYS, _LOOKED_AT) if line.run_id != BASELINE]
    # Of one date, the night itself comes before trials, which have other names.
    lines.sort(key=lambda line: (line.date or line.run_id, line.run_id == line.date, line.began), reverse=True)
    nights = []
    for place, line in enumerate(lines[:_SHOWN]):
        run = writing.run_address(line.run_id, _place(job, line.date)) if line.revision else ""
        night = ShownNight(line=line, report=run and f"{served.page}{run}")
        if night.asks or (place == 0 and night.tone == "bad"):
            night = replace(night, needs_person=True, commands=_commands(served, job, line))
        nights.append(night)
    return replace(served, nights=tuple(nights))


def nights_page(served: Served) -> str:
    """The page of all nights of a job. Raises as `newest`."""
    job = _job(served)
    lines = _lines(served, job, _MORE_DAYS, MAX_NIGHTS)
    nights = by_date(lines)[:MAX_NIGHTS]

    def report(night: RunLine) -> str:
        return writing.run_address(night.run_id, _place(job, night.date)) if night.revision else ""

    around = {"All jobs": "../../", **({"Its deployment in Prefect": served.deployment} if served.deployment else {})}
    return history_page(job.name, job.output.uri, nights, around, report)


def report_page(served: Served, run_id: str, date: str | None) -> str | None:
    """A night's report, made anew: it says how the night stands now, also if its process was killed since.

    date: of a job whose nights have an output each. None: nothing of such a run was begun.

    Raises:
        JobError: The file of the job is wrong now, or the date.
        StorageError: Its storage refused or failed.
    """
    request = _request(served, run_id, date)
    if request is None:
        return None
    return writing.made(request, {"All jobs": "../../../", f"All nights of {served.name}": "../"})[1]


def _job(served: Served) -> Job:
    job = load_job(served.path)
    if job.name != served.name:
        raise JobError(f"{served.path}: name: is {job.name} now; start `nightjar serve` again, which serves that job")
    return job


def _request(served: Served, run_id: str, date: str | None) -> RunRequest | None:
    """The run of this name, if anything of it was begun."""
    job = _job(served)
    if not is_run_id(run_id):
        return None
    request = make_request(served.path, date=date if is_dated(job.output.uri) else None, run_id=run_id, scores=False)
    return request if revs.newest_number(request.storage, request.run_uri) else None


def _lines(served: Served, job: Job, days: int, most: int) -> list[RunLine]:
    """The runs of a job; where nights have an output each, those of the last days."""
    today = job.date_of(dt.datetime.now(dt.UTC))
    back = range(days if is_dated(job.output.uri) else 1)
    places = {night.output.uri: night for night in (job.at(today - dt.timedelta(day)) for day in back)}
    request = make_request(served.path, scores=False)
    return [line for night in places.values() for line in list_runs(replace(request, job=night), most)]


def _place(job: Job, date: str) -> str:
    """The date that a run's output is named by; empty if all nights have the same output."""
    return date if is_dated(job.output.uri) else ""


def _commands(served: Served, job: Job, line: RunLine) -> dict[str, str]:
    """The commands that a person can type about a run, by what they do."""
    if line.standing.state == UNREADABLE:  # its request may not be made, and nothing is advised
        return {}
    place = _place(job, line.date) or None
    request = make_request(served.path, date=place, run_id=line.run_id, scores=False)
    return Commands(request).of_standing(line.standing)
