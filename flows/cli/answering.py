"""Commands that answer a run whose gates ask a person: approve, reject."""

from __future__ import annotations

import getpass
import socket
from typing import Annotated

import typer

from nightjar.flows.cli.options import (
    JobArgument,
    JsonOption,
    OptionalRunArgument,
    RunIdOption,
    as_json_too,
    emit,
    named_run,
    note_aside,
    tell,
)
from nightjar.flows.cli.publishing import NightOption

ByOption = Annotated[str, typer.Option("--by", help="Who answers. Default: this user on this machine.")]
NoteOption = Annotated[str, typer.Option("--note", help="Why; it is kept with the answer.")]
RevisionOption = Annotated[
    int | None, typer.Option("--revision", help="The revision that you looked at; refused if there is a newer one.")
]


def approve(
    job: JobArgument,
    run_name: OptionalRunArgument = None,
    date: NightOption = None,
    run_id: RunIdOption = None,
    note: NoteOption = "",
    by: ByOption = "",
    revision: RevisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say yes to what a run's gates ask, and publish it.

    It is published as it was validated; nothing is scored.
    """
    _answer(job, named_run(run_name, run_id, date), date, True, by, note, revision, as_json)


def reject(
    job: JobArgument,
    run_name: OptionalRunArgument = None,
    date: NightOption = None,
    run_id: RunIdOption = None,
    note: NoteOption = "",
    by: ByOption = "",
    revision: RevisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say no to what a run's gates ask. Readers keep what they see."""
    _answer(job, named_run(run_name, run_id, date), date, False, by, note, revision, as_json)


def _answer(
    job: str,
    run_id: str | None,
    date: str | None,
    approved: bool,
    by: str,
    note: str,
    revision: int | None,
    as_json: bool,
) -> None:
    from nightjar.flows.pages.advice import check_tables
    from nightjar.flows.pages.report import writing
    from nightjar.flows.prefect_api import replies
    from nightjar.flows.reports import DecisionMade
    from nightjar.inference.run import approving
    from nightjar.inference.run.request import make_request

    with as_json_too(as_json, {}):
        request = make_request(job, date=date, run_id=run_id, scores=False)
        who = by or f"{getpass.getuser()}@{socket.gethostname()}"
        done = approving.answer(request, approved=approved, by=who, note=note, revision=revision)
        unresumed = replies.resume(done.question, done.decision)
        writing.leave(request, note_aside)
    shown, given = done.publication, done.decision
    late = shown.tables_behind if shown else ()
    revised = done.question.published.revision
    if as_json:
        about = (request.job.name, request.run_id, revised, given.approved, given.by, given.note, given.at)
        emit(DecisionMade(*about, shown.number if shown else 0, late, unresumed))
    else:
        seen = f"published as #{shown.number}" if shown else "not published; readers keep what they see"
        tell(f"{request.job.name} {request.run_id} r{revised}: {given.words}: {seen}")
    for text in filter(None, (unresumed, shown.behind if shown else "", shown.unfinished if shown else "")):
        note_aside(text)
    check_tables(request, late)
