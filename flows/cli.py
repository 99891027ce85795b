"""The `nightjar` command."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from nightjar.inference.errors import NightjarError, RunFailed

EXIT_USAGE = 2
EXIT_HELD = 3
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="nightjar",
    help="Score a data lake by morning: every row once, checked, published all or nothing.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job file (YAML).")]
DateOption = Annotated[str | None, typer.Option("--date", help="Logical date, as 2026-11-19. Default: today (UTC).")]
RunOption = Annotated[str | None, typer.Option("--run-id", help="Name of the run. Default: its date.")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", help="Only the first shards that hold so many rows; never published.")
]
RayOption = Annotated[
    str | None,
    typer.Option("--ray", help="An existing cluster: host:port, ray://host:port or auto. Default: one of its own."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, for machines.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show what Ray and Prefect say.")]

out = Console()
err = Console(stderr=True)


def main() -> None:
    """Entry point: runs a command and turns what went wrong into one sentence and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    # Before Prefect is imported: its notice about telemetry is none of this command's output.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt  # it was one, which typer has turned into an exit code
        sys.exit(code)
    except NightjarError as error:
        _say(str(error))
        for note in getattr(error, "__notes__", ()):
            err.print(note, highlight=False, markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say("interrupted; what was committed is kept, repeat the command to continue")
        sys.exit(EXIT_INTERRUPTED)
    except typer.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _misused(error, "--json" in sys.argv)
        sys.exit(EXIT_USAGE)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _misused(error: Any, as_json: bool) -> None:
    """An unknown command or option, as the parser of the command line reports it."""
    message = error.format_message().rstrip(".")
    if as_json:
        print(json.dumps({"state": "failed", "error": "UsageError", "message": message}))
    _say(message)
    context = getattr(error, "ctx", None)
    if context is not None:
        err.print(context.get_usage(), highlight=False, markup=False, soft_wrap=True)
    path = context.command_path if context else "nightjar"
    err.print(f"Try `{path} --help`.", highlight=False, markup=False)


@contextmanager
def _as_json(wanted: bool, about: dict[str, Any]) -> Iterator[None]:
    """With --json what went wrong is one JSON object on standard output, as a result would be.

    about: the job and the run, once they are known.
    """
    try:
        yield
    except NightjarError as error:
        if wanted:
            state = "held" if error.exit_code == EXIT_HELD else "failed"
            print(json.dumps({**about, "state": state, "error": type(error).__name__, "message": str(error)}))
        raise


def _say(message: str) -> None:
    err.print(f"nightjar: {message}", style="bold red", highlight=False, markup=False, soft_wrap=True)


@app.command()
def run(
    job: JobArgument,
    date: DateOption = None,
    run_id: RunOption = None,
    limit: LimitOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Score everything again, as a new revision.")] = False,
    no_publish: Annotated[bool, typer.Option("--no-publish", help="Stop after the gates.")] = False,
    ray: RayOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Score, check and publish; run again, it continues.

    Exit codes: 0 published (or done as asked), 1 the run failed, 2 bad job or usage, 3 held by another writer.
    """
    from nightjar.inference.request import check_request, make_request

    began = time.monotonic()
    about: dict[str, Any] = {}
    with _as_json(as_json, about):
        request = make_request(job, date=date, run_id=run_id, limit=limit, fresh=fresh, publish=not no_publish)
        about.update(job=request.job.name, run_id=request.run_id)
        check_request(request)
        from nightjar.flows import summary
        from nightjar.flows.launch import launch

        try:
            launched = launch(request, ray, out, verbose=verbose, quiet=as_json)
        except RunFailed as error:
            error.add_note(summary.after_failure(request))
            raise
    total_s = time.monotonic() - began
    if as_json:
        print(json.dumps(summary.as_json(launched, total_s)))
    else:
        out.print(summary.as_text(launched, total_s), highlight=False, markup=False, soft_wrap=True)


@app.command()
def plan(
    job: JobArgument,
    date: DateOption = None,
    run_id: RunOption = None,
    limit: LimitOption = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Score one shard here, and estimate the duration.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what would be scored, without scoring."""
    from nightjar.inference.request import check_request, make_request

    about: dict[str, Any] = {}
    with _as_json(as_json, about):
        request = make_request(job, date=date, run_id=run_id, limit=limit)
        about.update(job=request.job.name, run_id=request.run_id)
        check_request(request)
        from nightjar.flows import summary
        from nightjar.inference import run as steps
        from nightjar.inference.local import measure_shard

        found = steps.discover(request)
        made, state = steps.plan(request, found)
        measured = measure_shard(request, found, made) if measure else None
    planned = summary.planned(request, found, made, state, measured)
    out.print_json(data=planned) if as_json else out.print(summary.plan_text(planned), highlight=False, soft_wrap=True)


@app.command()
def check(job: JobArgument, date: DateOption = None, ray: RayOption = None, verbose: VerboseOption = False) -> None:
    """Preflight: job, input, output, cluster, and the model on a few rows. Scores nothing."""
    from nightjar.inference.request import check_request, make_request

    request = make_request(job, date=date)
    check_request(request)
    from nightjar.flows.cluster import cluster
    from nightjar.inference import run as steps

    found = steps.discover(request)
    with cluster(ray, request.job, {}, verbose):
        checked = steps.check(request, found)
    out.print(
        f"{request.job.name}: {found.files.num_rows:,} files, {found.rows:,} rows; the model loads and scores "
        f"{checked.sample_rows} rows on {checked.device}; {request.output} accepts conditional writes. Ready.",
        highlight=False,
        soft_wrap=True,
    )
    for warning in checked.warnings:
        out.print(f"Note: {warning}", highlight=False, soft_wrap=True)


@app.command()
def status(job: JobArgument, date: DateOption = None, run_id: RunOption = None, as_json: JsonOption = False) -> None:
    """How far a run is, from its ledger: works while it runs, and after it was killed."""
    from nightjar.flows import summary
    from nightjar.inference.request import make_request

    with _as_json(as_json, {}):
        found = summary.status(make_request(job, date=date, run_id=run_id, scores=False))
    if as_json:
        out.print_json(data=found)
    else:
        out.print(summary.status_text(found), highlight=False, markup=False, soft_wrap=True)


@app.command()
def files(job: JobArgument, date: DateOption = None, run_id: RunOption = None) -> None:
    """Print the exact data files of a published night, one per line. Default: the latest night."""
    from nightjar.inference import publish
    from nightjar.inference.request import make_request

    request = make_request(job, date=date, run_id=run_id, scores=False)
    wanted = run_id or date
    for uri in publish.data_files(request.storage, request.output, wanted):
        print(uri)


@app.command()
def rollback(
    job: JobArgument,
    to: Annotated[int | None, typer.Option("--to", help="Number of the publication to go back to.")] = None,
) -> None:
    """Let readers see the publication before the newest one again."""
    from nightjar.inference import publish
    from nightjar.inference.request import make_request

    request = make_request(job, scores=False)
    back = publish.rollback(request.storage, request.output, to)
    shown = ", ".join(f"{run} r{entry.revision}" for run, entry in sorted(back.runs.items())) or "nothing"
    out.print(f"publication {back.number}: {back.note}. Readers now see {shown}.", highlight=False, soft_wrap=True)


@app.command()
def replay(
    job: JobArgument,
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="The run, as in the quarantine.")],
    shard: Annotated[str, typer.Option("--shard", help="The shard.")],
    row: Annotated[int, typer.Option("--row", help="The row's index in its file.")],
    file: Annotated[str | None, typer.Option("--file", help="The file, where a shard holds several.")] = None,
    pdb: Annotated[bool, typer.Option("--pdb", help="Stop in the debugger where it fails.")] = False,
) -> None:
    """Score one row alone, in one local process without Ray, exactly as the run would."""
    from nightjar.inference.local import replay_row
    from nightjar.inference.request import make_request

    request = make_request(job, run_id=run_name)
    result = replay_row(request, shard, row, file, pdb=pdb)
    out.print(result.text, highlight=False, markup=False, soft_wrap=True)
    if not result.scored:
        sys.exit(1)


if __name__ == "__main__":
    main()
