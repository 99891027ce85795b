"""Commands that answer a run whose gates ask a person: approve, reject."""

from __future__ import annotations

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
QuestionOption = Annotated[
    str, typer.Option("--question", help="What you were asked, as it was printed; refused if the run asks anew.")
]


def approve(
    job: JobArgument,
    run_name: OptionalRunArgument = None,
    date: NightOption = None,
    run_id: RunIdOption = None,
    note: NoteOption = "",
    by: ByOption = "",
    revision: RevisionOption = None,
    question: QuestionOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say yes to what a run's gates ask, and publish it.

    It is published as it was validated; nothing is scored.
    """
    _answer(job, named_run(run_name, run_id, date), date, True, by, note, revision, question, as_json)


def reject(
    job: JobArgument,
    run_name: OptionalRunArgument = None,
    date: NightOption = None,
    run_id: RunIdOption = None,
    note: NoteOption = "",
    by: ByOption = "",
    revision: RevisionOption = None,
    question: QuestionOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say no to what a run's gates ask. Readers keep what they see."""
    _answer(job, named_run(run_name, run_id, date), date, False, by, note, revision, question, as_json)


def _answer(
    job: str,
    run_id: str | None,
    date: str | None,
    approved: bool,
    by: str,
    note: str,
    revision: int | None,
    question: str,
    as_json: bool,
) -> None:
    from nightjar.flows.outcome import answer
    from nightjar.flows.pages.advice import check_tables
    from nightjar.inference.run.request import make_request

    with as_json_too(as_json):
        request = make_request(job, date=date, run_id=run_id, scores=False)
        made, notes = answer(request, approved=approved, by=by, note=note, revision=revision, question=question)
    if as_json:
        emit(made)
    else:
        seen = f"published as #{made.publication}" if made.publication else "not published; readers keep what they see"
        tell(f"{made.job} {made.run_id} r{made.revision}: {made.words}: {seen}")
    for each in notes:
        note_aside(each)
    check_tables(request, made.tables_behind)
