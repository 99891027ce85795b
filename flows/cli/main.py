"""The `nightjar` command: runs one of `commands`, and turns what went wrong into one sentence and an exit code."""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer

from nightjar.flows.cli import (
    logs,
    looking,
    publishing,
    running,
    scheduling,
)
from nightjar.flows.cli.options import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    emit_problem,
    err,
    say,
)
from nightjar.inference.errors import Interrupted, NightjarError, Terminated

EXAMPLES = """Examples:

\b
  nightjar check job.yaml                       what would go wrong tonight
  nightjar run job.yaml --date 2026-11-19       one night, now
  nightjar serve jobs/                          every night, with pages
  nightjar show job.yaml 2026-11-19             what happened in it
"""

app = typer.Typer(
    name="nightjar",
    epilog=EXAMPLES,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"nightjar {version('nightjar-batch')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and exit.")] = False,
) -> None:
    """Score a data lake by morning: every row once, published all or nothing."""


for command in (
    running.run,
    running.plan,
    running.check,
    looking.status,
    looking.runs,
    looking.show,
    logs.logs,
    running.retry,
    running.replay,
    looking.files,
    publishing.publications,
    publishing.rollback,
    publishing.unpublish,
    publishing.republish,
    publishing.tables,
    scheduling.serve,
    scheduling.deploy,
    scheduling.backfill,
    looking.doctor,
):
    app.command()(command)


def main() -> None:
    """Entry point."""
    _spell_out_the_unprintable()
    signal.signal(signal.SIGTERM, _interrupt)
    # Before Prefect is imported: its notice about telemetry is none of this command's output.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt  # it was one, which typer has turned into an exit code
        sys.exit(code)
    except NightjarError as error:
        say(str(error))
        for note in getattr(error, "__notes__", ()):
            err.print(note, highlight=False, markup=False, soft_wrap=True)
        if isinstance(error, Interrupted):
            _leave(error.exit_code)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        say("interrupted")
        _leave(EXIT_INTERRUPTED)
    except typer.Abort:
        _leave(EXIT_INTERRUPTED)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _misused(error, "--json" in sys.argv)
        sys.exit(EXIT_USAGE)


def _leave(code: int) -> NoReturn:
    """End an interrupted command, whose servers and cluster are let go of, without taking the interpreter apart.

    A thread that waited in Ray's own code when the signal came may still be there, and would fault then.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it may be gone
            stream.flush()
    os._exit(code)


def _spell_out_the_unprintable() -> None:
    """On a terminal that is not UTF-8: an arrow that it does not have must not fail a night that is published."""
    for stream in (sys.stdout, sys.stderr):
        # UTF-8 has everything, and how it takes a file name that is no text is not changed.
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")


def _interrupt(*_: object) -> None:
    raise Terminated


def _misused(error: Any, as_json: bool) -> None:
    """An unknown command or option, as the parser of the command line reports it."""
    message = error.format_message().rstrip(".")
    if as_json:
        emit_problem("failed", "UsageError", message)
    say(message)
    context = getattr(error, "ctx", None)
    if context is not None:
        err.print(context.get_usage(), highlight=False, markup=False, soft_wrap=True)
    path = context.command_path if context else "nightjar"
    err.print(f"Try `{path} --help`.", highlight=False, markup=False)


if __name__ == "__main__":
    main()
