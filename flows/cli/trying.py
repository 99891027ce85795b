"""Commands that try what a night needs, and write no result: plan, check, replay, doctor."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nightjar.flows.cli.options import (
    DateOption,
    EngineOption,
    JobArgument,
    JsonOption,
    LimitOption,
    NightOption,
    OptionalRunArgument,
    RayOption,
    RunOption,
    VerboseOption,
    aside,
    emit,
    needed_run,
    out,
    tell,
)


def plan(
    job: JobArgument,
    date: DateOption = None,
    run_id: RunOption = None,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what would be scored, without scoring."""
    from nightjar.inference.run.request import fixed, make_request, to_begin

    request = fixed(to_begin(make_request(job, date=date, run_id=run_id, limit=limit)))
    from nightjar.flows.pages import estimate
    from nightjar.inference.run.resume import plan as plan_run
    from nightjar.inference.run.scoring import discover

    with aside(as_json):
        found = discover(request)
        made = plan_run(request, found)
    planned = estimate.planned(request, found, made)
    emit(planned) if as_json else tell(estimate.plan_text(planned))


def check(
    job: JobArgument,
    date: DateOption = None,
    ray: RayOption = None,
    engine: EngineOption = "ray",
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Try job, storage, cluster and model on a few rows.

    Writes only a probe into the storage.
    """
    from nightjar.inference.run.request import fixed, make_request

    request = fixed(make_request(job, date=date, engine=engine))
    from nightjar.flows import starting
    from nightjar.flows.cli import tables
    from nightjar.flows.pages.estimate import check_text
    from nightjar.inference.run.scoring import discover

    with aside(as_json):
        found = starting.check(request, discover(request), ray, verbose)
    if as_json:
        emit(found)
        return
    tell(check_text(found))
    if found.sample.values:
        out.print(tables.sample_rows(found.sample.names, found.sample.values))


def replay(
    job: JobArgument,
    run_id: OptionalRunArgument = None,
    *,
    shard: Annotated[str, typer.Option("--shard", help="The shard.")],
    row: Annotated[int, typer.Option("--row", help="The row's index in its file.")],
    date: NightOption = None,
    file: Annotated[str | None, typer.Option("--file", help="The file, if the shard has several.")] = None,
    model: Annotated[str, typer.Option("--model", help="The model, if the job has several. Default: all.")] = "",
    pdb: Annotated[bool, typer.Option("--pdb", help="Stop in the debugger where it fails.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Use code and model as they are now, not the run's snapshot.")
    ] = False,
) -> None:
    """Score one row alone, in one process, to debug it.

    Prints the row's input values, then its outputs, or why it has none.
    """
    from nightjar.flows.cli import tables
    from nightjar.inference.history.replay import replay_row
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date, run_id=needed_run(run_id, date))
    result = replay_row(request, shard, row, file, pdb=pdb, live=live, model=model)
    tell(tables.replayed(result))
    if not result.scored:
        sys.exit(1)


def doctor(ray: RayOption = None, as_json: JsonOption = False) -> None:
    """Check versions, servers, GPUs and memory.

    One line each, with a remedy if one is needed. `nightjar check` tries a job.
    """
    from nightjar.flows.cli.doctor import diagnose

    found = list(diagnose(ray))
    if as_json:
        emit(found)
    else:
        for finding in found:
            tell(f"{'ok ' if finding.ok else 'NO '} {finding.what:<10} {finding.found}")
            if finding.remedy:
                tell(f"    {'':<10} → {finding.remedy}")
    if not all(finding.ok for finding in found):
        sys.exit(1)
