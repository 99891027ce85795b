"""Commands for what readers see: publications, rollback, unpublish, republish, prune, tables; approve and reject."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightjar.flows.cli.options import (
    JobArgument,
    JsonOption,
    LinesOption,
    NightOption,
    OptionalRunArgument,
    PlaceOption,
    emit,
    lead_readers,
    needed_run,
    note_aside,
    out,
    tell,
)
from nightjar.inference.errors import JobError

if TYPE_CHECKING:
    from nightjar.inference.output.publications import Snapshot
    from nightjar.inference.output.visibility import Change, PublicationListed
    from nightjar.inference.run.request import RunRequest


def publications(
    job: JobArgument, date: PlaceOption = None, lines: LinesOption = 20, as_json: JsonOption = False
) -> None:
    """List the publications, and what each changed.

    The newest comes first; readers see this one.
    """
    from nightjar.flows.cli import tables
    from nightjar.inference.output import visibility
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date)
    found = visibility.publications(request.storage, request.output, lines)
    emit(found) if as_json else out.print(tables.publications(request, found))


def rollback(
    job: JobArgument,
    to: Annotated[int | None, typer.Option("--to", help="Number of the publication to go back to.")] = None,
    date: PlaceOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what readers would lose and gain.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show readers the publication before this one again.

    All nights are shown as they were then. To take back one night, use unpublish, or run it again with --fresh.
    """
    from nightjar.flows.cli.tables import some_revisions
    from nightjar.inference.output import visibility
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date)
    request.check_owner()
    back = visibility.back(request.storage, request.output, to)
    then = back.earlier
    if not dry_run:
        _catch_up(request)
        then = visibility.rollback(request.storage, request.output, back)
    found = visibility.listed(back.now, then)
    if back.gone:
        note_aside(f"not shown, because their files were deleted: {some_revisions(back.gone)}")
    if as_json:
        emit(found)
    elif dry_run:
        tell(f"publication {then.number} would be shown again. {told(found, would=True)}")
    else:
        tell(f"publication {then.number}: {then.note}. {told(found)}")
    if not dry_run:
        _show(request, found.changes)


def unpublish(
    job: JobArgument,
    run_id: OptionalRunArgument = None,
    date: NightOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take one night away from readers; others stay.

    `nightjar republish` shows it again.
    """
    from nightjar.inference.output import visibility

    _change(visibility.unpublish, job, needed_run(run_id, date), date, as_json)


def republish(
    job: JobArgument,
    run_id: OptionalRunArgument = None,
    date: NightOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show readers a night again that was taken back.

    Shows the newest published revision of a night that rollback or unpublish took back. Nothing is scored.
    """
    from nightjar.inference.output import visibility

    _change(visibility.republish, job, needed_run(run_id, date), date, as_json)


def _change(act: Callable[..., Snapshot], job: str, run_id: str | None, date: str | None, as_json: bool) -> None:
    """act: of `visibility`."""
    from nightjar.inference.output import publications as publish
    from nightjar.inference.output import visibility
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date, run_id=run_id)
    request.check_owner()
    _catch_up(request)
    before = publish.newest(request.storage, request.output)
    after = act(request.storage, request.output, run_id, request.date)
    found = visibility.listed(before, after)
    emit(found) if as_json else tell(f"publication {after.number}: {after.note}. {told(found)}")
    _show(request, found.changes)


def _catch_up(request: RunRequest) -> None:
    """Show in the folders and tables what readers see now, before another publication is created.

    They know it by its number, and that of a publication which was damaged and deleted is given again.
    """
    from nightjar.inference.run.publishing import commit_tables

    lead_readers(request)
    commit_tables(request)


def _show(request: RunRequest, changed: tuple[Change, ...]) -> None:
    """Update the folders and tables for readers, and the reports of the runs that changed. Raises TablesBehind."""
    from nightjar.flows.pages import reportfiles
    from nightjar.flows.pages.advice import check_tables
    from nightjar.inference.run.publishing import commit_tables
    from nightjar.inference.run.request import make_request

    lead_readers(request)
    place = request.date if request.dated else None
    for each in changed:
        run = make_request(request.job_path, date=place, run_id=each.run_id)
        if reportfiles.written(run):
            reportfiles.leave(run, note_aside)
    check_tables(request, commit_tables(request))


def prune(
    job: JobArgument,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="The newest nights to keep. Default: output.keep.nights.")
    ] = None,
    date: PlaceOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete old nights, and what only they need.

    Nights that became visible, or were written, in as many days as nights are kept are kept, too.
    """
    from nightjar.flows.pages.advice import check_tables
    from nightjar.flows.pages.wording import pruned
    from nightjar.inference.history import retention
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date)
    request.check_owner()
    nights = keep or (request.job.output.keep.nights if request.job.output.keep else None)
    if nights is None:
        raise JobError("output.keep: the job does not say how many nights to keep; give --keep, as --keep 30")
    if not dry_run:
        _catch_up(request)
    found = retention.prune(request, nights, dry_run=dry_run)
    if as_json:
        emit(found)
    else:
        tell(pruned(found, would=dry_run))
    for each in filter(None, [found.behind, *found.left]):
        note_aside(each)
    check_tables(request, found.tables_behind)


def tables(job: JobArgument, date: PlaceOption = None, as_json: JsonOption = False) -> None:
    """Commit what the job's tables lack.

    Each table of output.tables then shows what is published. Runs, rollbacks and the like do this themselves; use this
    command if one of them could not.
    """
    from nightjar.flows.pages.advice import check_tables
    from nightjar.inference.output import targets
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date)
    request.check_owner()
    output = (request.storage, request.output, request.job.output.tables)
    check_tables(request, tuple(targets.commit(*output, dates=None)))
    found = targets.shown(*output)
    if as_json:
        emit(found)
    elif not found:
        tell("the job has no output.tables")
    for table in () if as_json else found:
        tell(f"{table.uri} shows publication {table.publication}")


def told(found: PublicationListed, *, would: bool = False) -> str:
    """Say what readers lose, gain, and see in another revision."""
    from nightjar.flows.cli.tables import changed_runs, runs_seen

    return f"Readers {'would' if would else 'now'} see {runs_seen(found)}. {changed_runs(found.changes)}"


ByOption = Annotated[str, typer.Option("--by", help="Who answers. Default: this user on this machine.")]
NoteOption = Annotated[str, typer.Option("--note", help="Why; it is kept with the answer.")]
QuestionOption = Annotated[
    str, typer.Option("--question", help="What you were asked, as it was printed; refused if the run asks anew.")
]


def approve(
    job: JobArgument,
    run_id: OptionalRunArgument = None,
    date: NightOption = None,
    note: NoteOption = "",
    by: ByOption = "",
    question: QuestionOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say yes to what a run's gates ask, and publish it.

    It is published as it was validated; nothing is scored.
    """
    _answer(job, needed_run(run_id, date), date, as_json, approved=True, by=by, note=note, question=question)


def reject(
    job: JobArgument,
    run_id: OptionalRunArgument = None,
    date: NightOption = None,
    note: NoteOption = "",
    by: ByOption = "",
    question: QuestionOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say no to what a run's gates ask. Readers keep what they see."""
    _answer(job, needed_run(run_id, date), date, as_json, approved=False, by=by, note=note, question=question)


def _answer(job: str, run_id: str | None, date: str | None, as_json: bool, **given: Any) -> None:
    from nightjar.flows.outcome import answer
    from nightjar.flows.pages.advice import check_tables
    from nightjar.inference.run.request import make_request

    request = make_request(job, date=date, run_id=run_id)
    made = answer(request, note_aside, **given)
    if as_json:
        emit(made)
    else:
        seen = f"published as #{made.publication}" if made.publication else "not published; readers keep what they see"
        tell(f"{made.job} {made.run_id} r{made.revision}: {made.words}: {seen}")
    check_tables(request, made.tables_behind)
