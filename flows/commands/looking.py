"""Commands that look at runs and what readers see of them: status, runs, show, files, doctor."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from nightjar.flows.commands import (
    DateOfRunOption,
    DateOption,
    JobArgument,
    JsonOption,
    RayOption,
    RunArgument,
    RunOption,
    as_json_too,
    out,
    tell,
)


def status(job: JobArgument, date: DateOption = None, run_id: RunOption = None, as_json: JsonOption = False) -> None:
    """How far a run is; works while it runs, and after.

    Read from the ledger, so it needs neither Ray nor Prefect.
    """
    from nightjar.flows import summary
    from nightjar.inference.request import make_request

    with as_json_too(as_json, {}):
        found = summary.status(make_request(job, date=date, run_id=run_id, scores=False))
    out.print_json(data=found) if as_json else tell(summary.status_text(found))


def runs(
    job: JobArgument,
    date: Annotated[
        str | None, typer.Option("--date", help="Which night's place, where output.uri has {date}. Default: today's.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="So many, by name, the highest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the runs of a job, and what readers see."""
    from nightjar.flows import tables
    from nightjar.inference.report import list_runs
    from nightjar.inference.request import make_request

    with as_json_too(as_json, {}):
        request = make_request(job, date=date, scores=False)
        found = list_runs(request.storage, request.output, limit, request.lease_s)
    out.print_json(data=[asdict(line) for line in found]) if as_json else out.print(tables.runs(request, found))


def show(
    job: JobArgument,
    run_name: RunArgument,
    date: DateOfRunOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Lines of each table.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show one run's shards, failures and quarantine.

    Shards without a result first, then those that were retried, then the slowest.
    """
    from nightjar.flows import summary, tables
    from nightjar.inference.report import RunReport
    from nightjar.inference.request import make_request

    with as_json_too(as_json, {}):
        request = make_request(job, date=date, run_id=run_name, scores=False)
        found = summary.status(request)
        report = RunReport(request, found["revision"]) if found["state"] != "unknown" else None
        shards, incidents = (report.shards(limit), report.incidents(limit)) if report else ([], [])
    if as_json:
        out.print_json(data={**found, "shards_shown": shards, "incidents": incidents})
        return
    tell(summary.status_text(found))
    if report and shards:
        out.print(tables.shards(shards, len(report.plan)))
    if incidents:
        tell(tables.incidents(incidents, limit))


def files(
    job: JobArgument,
    date: Annotated[str | None, typer.Option("--date", help="Logical date. Default: the latest night.")] = None,
    run_id: Annotated[str | None, typer.Option("--run-id", help="Name of the run, instead of a date.")] = None,
) -> None:
    """Print the exact files of a published night.

    One per line; by default of the latest night.
    """
    from nightjar.inference import publish
    from nightjar.inference.request import make_request

    request = make_request(job, date=date, run_id=run_id, scores=False)
    wanted = request.run_id if run_id or date else None
    for uri in publish.data_files(request.storage, request.output, wanted):
        print(uri)


def doctor(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Also its storage and its model.")] = None,
    ray: RayOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at versions, servers, GPUs, storage and clock.

    A line each, with a remedy where one is needed. With a job also at its storage.
    """
    from nightjar.flows.doctor import examine

    found = list(examine(job, ray))
    if as_json:
        out.print_json(data=[asdict(finding) for finding in found])
    else:
        for finding in found:
            tell(f"{'ok ' if finding.ok else 'NO '} {finding.what:<10} {finding.found}")
            if finding.remedy:
                tell(f"    {'':<10} → {finding.remedy}")
    if not all(finding.ok for finding in found):
        sys.exit(1)
