"""Commands that make pages: the report of a night."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from nightjar.flows.cli.options import (
    DateOption,
    JobArgument,
    JsonOption,
    OptionalRunArgument,
    RunIdOption,
    as_json_too,
    emit,
    named_run,
    tell,
)

OpenOption = Annotated[bool, typer.Option("--open", help="Open it in the browser.")]


def report(
    job: JobArgument,
    run_name: OptionalRunArgument = None,
    date: DateOption = None,
    run_id: RunIdOption = None,
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

    with as_json_too(as_json, {}):
        request = make_request(job, date=date, run_id=named_run(run_name, run_id), scores=False)
        made = writing.write(request)
    if as_json:
        emit(ReportWritten(request.job.name, request.run_id, made.line.revision, made.line.standing.state, made.page))
    else:
        tell(made.page)
    if show:
        open_page(made.page if is_local(made.page) else request.storage.read(made.page), request.job.name)


def open_page(page: str | bytes, name: str) -> None:
    """Open a page in the browser. page: its path, or its content, which is written into a temporary folder."""
    if isinstance(page, bytes):
        path = Path(tempfile.mkdtemp(prefix="nightjar-")) / f"{name}.html"
        path.write_bytes(page)
        page = str(path)
    webbrowser.open(Path(page).absolute().as_uri())
