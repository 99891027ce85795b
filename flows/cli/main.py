"""The `nightjar` command: runs one of the commands, and turns an error into one sentence and an exit code."""

from __future__ import annotations

import atexit
import codecs
import gc
import io
import os
import signal
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer

from nightjar.flows.cli import looking, publishing, running, scheduling, trying
from nightjar.flows.cli.options import EXIT_USAGE, emit_problem, emitted, err, say
from nightjar.inference.errors import Interrupted, NightjarError, Terminated

EXAMPLES = """Examples: nightjar run job.yaml --date 2026-11-19, nightjar serve jobs/"""

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
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Score a data lake by morning: every row once, published all or nothing."""


for command in (
    running.run,
    running.baseline,
    trying.plan,
    trying.check,
    looking.status,
    looking.runs,
    looking.show,
    looking.report,
    looking.history,
    looking.logs,
    running.retry,
    trying.replay,
    looking.diff,
    looking.files,
    looking.evaluate,
    publishing.approve,
    publishing.reject,
    publishing.publications,
    publishing.rollback,
    publishing.unpublish,
    publishing.republish,
    publishing.prune,
    publishing.tables,
    scheduling.serve,
    scheduling.deploy,
    scheduling.backfill,
    trying.doctor,
):
    app.command()(command)


def main() -> None:
    """Entry point."""
    emitted.clear()
    atexit.register(gc.freeze)  # what was imported need not be looked through at the end, which takes a second
    _spell_out_the_unprintable()
    signal.signal(signal.SIGTERM, _interrupt)
    # Set before Prefect is imported, so that its notice about telemetry is not printed.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        if code == Interrupted.exit_code:
            raise KeyboardInterrupt  # typer has turned an interruption into an exit code
        sys.exit(code)
    except NightjarError as error:
        emit_problem(error.exit_code, type(error).__name__, str(error))
        if "--verbose" in sys.argv and error.traceback:
            err.print(error.traceback, highlight=False, markup=False, soft_wrap=True)
        say(str(error))
        for note in getattr(error, "__notes__", ()):
            err.print(note, highlight=False, markup=False, soft_wrap=True)
        if isinstance(error, Interrupted):
            _leave(error.exit_code)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        emit_problem(Interrupted.exit_code, Interrupted.__name__, "interrupted; what was committed is kept")
        say("interrupted")
        _leave(Interrupted.exit_code)
    except typer.Abort:
        _leave(Interrupted.exit_code)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _misused(error)
        sys.exit(EXIT_USAGE)


def _leave(code: int) -> NoReturn:
    """End an interrupted command without shutting down the interpreter. Its servers and cluster are stopped already.

    A thread that waited in Ray's own code when the signal came may still be there, and would crash during the shutdown.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader may be gone
            stream.flush()
    os._exit(code)


def _spell_out_the_unprintable() -> None:
    """Escape characters that a terminal without UTF-8 cannot show, so that an arrow does not fail a published night."""
    for stream in (sys.stdout, sys.stderr):
        # UTF-8 can show everything, and its handling of file names that are not text must not change.
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")


def _interrupt(*_: object) -> None:
    raise Terminated


def _misused(error: Any) -> None:
    """Report an unknown command or option, which the parser of the command line found."""
    message = error.format_message().rstrip(".")
    emit_problem(EXIT_USAGE, "UsageError", message)
    say(message)
    context = getattr(error, "ctx", None)
    if context is not None:
        err.print(context.get_usage(), highlight=False, markup=False, soft_wrap=True)
    path = context.command_path if context else "nightjar"
    err.print(f"Try `{path} --help`.", highlight=False, markup=False)


if __name__ == "__main__":
    main()
