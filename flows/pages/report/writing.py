"""Leaves the report of a night beside its manifest. A report that cannot be made never fails a night."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from nightjar.flows.pages.advice import advised, committing, making_way, near, taking_back, typed
from nightjar.flows.pages.escaping import visible
from nightjar.inference.errors import Missing, StorageError
from nightjar.inference.history.night import REPORT, Report, collect
from nightjar.inference.output import revisions as revs
from nightjar.inference.output.publications import Snapshot
from nightjar.inference.output.targets import mendable
from nightjar.inference.run.account import Account
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import Storage, join

REMADE = 10
"""The most reports that are made again at once."""

_MARKED_AT_ONCE = 16

MAIN = '<main id="main" tabindex="-1">'
"""Where a report's own text begins; what happened since is written there."""

if TYPE_CHECKING:
    from nightjar.flows.pages.report.charts import Chart
    from nightjar.flows.pages.report.page import Charts


@dataclass(frozen=True, slots=True)
class Left:
    """What a run leaves for its pages. report: the URI of its report, if it has one. plots: those that say most, of a
    report that was just made.
    """

    report: str = ""
    plots: tuple[Chart, ...] = ()


def write(request: RunRequest, account: Account | None = None) -> tuple[Report, Charts]:
    """Make the report of the run's newest revision from what lies in storage, and write it; an earlier one is replaced.
    account: where the time of the run went, if the caller has it. Returns what it says, and its plots.

    Raises:
        JobError: The run has no revision.
        StorageError: The storage refused or failed.
    """
    report, charts, page = made(request, account=account)
    request.storage.write(report.page, page.encode())
    return report, charts


def made(
    request: RunRequest,
    around: Callable[[Report], Mapping[str, str]] = lambda _: {},
    account: Account | None = None,
) -> tuple[Report, Charts, str]:
    """Make the report as `write` does, and write nothing. around: gives other pages, as in `report_page`. Returns what
    the report says, its plots and the page.

    Raises:
        JobError: The run has no revision.
        StorageError: The storage refused or failed.
    """
    from nightjar.flows.pages.report.page import drawn, report_page

    report = collect(request, account)
    charts = drawn(report)
    line, job, program = report.line, request.job_path, "nightjar"
    commands = {
        **advised(request, line.standing, job, program),
        **making_way(request, report.instead, job, program),
        **({"commit": committing(request, job, program)} if mendable(report.late_tables) else {}),
        **taking_back(request, line, job, program),
    }
    return report, charts, report_page(report, charts, commands, around(report))


def leave(
    request: RunRequest, warn: Callable[[str], object], *, finished: bool = False, account: Account | None = None
) -> Left:
    """Write the report at the end of a run. warn: told in a sentence why there is none. finished: nothing was scored,
    because all was published before; then a report that is there is left as it is. account: as in `write`.
    """
    try:
        if finished and (there := written(request)):
            return Left(there)
        if number := revs.newest_number(request.storage, request.run_uri):
            report, charts = write(request, account)
            _mark_before(request, number, warn)
            return Left(report.page, charts.first)
    except Exception as error:  # noqa: BLE001 - the night has ended as it has, whatever becomes of its page
        warn(f"no report of this night: {type(error).__name__}: {error}; `nightjar report` makes it again")
    return Left()


def renew(changed: Mapping[str, RunRequest], after: Snapshot, warn: Callable[[str], object]) -> None:
    """Make the reports true again that lie in storage, of runs of which readers see something else now. changed: each
    run's request. after: the publication that changed it. warn: as in `leave`.

    Those of the last `REMADE` runs by name are made again; others are marked, because making one takes about a second.
    """
    there = [run for run in sorted(changed) if written(changed[run])]
    for run in there[-REMADE:]:
        leave(changed[run], warn)
    with ThreadPoolExecutor(_MARKED_AT_ONCE) as pool:
        list(pool.map(lambda run: _mark(changed[run], after, warn), there[:-REMADE]))


def _mark(request: RunRequest, after: Snapshot, warn: Callable[[str], object]) -> None:
    """Write above a report what happened since it was made."""
    shown = after.runs.get(request.run_id)
    seen = f"r{shown.revision} of this run" if shown else "nothing of this run"
    again = shlex.join(["nightjar", "report", request.job_path, *request.words])
    said = (
        f"Since this page was made: {after.note}, publication {after.number} of {after.at[:19]} UTC. Now readers see "
        f"{seen}. This page is made again by: {again}"
    )
    try:
        _write_above(request.storage, written(request), escape(visible(said)))
    except (StorageError, ValueError) as error:
        warn(f"the report of the run {request.run_id!r} tells of before: {error}; `{again}` makes it again")


def _mark_before(request: RunRequest, number: int, warn: Callable[[str], object]) -> None:
    """Write above the report of the revision before this one, if there is one, that it is no longer the newest."""
    uri = join(revs.revision_uri(request.run_uri, number - 1), REPORT)
    newer = Markup('Since this page was made, <a href="../r{0}/{1}">r{0}</a> of this run was made.').format(
        number, REPORT
    )
    try:
        _write_above(request.storage, uri, newer)
    except Missing:
        return
    except (StorageError, ValueError) as error:
        warn(f"{uri} does not say that there is a newer revision: {error}")


def _write_above(storage: Storage, uri: str, said: Markup) -> None:
    """Write a sentence above a report, unless it is there."""
    page = storage.read(uri).decode()
    if MAIN not in page:
        raise StorageError(f"{uri} is not as it was written")
    if said not in page:
        marked = page.replace(MAIN, f'{MAIN}\n<p class="verdict open" role="note">{said}</p>', 1)
        storage.write(uri, marked.encode())


def none_written(request: RunRequest) -> str:
    """That a run left no report which should have left one, and which command makes it."""
    again = shlex.join([typed("nightjar"), "report", near(request.job_path), *request.words])
    return f"none could be written, the run's log says why; `{again}` makes it"


def written(request: RunRequest) -> str:
    """The URI of the report of the run's newest revision; empty if there is none."""
    try:
        number = revs.newest_number(request.storage, request.run_uri)
        uri = join(revs.revision_uri(request.run_uri, number), REPORT)
        return request.storage.stat(uri).uri if number else ""
    except (Missing, StorageError):
        return ""
