"""Commands that score: run, retry, baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
from nightjar.inference.errors import JobError

if TYPE_CHECKING:
    from nightjar.inference.run.request import RunRequest


def run(
    job: JobArgument,
    date: DateOption = None,
    run_id: RunOption = None,
    limit: LimitOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Score everything again, as a new revision.")] = False,
    no_publish: Annotated[bool, typer.Option("--no-publish", help="Stop after the gates.")] = False,
    ray: RayOption = None,
    engine: EngineOption = "ray",
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Score, check and publish; repeat it to continue.

    Exit codes: 0 published (or done as asked), 1 the run failed, 2 job, command or cluster must be changed,
    3 held by another writer, 4 published but a table of the job does not show it, 5 a gate asks a person first,
    130 interrupted.
    """
    from nightjar.flows.notifying import request_to_begin

    request = request_to_begin(
        job, date=date, run_id=run_id, limit=limit, fresh=fresh, publish=not no_publish, engine=engine
    )
    _score(request, ray, as_json, verbose)


def retry(
    job: JobArgument,
    run_id: OptionalRunArgument = None,
    date: NightOption = None,
    ray: RayOption = None,
    engine: EngineOption = "ray",
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Score the shards without a result again; publish."""
    from nightjar.flows.notifying import request_to_begin
    from nightjar.flows.pages.advice import no_run
    from nightjar.inference.output.nights import deleted
    from nightjar.inference.output.publications import shown
    from nightjar.inference.output.revisions import newest_revision

    run_id = needed_run(run_id, date)
    request = request_to_begin(job, date=date, run_id=run_id, engine=engine)
    if newest_revision(request.storage, request.run_uri) is None:
        if shown(request.storage, request.output, request.run_id) is not None:
            raise JobError(deleted(request.run_id, date=request.date))
        raise JobError(no_run(request))
    _score(request, ray, as_json, verbose)


def baseline(
    job: JobArgument,
    inputs: Annotated[
        list[str],
        typer.Option("--input", help="The training set: a file, folder or pattern; repeat the option for several."),
    ],
    date: DateOption = None,
    ray: RayOption = None,
    engine: EngineOption = "ray",
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Score a training set, for checks on drift to compare with.

    It is not published, and no check of the job judges it. A check {drift: all, against: baseline} compares nights with
    it. Repeat the command to continue it, or to replace it.
    """
    from nightjar.flows.notifying import request_to_begin
    from nightjar.inference.job.checks import BASELINE

    request = request_to_begin(job, date=date, run_id=BASELINE, publish=False, engine=engine, inputs=tuple(inputs))
    _score(request, ray, as_json, verbose)


def _score(request: RunRequest, ray: str | None, as_json: bool, verbose: bool) -> None:
    """Run a request, and print the result. Raises TablesBehind as `run` of the Python functions."""
    from nightjar.flows.starting import launched

    with aside(as_json):
        done = launched(request, ray, None if as_json else out, verbose)
    from nightjar.flows.pages import ending
    from nightjar.flows.pages.advice import check_tables

    if as_json:
        emit(ending.run_result(done), one_line=True)
    else:
        tell(ending.closing_text(done))
    check_tables(request, done.run.publication.tables_behind)
