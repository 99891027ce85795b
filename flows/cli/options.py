"""What the commands share: options, the consoles, and printing of JSON and errors.

Commands are grouped by purpose: `running` a job, `looking` at its runs, `publishing` (what readers see), `scheduling`.
Ray, Prefect and the models' frameworks are imported inside a command, so that help, completion and an error in the job
file need not wait for them.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from nightjar.flows.pages.escaping import visible
from nightjar.inference.errors import Held, Interrupted, JobError, NightjarError, Unanswered
from nightjar.inference.jsonform import to_json

if TYPE_CHECKING:
    from nightjar.inference.run.request import RunRequest

EXIT_USAGE = 2

_WIDE = 240
"""The width in columns of output that does not go to a terminal."""

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job file (YAML).")]
OptionalRunArgument = Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run: its date, or its name.")]
FolderArgument = Annotated[str, typer.Argument(metavar="DIR", help="A folder of job files, or one job file.")]
DateOption = Annotated[
    str | None,
    typer.Option(
        "--date",
        help="Logical date, as 2026-11-19, or as 2026-11-19T05 in UTC if the job is due several times a day. "
        "Default: today in the job's time zone, or the last time the job was due.",
    ),
]
PlaceOption = Annotated[
    str | None, typer.Option("--date", help="The date of the output, if output.uri has {date}. Default: today.")
]
NightOption = Annotated[
    str | None, typer.Option("--date", help="The night's logical date, instead of RUN, or if output.uri has {date}.")
]
LatestOption = Annotated[str | None, typer.Option("--date", help="Logical date. Default: the latest night.")]
RunOption = Annotated[str | None, typer.Option("--run-id", help="Name of the run. Default: its date.")]
LinesOption = Annotated[int, typer.Option("--lines", min=1, help="The most lines of a table.")]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", help="Score only the first shards with at least this many rows; never published."),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help="An existing cluster: host:port, ray://host:port or auto. Default: NIGHTJAR_RAY, else one of its own.",
    ),
]
EngineOption = Annotated[
    str,
    typer.Option("--engine", help="Where to score: ray, or local (in this process, without Ray; for small nights)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON to standard output, for machines.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show the messages of Ray and Prefect.")]


def needed_run(run_id: str | None, date: str | None) -> str | None:
    """The run's name; None if it is named by its date.

    Raises:
        JobError: Neither is given.
    """
    if not run_id and date is None:
        raise JobError("which run? Name it: RUN (its date, or its name), or --date")
    return run_id


class Terminal(Console):
    """Rich's console, safe for text from outside: control characters are shown, and have no effect.

    Output to a file or a pipe is not folded to Rich's 80 columns, so that each cell stays on its line, for `grep` and
    mail.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = _WIDE

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(visible(each) if isinstance(each, str) else each for each in objects), **options)

    def print_json(self, *arguments: Any, **options: Any) -> None:
        super().print_json(*arguments, **{"ensure_ascii": True, **options})


out = Terminal()
err = Terminal(stderr=True)


def tell(text: str) -> None:
    """Print text unchanged: without Rich's highlighting, markup and line breaks."""
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def say(message: str) -> None:
    """Print an error message to standard error."""
    err.print(f"nightjar: {message}", style="bold red", highlight=False, markup=False, soft_wrap=True)


def note_aside(text: str) -> None:
    """Print a note to standard error: what was asked for is done, and this is not."""
    err.print(f"Note: {text}", highlight=False, markup=False, soft_wrap=True)


def lead_readers(request: RunRequest, date: str | None = None) -> None:
    """Update `latest/` and `dates/` to what readers see now, always including this date. If that fails, say so.

    Those of another job's output are left alone: a job file that was copied may still name it.
    """
    from nightjar.inference.output import latest_view

    try:
        request.check_owner()
    except NightjarError as error:
        note_aside(f"latest/ and dates/ were left as they are: {error}")
        return
    if note := latest_view.refresh(request.storage, request.output, request.job.name, date):
        note_aside(note)


emitted: list[bool] = []
"""Not empty once the command has printed its result as JSON."""

_STATES = {Held.exit_code: "held", Unanswered.exit_code: "asks", Interrupted.exit_code: "interrupted"}
"""Exit code → the state of a command that did not do what it should; else it failed."""


def emit(report: Any, *, one_line: bool = False) -> None:
    """Print a command's result as JSON: a record of `reports`, or a list of them.

    one_line: print one line, for output of which the last line is read.
    """
    emitted.append(True)
    data = [to_json(each) for each in report] if isinstance(report, list | tuple) else to_json(report)
    print(json.dumps(data), flush=True) if one_line else out.print_json(data=data)


def emit_line(record: Any) -> None:
    """Print one record of many as a line of JSON, as soon as it is known."""
    print(json.dumps(to_json(record)), flush=True)


def emit_problem(exit_code: int, error: str, message: str) -> None:
    """With --json, print why the command failed to standard output, too, on one line, in place of a result."""
    from nightjar.flows.reports import Problem

    if "--json" in sys.argv and not emitted:
        emit_line(Problem(_STATES.get(exit_code, "failed"), error, message))


def aside(wanted: bool) -> AbstractContextManager[object]:
    """With --json, send what the job's code prints to standard error, because standard output is for the result."""
    return redirect_stdout(sys.stderr) if wanted else nullcontext()
