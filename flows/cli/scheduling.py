"""Commands for scheduled nights, and for those that were missed: deploy, serve, backfill."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar.flows.cli.options import (
    EngineOption,
    FolderArgument,
    JobArgument,
    JsonOption,
    RayOption,
    VerboseOption,
    emit,
    out,
    tell,
)

if TYPE_CHECKING:
    from nightjar.flows.reports import Night


def deploy(
    folder: FolderArgument,
    pool: Annotated[
        str, typer.Option("--pool", help="Work pool of the workers; created if it does not exist.")
    ] = "nightjar",
    ray: RayOption = None,
    engine: EngineOption = "ray",
    as_json: JsonOption = False,
) -> None:
    """Make one Prefect deployment per job file.

    Creates or updates it, and pauses it if its file is gone. Workers of the pool run the jobs.
    """
    from nightjar.flows.prefect_api.api import require_api
    from nightjar.flows.serving.deploy import deploy as make

    url = require_api()
    done = make(folder, pool, ray, engine)
    if as_json:
        emit(done)
        return
    for each in done:
        tell(f"{each.what:<8} nightly/{each.name}: {each.schedule}")
    tell(f"Next: prefect worker start --pool {pool} (on the machine that drives the runs); pages: {url}")


def serve(
    folder: FolderArgument,
    parallel: Annotated[int, typer.Option("--parallel", min=1, help="The number of runs at a time.")] = 1,
    ray: RayOption = None,
    engine: EngineOption = "ray",
    host: Annotated[
        str,
        typer.Option(
            "--reports-host",
            help="Where the reports of all jobs are served. 0.0.0.0: to other machines, too; over HTTP, in the clear.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            "--reports-port", min=0, max=65535, help="Their port. Default: 4201, or any free one if that is taken."
        ),
    ] = None,
) -> None:
    """Schedule and run the jobs of a folder from here.

    One process on one machine, with a Prefect server of its own if none is configured, and the reports of all jobs at
    one address. Ctrl-C ends it.
    """
    from nightjar.flows.serving.serve import serve_until_ended

    serve_until_ended(folder, out, ray=ray, engine=engine, limit=parallel, reports_host=host, reports_port=port)


def backfill(
    job: JobArgument,
    first: Annotated[str, typer.Option("--from", help="First logical date, as 2026-11-01 or 2026-11-01T05.")],
    last: Annotated[str, typer.Option("--to", help="Last logical date.")],
    ray: RayOption = None,
    engine: EngineOption = "ray",
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Score the nights from one date to another.

    Published nights are left alone, and partial ones are continued.
    """
    from nightjar.flows import backfilling
    from nightjar.flows.cli import tables
    from nightjar.flows.cli.options import say

    def told(night: Night) -> None:
        if not as_json:
            tell(f"{night.date}: {night.state}: {night.said}")

    nights = backfilling.nights(job, first, last, ray, engine, told, verbose)
    if as_json:
        emit(nights, one_line=True)
    if said := tables.missing(nights):
        say(said)
        sys.exit(1)
    backfilling.check_night_tables(job, nights)
