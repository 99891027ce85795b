"""The content of the pages of served jobs, read anew from the storage of each job. Nothing is written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from nightjar.flows.pages import reportfiles
from nightjar.flows.pages.advice import Commands
from nightjar.flows.pages.reportfiles import job_address
from nightjar.flows.pages.reportpage import MAX_NIGHTS, by_date, history_page, templates, tone
from nightjar.inference.errors import JobError
from nightjar.inference.history.run_status import RunLine, list_runs
from nightjar.inference.job.checks import BASELINE
from nightjar.inference.job.file import load_job
from nightjar.inference.job.locations import is_dated
from nightjar.inference.job.model import Job
from nightjar.inference.output import revisions as revs
from nightjar.inference.run.request import RunRequest, is_run_id, make_request

_ORDER = ("asks", "bad", "open", "good")
"""The jobs that need a person come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownNight:
    """A night."""

    line: RunLine
    """How the run of the night stands, and its figures."""

    report: str = ""
    """The address of the report, from the page of all jobs; empty if nothing of the night was begun."""

    needs_person: bool = False
    """Whether a person must answer the night or mend it."""

    commands: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What a person can do about a night that needs a person, each command under a word for it."""


@dataclass(frozen=True, slots=True)
class Served:
    """A job that is served."""

    name: str
    """The name of the job."""

    path: str
    """The path of the job's file."""

    schedule: str = ""
    """The schedule in words."""

    deployment: str = ""
    """The address of Prefect's page of the job's deployment; empty if it is not known."""

    nights: tuple[ShownNight, ...] = ()
    """The newest nights, the latest first."""

    problem: str = ""
    """Why the nights cannot be shown, for people; empty if they can."""

    @property
    def page(self) -> str:
        """The address of the page of all its nights, from the page of all jobs."""
        return job_address(self.name)

    @property
    def last(self) -> ShownNight | None:
        """Its last night, if it has one."""
        return self.nights[0] if self.nights else None

    @property
    def seen(self) -> ShownNight | None:
        """The newest of the nights shown that readers see."""
        return next((each for each in self.nights if each.line.shown), None)

    @property
    def needing(self) -> tuple[ShownNight, ...]:
        """The nights that need a person."""
        return tuple(each for each in self.nights if each.needs_person)

    @property
    def order(self) -> tuple[int, str]:
        """Its place among the jobs."""
        asks = any(each.line.standing.state == "asks" for each in self.nights)
        kind = "asks" if asks else "bad" if self.problem else tone(self.last.line) if self.last else "open"
        return _ORDER.index(kind), self.name


def index_page(jobs: Sequence[Served], prefect: str = "") -> str:
    """The page. prefect: the address of Prefect's pages."""
    ordered = sorted(jobs, key=lambda job: job.order)
    needing = [job for job in ordered if job.problem or job.needing]
    return templates().get_template("index.html").render(jobs=ordered, needing=needing, prefect=prefect)


def problem_page(title: str, said: str) -> str:
    """The page in place of one that cannot be shown. said: why, and what to do."""
    return templates().get_template("problem.html").render(title=title, said=said)


_SHOWN, _LOOKED_AT = 5, 12
"""The nights of a job on the page of all jobs; and the most runs that are read to find them, as some are no nights."""

_LAST, _MORE = 7, 31
"""Where each night has an output of its own, the nights that are looked at: for the page of all jobs, and a job's."""


def newest(served: Served) -> Served:
    """The job with its newest nights, and the commands for those that need a person.

    Raises:
        JobError: Its file is wrong now.
        StorageError: Its storage refused or failed.
    """
    job = _job(served)
    request = make_request(served.path)
    lines = [line for line in _lines(request, job, _LAST, _LOOKED_AT) if line.run_id != BASELINE]
    # Of one date, the night itself comes before trials, which have other names.
    lines.sort(key=lambda line: (line.date or line.run_id, line.run_id == line.date, line.began), reverse=True)
    nights = []
    for place, line in enumerate(lines[:_SHOWN]):
        report = _report(job, line)
        night = ShownNight(line=line, report=report and f"{served.page}{report}")
        if line.standing.state == "asks" or (place == 0 and tone(line) == "bad"):
            night = replace(night, needs_person=True, commands=Commands(line.of(request)).of_standing(line.standing))
        nights.append(night)
    return replace(served, nights=tuple(nights))


def nights_page(served: Served) -> str:
    """The page of all nights of a job. Raises as `newest`."""
    job = _job(served)
    lines = _lines(make_request(served.path), job, _MORE, MAX_NIGHTS)
    nights = by_date(lines)[:MAX_NIGHTS]
    around = {"All jobs": "../../", **({"Its deployment in Prefect": served.deployment} if served.deployment else {})}
    return history_page(job.name, job.output.uri, nights, around, partial(_report, job))


def report_page(served: Served, run_id: str, date: str | None) -> str | None:
    """A night's report, made anew: it says how the night stands now, also if its process was killed since.

    date: of a job whose nights have an output each. None: nothing of such a run was begun.

    Raises:
        JobError: The file of the job is wrong now, or the date.
        StorageError: Its storage refused or failed.
    """
    job = _job(served)
    if not is_run_id(run_id):
        return None
    request = make_request(served.path, date=date if is_dated(job.output.uri) else None, run_id=run_id)
    if not revs.newest_number(request.storage, request.run_uri):
        return None
    return reportfiles.made(request, {"All jobs": "../../../", f"All nights of {served.name}": "../"})[1]


def _job(served: Served) -> Job:
    job = load_job(served.path)
    if job.name != served.name:
        raise JobError(f"{served.path}: name: is {job.name} now; start `nightjar serve` again, which serves that job")
    return job


def _lines(request: RunRequest, job: Job, nights: int, most: int) -> list[RunLine]:
    """The runs of a job; where nights have an output each, those of the last nights. job: with its dates unfilled."""
    dates = job.times.last(dt.datetime.now(dt.UTC), nights if request.dated else 1)
    places = {night.output.uri: night for night in map(job.at, dates)}
    return [line for night in places.values() for line in list_runs(replace(request, job=night), most)]


def _report(job: Job, line: RunLine) -> str:
    """The address of a night's report, from the page of the job; empty if nothing of it was begun."""
    date = line.date if is_dated(job.output.uri) else ""
    return reportfiles.run_address(line.run_id, date) if line.revision else ""
