"""A person's answer that does not come from Prefect's page: it is kept, carried out and told."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import replace

from nightjar.flows import notifying
from nightjar.flows.pages.report import writing
from nightjar.flows.prefect_api import replies
from nightjar.flows.reports import DecisionMade
from nightjar.flows.results import FinishedRun
from nightjar.inference.errors import Rejected
from nightjar.inference.run import approving
from nightjar.inference.run.request import RunRequest


def answer(
    request: RunRequest,
    *,
    approved: bool,
    by: str = "",
    note: str = "",
    revision: int | None = None,
    question: str = "",
) -> tuple[DecisionMade, tuple[str, ...]]:
    """Answer a run whose gates ask. by: who answers; default: this user on this machine. revision: that the person saw.
    question: its name, as `Question.name`, where the person was told it.

    Returns what became of it, and what a person should know besides, a sentence each.

    Raises:
        JobError: Nothing asks, or what asked was answered or changed since.
        Held: Another command writes the run.
    """
    done = approving.answer(
        request, approved=approved, by=by or _somebody(), note=note, revision=revision, name=question
    )
    resumed, unresumed = replies.resume(done.question, done.decision)
    notes: list[str] = [unresumed]
    writing.leave(request, notes.append)
    if not resumed:  # a flow run that is resumed tells how it ends
        notes.append(_tell(request, done))
    shown, given = done.publication, done.decision
    notes += [shown.behind, shown.unfinished] if shown else []
    about = (request.job.name, request.run_id, done.question.published.revision)
    made = DecisionMade(
        *about,
        given.approved,
        given.by,
        given.note,
        given.at,
        shown.number if shown else 0,
        shown.tables_behind if shown else (),
        unresumed,
    )
    return made, tuple(filter(None, notes))


def _somebody() -> str:
    """This user on this machine. In a container a user may have a number and no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _tell(request: RunRequest, done: approving.Answered) -> str:
    """Tell whom the job says, with the page of the run that asked. Returns why nobody could be told."""
    request = replace(request, flow_run=done.question.flow_run)
    if done.publication is None:
        return notifying.failed(request, Rejected(done.question.no(done.decision)))
    return notifying.published(FinishedRun(request, done.scored, done.verdict, done.publication))
