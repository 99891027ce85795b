"""The command `logs`, which shows what a run's workers printed."""

from __future__ import annotations

import datetime as dt
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar.flows.cli.options import (
    DateOfRunOption,
    JobArgument,
    JsonOption,
    OptionalRunArgument,
    RunIdOption,
    as_json_too,
    emit,
    named_run,
    tell,
)
from nightjar.inference.errors import JobError

if TYPE_CHECKING:
    from nightjar.flows.reports import LogLine
    from nightjar.inference.logs.printed import Line


def logs(
    job: JobArgument,
    run_name: OptionalRunArgument = None,
    date: DateOfRunOption = None,
    run_id: RunIdOption = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard", help="Only what was printed while this shard was scored; the beginning of its id is enough."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing until the run ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a run's workers printed.

    Each line has time (UTC), worker, shard, stream and text. If much was printed, the first and the last lines are
    kept.
    """
    from nightjar.flows.pages.advice import near, no_run, typed
    from nightjar.inference.logs import printed
    from nightjar.inference.output.revisions import newest_revision
    from nightjar.inference.run.request import make_request

    with as_json_too(as_json):
        request = make_request(job, date=date, run_id=named_run(run_name, run_id, date), scores=False)
        newest = newest_revision(request.storage, request.run_uri)
        if newest is None:
            raise JobError(no_run(request))
        lines = (
            printed.follow(request.storage, newest.uri, request.lease_s)
            if follow
            else printed.Reading(request.storage, newest.uri).new()
        )
        shown = 0
        for line in lines:
            if line.shard.startswith(shard or ""):
                shown += 1
                emit(_record(line), one_line=True) if as_json else tell(_text(line))
    plan = newest.plan() if shard and not shown else None
    if shard and plan is not None and not any(each.startswith(shard) for each in plan.ids()):
        show = shlex.join(["show", near(request.job_path), *request.words])
        raise JobError(f"--shard {shard}: no shard of this run begins so; `{typed('nightjar')} {show}` lists them")
    if not shown and not as_json:
        where = f"while shard {shard} was scored" if shard else "by its workers"
        tell(f"{request.job.name} {request.run_id} r{newest.number}: nothing was printed {where}.")


def _when(line: Line) -> str:
    return dt.datetime.fromtimestamp(line.at, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _record(line: Line) -> LogLine:
    from nightjar.flows.reports import LogLine

    return LogLine(_when(line), line.worker, line.shard, line.attempt, line.stream, line.text)


def _text(line: Line) -> str:
    return f"{_when(line)} {line.worker} {line.shard or '-'} {line.stream:<4} {line.text}"
