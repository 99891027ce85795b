"""Commands that make pages and metrics of nights: report, history, evaluate."""

from __future__ import annotations

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
    OptionalRunArgument,
    PlaceOption,
    emit,
    note_aside,
    out,
    tell,
)

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
    from nightjar.flows.pages.report import writing
    from nightjar.flows.reports import ReportWritten
    from nightjar.inference.run.request import make_request
    from nightjar.inference.storage.protocol import is_local

    request = make_request(job, date=date, run_id=run_id, scores=False)
    request.check_owner()
    made, _ = writing.write(request)
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
    from nightjar.flows.pages.report.overview import MAX_NIGHTS, by_date, history_page
    from nightjar.flows.pages.standing import night_listed
    from nightjar.inference.history.run_status import list_runs
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date, scores=False)
    most = max(lines, MAX_NIGHTS) if show else lines
    runs = list_runs(request, most)
    found = by_date(runs)
    if as_json:
        emit([night_listed(each) for each in found[:lines]])
    else:
        out.print(tables.history(request.job.name, found[:lines]))
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
    from nightjar.flows.pages.evaluated import late_text
    from nightjar.flows.pages.report import writing
    from nightjar.inference.history.evaluation import evaluate_late
    from nightjar.inference.run.request import make_request
    from nightjar.inference.validation.evaluations import evaluation_uri

    request = make_request(job, date=date, run_id=run_id, scores=False)
    night = request.date if date else None
    made = evaluate_late(request, run_id, night, labels=labels or ())
    writing.leave(replace(request, run_id=made.run_id, date=made.date), note_aside)
    if as_json:
        emit(made)
    else:
        tell(late_text(made, evaluation_uri(request.output, made)))
