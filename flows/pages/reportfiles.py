"""Leaves the report of a night beside its manifest, and knows where it is served. It never fails a night."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from urllib.parse import quote, urlencode

from nightjar.flows.pages.advice import Commands
from nightjar.inference.errors import StorageError
from nightjar.inference.history.night import REPORT, Report, collect
from nightjar.inference.output import revisions as revs
from nightjar.inference.run.account import Account
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import join

REPORTS_VARIABLE = "NIGHTJAR_REPORTS"
"""The variable that has the address where people reach the reports; `nightjar serve` sets it for its runs."""


def job_address(name: str) -> str:
    """The page of all nights of a job, below the base."""
    return f"jobs/{quote(name, safe='')}/"


def run_address(run_id: str, date: str) -> str:
    """A night's report, below its job's page. date: of a job whose nights have an output each; else empty."""
    return f"runs/{quote(run_id, safe='')}" + (f"?{urlencode({'date': date})}" if date else "")


def reports_base() -> str:
    """The address where people reach the reports, by `NIGHTJAR_REPORTS`; empty if that names none."""
    base = os.environ.get(REPORTS_VARIABLE, "").rstrip("/")
    return base if base.startswith(("http://", "https://")) else ""


def served_at(request: RunRequest) -> str:
    """Where a person finds the report of this run; empty if nothing is known that serves it."""
    if not (base := reports_base()):
        return ""
    return f"{base}/{job_address(request.job.name)}{run_address(request.run_id, request.date if request.dated else '')}"


def write(request: RunRequest, account: Account | None = None) -> Report:
    """Make the report of the run's newest revision from what lies in storage, and write it; an earlier one is replaced.
    account: where the time of the run went, if the caller has it. Returns what it says.

    Raises:
        JobError: The run has no revision.
        StorageError: The storage refused or failed.
    """
    report, page = made(request, account=account)
    request.storage.write(report.page, page.encode())
    return report


def made(
    request: RunRequest,
    around: Mapping[str, str] = MappingProxyType({}),
    account: Account | None = None,
) -> tuple[Report, str]:
    """Make the report as `write` does, and write nothing. around: other pages, as in `report_page`. Returns what
    the report says, and the page.

    Raises:
        JobError: The run has no revision.
        StorageError: The storage refused or failed.
    """
    from nightjar.flows.pages.reportpage import report_page

    report = collect(request, account)
    about = Commands(request)
    takes_back = {"if it is wrong": about.take_back} if report.line.shown else {}
    return report, report_page(report, {**about.of_run(report), **takes_back}, around)


def leave(request: RunRequest, warn: Callable[[str], object], account: Account | None = None) -> Report | None:
    """Write the report at the end of a run, if anything of it was begun. Returns what it says; None if there is none.

    warn: told in a sentence why there is none. account: as in `write`.
    """
    try:
        if revs.newest_number(request.storage, request.run_uri):
            return write(request, account)
    except Exception as error:  # noqa: BLE001 - the night has ended as it has, whatever becomes of its page
        warn(f"no report of this night: {type(error).__name__}: {error}; `nightjar report` makes it again")
    return None


def written(request: RunRequest) -> str:
    """The URI of the report of the run's newest revision; empty if there is none."""
    try:
        number = revs.newest_number(request.storage, request.run_uri)
        uri = join(revs.revision_uri(request.run_uri, number), REPORT)
        return request.storage.stat(uri).uri if number else ""
    except StorageError:
        return ""
