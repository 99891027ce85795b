"""Leaves the report of a night beside its manifest. A report that cannot be made never fails a night."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nightjar.flows.pages.advice import advised, taking_back
from nightjar.inference.errors import Missing, StorageError
from nightjar.inference.output import revisions as revs
from nightjar.inference.run.reporting import REPORT, Report, collect
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import join

if TYPE_CHECKING:
    from nightjar.flows.pages.report.charts import Chart
    from nightjar.flows.pages.report.page import Charts


def write(request: RunRequest) -> tuple[Report, Charts]:
    """Make the report of the run's newest revision from what lies in storage, and write it; an earlier one is replaced.
    Returns what it says, and its plots.

    Raises:
        JobError: The run has no revision.
        StorageError: The storage refused or failed.
    """
    from nightjar.flows.pages.report.page import drawn, report_page

    report = collect(request)
    charts = drawn(report)
    line, job, program = report.line, request.job_path, "nightjar"
    commands = {
        **advised(request, line.standing, job, program),
        **taking_back(request, line, report.newest, job, program),
    }
    page = report_page(report, charts, commands)
    request.storage.write(report.page, page.encode())
    return report, charts


def leave(request: RunRequest, warn: Callable[[str], object], *, finished: bool = False) -> tuple[Chart, ...]:
    """Write the report at the end of a run. warn: told in a sentence why there is none. finished: nothing was scored,
    because all was published before; then a report that is there is left as it is. Returns the plots that say most.
    """
    try:
        if revs.newest_number(request.storage, request.run_uri) and not (finished and written(request)):
            return write(request)[1].first
    except Exception as error:  # noqa: BLE001 - the night has ended as it has, whatever becomes of its page
        warn(f"no report of this night: {type(error).__name__}: {error}; `nightjar report` makes it again")
    return ()


def written(request: RunRequest) -> str:
    """The URI of the report of the run's newest revision; empty if there is none."""
    try:
        number = revs.newest_number(request.storage, request.run_uri)
        uri = join(revs.revision_uri(request.run_uri, number), REPORT)
        return request.storage.stat(uri).uri if number else ""
    except (Missing, StorageError):
        return ""
