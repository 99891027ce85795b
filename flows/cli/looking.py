"""Commands that show runs and what readers see of them, and that make pages and metrics of nights."""

from __future__ import annotations

import datetime as dt
import tempfile
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from nightjar.flows.cli.options import (
    DateOption,
    JobArgument,
    JsonOption,
    LatestOption,
    LinesOption,
    NightOption,
    OptionalRunArgument,
    PlaceOption,
    emit,
    emit_line,
    lead_readers,
    needed_run,
    note_aside,
    out,
    tell,
)
from nightjar.inference.errors import JobError


def status(
    job: JobArgument,
    run_id: OptionalRunArgument = None,
    date: DateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far a run is, while it runs and after.

    By default today's run. The ledger tells it, so this needs neither Ray nor Prefect.
    """
    from nightjar.flows import api
    from nightjar.flows.pages import standing

    found = api.status(job, date=date, run_id=run_id)
    emit(found) if as_json else tell(standing.status_text(found))


def runs(
    job: JobArgument,
    date: PlaceOption = None,
    lines: LinesOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List the runs of a job, and what readers see.

    The latest nights come first, then runs with other names. Below the list: why a run is not published, and which
    command to use.
    """
    from nightjar.flows.cli import tables
    from nightjar.flows.pages import standing
    from nightjar.inference.history.run_status import list_runs
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date)
    found = standing.runs_listed(request, list_runs(request, lines))
    if as_json:
        emit(found)
        return
    out.print(tables.runs(request, found))
    for each in found:
        if each.cause or each.tried_again or each.commands:
            tell(standing.reason_text(each))


def show(
    job: JobArgument,
    run_id: OptionalRunArgument = None,
    date: DateOption = None,
    lines: LinesOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Show one run's shards, failures and quarantine.

    By default today's run. Shards without a result come first, then those that were retried, then the slowest.
    """
    from nightjar.flows.cli import tables
    from nightjar.flows.pages import standing
    from nightjar.flows.reports import RunShown
    from nightjar.inference.history.run_tables import RunReport
    from nightjar.inference.records import as_line
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date, run_id=run_id)
    found = standing.status(request)
    goes_on = found.state == "running"
    report = RunReport(request, found.revision, goes_on=goes_on) if found.revision else None
    shards, incidents = (report.shards(lines), report.incidents(lines)) if report else ([], [])
    if as_json:
        emit(RunShown(**as_line(found), shards_shown=tuple(shards), incidents=tuple(incidents)))
        return
    tell(standing.status_text(found))
    if report and shards:
        out.print(tables.shards(shards, len(report.plan)))
        if said := tables.printed(shards):
            tell(said)
    if report and incidents:
        tell(tables.incidents(incidents, report.all_incidents, lines))


def diff(
    job: JobArgument,
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A run: its date, or its name.")],
    now: Annotated[str, typer.Argument(metavar="NOW", help="The run that is compared with it.")],
    date: PlaceOption = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            help="A column by which a row is found in both runs; may be repeated. Default: late_labels.key, or a check "
            "on unique keys.",
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", min=0, help="The most rows of an output that are listed; 0: read no rows.")
    ] = 20,
    lines: LinesOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: figures, metrics, columns and rows.

    Columns are compared if the job describes them (profile); those that are furthest apart come first. Rows are joined
    by a key; those whose outputs moved most come first.
    """
    from nightjar.flows import api
    from nightjar.flows.cli import tables

    found = api.diff(job, before, now, date=date, key=key or (), rows=rows)
    if as_json:
        emit(found)
        return
    for each in tables.compared(found, lines):
        tell(each) if isinstance(each, str) else out.print(each)


def files(
    job: JobArgument,
    run_id: OptionalRunArgument = None,
    date: LatestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the exact files of a published night.

    One file per line; by default those of the latest night. With --json also rows and bytes, as in the output's
    `files.json`.
    """
    from nightjar.inference.output import latest_view, nights
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date, run_id=run_id)
    found = nights.published(request.storage, request.output, run_id, request.date if date else None)
    if as_json:
        print(latest_view.as_json(found), end="")
    else:
        for uri in found.uris:
            print(uri)
    lead_readers(request, found.date)


def logs(
    job: JobArgument,
    run_id: OptionalRunArgument = None,
    date: NightOption = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard", help="Only what was printed while this shard was scored; the beginning of its id is enough."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a run's workers printed.

    Each line has time (UTC), worker, shard, stream and text. If much was printed, the first and the last lines are
    kept.
    """
    from nightjar.flows.pages.advice import Commands, no_run
    from nightjar.flows.reports import LogLine
    from nightjar.inference.logs import printed
    from nightjar.inference.output.revisions import newest_revision
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date, run_id=needed_run(run_id, date))
    newest = newest_revision(request.storage, request.run_uri)
    if newest is None:
        raise JobError(no_run(request))
    shown = 0
    for line in printed.all_lines(request.storage, newest.uri):
        if line.shard.startswith(shard or ""):
            shown += 1
            at = dt.datetime.fromtimestamp(line.at, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            said = LogLine(at, line.worker, line.shard, line.attempt, line.stream, line.text)
            text = f"{at} {line.worker} {line.shard or '-'} {line.stream:<4} {line.text}"
            emit_line(said) if as_json else tell(text)
    plan = newest.plan() if shard and not shown else None
    if shard and plan is not None and not any(each.startswith(shard) for each in plan.ids()):
        raise JobError(f"--shard {shard}: no shard of this run begins so; `{Commands.here(request).show}` lists them")
    if not shown and not as_json:
        where = f"while shard {shard} was scored" if shard else "by its workers"
        tell(f"{request.job.name} {request.run_id} r{newest.number}: nothing was printed {where}.")


OpenOption = Annotated[bool, typer.Option("--open", help="Open it in the browser.")]


def report(
    job: JobArgument,
    run_id: OptionalRunArgument = None,
    date: DateOption = None,
    show: OpenOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make the report of a night again, as it stands now.

    By default of today's run. The page lies beside the run's manifest, as report.html.
    """
    from nightjar.flows.pages import reportfiles
    from nightjar.flows.reports import ReportWritten
    from nightjar.inference.run.request import make_request
    from nightjar.inference.storage.protocol import is_local

    request = make_request(job, date=date, run_id=run_id)
    request.check_owner()
    made = reportfiles.write(request)
    if as_json:
        emit(ReportWritten(request.job.name, request.run_id, made.line.revision, made.line.standing.state, made.page))
    else:
        tell(made.page)
    if show:
        open_page(made.page if is_local(made.page) else request.storage.read(made.page), request.job.name)


def history(
    job: JobArgument,
    date: PlaceOption = None,
    lines: LinesOption = 30,
    show: OpenOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the figures of a job's nights side by side.

    The latest date comes first. --open makes a page of them, with a plot of each figure.
    """
    from nightjar.flows.cli import tables
    from nightjar.flows.pages.reportpage import MAX_NIGHTS, by_date, history_page
    from nightjar.flows.pages.standing import runs_listed
    from nightjar.inference.history.run_status import list_runs
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date)
    most = max(lines, MAX_NIGHTS) if show else lines
    found = by_date(list_runs(request, most))
    listed = runs_listed(request, found[:lines])
    emit(listed) if as_json else out.print(tables.runs(request, listed))
    if show:
        page = history_page(request.job.name, request.output, found[:MAX_NIGHTS])
        open_page(page.encode(), f"{request.job.name}-history")


def open_page(page: str | bytes, name: str) -> None:
    """Open a page in the browser. page: its path, or its content, which is written into a temporary folder."""
    if isinstance(page, bytes):
        path = Path(tempfile.mkdtemp(prefix="nightjar-")) / f"{name}.html"
        path.write_bytes(page)
        page = str(path)
    if not webbrowser.open(Path(page).absolute().as_uri()):
        note_aside(f"no browser could be started; the page is {page}")


def evaluate(
    job: JobArgument,
    run_id: OptionalRunArgument = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--labels",
            help="File, folder, pattern or table with labels; may be repeated. Default: late_labels.input.",
        ),
    ] = None,
    date: LatestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Join labels that came later to a night; keep its metrics.

    By default to the latest published night. What is published stays as it is: the metrics lie beside it, and `status`,
    `runs`, `diff` and the report show the newest. A check on a metric that does not hold is a warning.
    """
    from nightjar.flows.pages import reportfiles
    from nightjar.flows.pages.evaluated import late_text
    from nightjar.inference.history.evaluation import evaluate_late
    from nightjar.inference.run.request import make_request
    from nightjar.inference.validation.evaluations import evaluation_uri

    request = make_request(job, date=date, run_id=run_id)
    night = request.date if date else None
    made = evaluate_late(request, run_id, night, labels=labels or ())
    reportfiles.leave(replace(request, run_id=made.run_id, date=made.date), note_aside)
    if as_json:
        emit(made)
    else:
        tell(late_text(made, evaluation_uri(request.output, made)))
