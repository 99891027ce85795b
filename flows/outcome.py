"""How a flow run ends: its state for Prefect, and who is told; and what a person's answer makes of a run that asks.

A run of a deployment that asks is suspended, with a form on its page in Prefect: its process ends, *Resume* carries the
answer, and whoever serves the deployment begins the run again. It then finds its question in the ledger, where the
answer is kept, too.
"""

from __future__ import annotations

import getpass
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, cast
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.flow_runs import resume_flow_run, suspend_flow_run
from prefect.input import RunInput, keyset_from_base_key
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Failed
from pydantic import Field, ValidationError

from nightjar.flows import notifying
from nightjar.flows.finished_run import FinishedRun
from nightjar.flows.pages import artifacts, reportfiles
from nightjar.flows.pages.advice import Commands, tables_behind
from nightjar.flows.pages.ending import asking_page, old_nights
from nightjar.flows.prefect_api.api import API_AWAY, in_words
from nightjar.flows.reports import DecisionMade
from nightjar.inference.errors import ClusterError, Held, NightjarError, Rejected, Unanswered
from nightjar.inference.history.retention import prune
from nightjar.inference.ledger.lines import Decision, Question
from nightjar.inference.output.revisions import newest_revision
from nightjar.inference.records import as_line
from nightjar.inference.run import approving, waiting
from nightjar.inference.run.request import RunRequest

_KEEP_S = 10.0
"""Seconds that a run waits at its end until its reason is kept."""

_LEAST_S = 60
"""Seconds that Prefect waits at least, so that the ledger's deadline is the one that counts."""


class Reply(RunInput):
    """The form on the run's page."""

    decision: Literal["approve", "reject"] = Field(description="approve publishes the night, reject leaves it unseen")
    name: str = Field(default="", description="Who answers")
    note: str = Field(default="", description="Why")


def pruned(finished: FinishedRun) -> FinishedRun:
    """Delete old nights, if the job says how many are kept and this one is published. The night has ended as it has,
    whatever becomes of others.
    """
    request, keep = finished.request, finished.request.job.output.keep
    if keep is None or not finished.publication.number:
        return finished
    try:
        return replace(finished, pruned=prune(request, keep.nights))
    except Exception as error:  # noqa: BLE001 - as above
        again = Commands(request).command("prune", *request.place)
        return replace(finished, unpruned=f"not all could be deleted ({error}); the next night does it, or `{again}`")


def completed(finished: FinishedRun, *, notify: bool = True) -> State[Any]:
    """The state of a flow run that came to its end. notify: whether to send the job's own message."""
    artifacts.show_summary(finished)
    notifying.published_event(finished)
    if notify:
        artifacts.warn(notifying.published(finished))
    if behind := finished.publication.tables_behind:
        # Readers of the files see the night, but somebody must mend a table: the run's page is to be red.
        late = tables_behind(Commands(finished.request), behind)
        return Failed(message=str(late), data=late)
    return Completed(message=finished.sentence)


def failed(request: RunRequest, error: NightjarError, ray: str | None, *, notify: bool = True) -> State[Any]:
    """The state of a flow run that ended with an error, once people have been told. notify: as in `completed`."""
    keep_reason(request, error)
    if not isinstance(error, Held):  # the night goes on: its holder says how it stands, and how it ends
        artifacts.show_failure(request, error, ray)
        if notify:
            artifacts.warn(notifying.failed(request, error))
    if isinstance(error, Unanswered):
        return _ask(request, error, ray)
    # The run's page shows the message alone; calling the flow still raises the error.
    return Failed(message=str(error), data=error)


def _ask(request: RunRequest, error: Unanswered, ray: str | None) -> State[Any]:
    """Suspend this flow run until a person answers on its page, if Prefect can; nothing of the run is running now.

    Returns the state of one that ends instead: the commands `approve` and `reject` answer it.
    """
    question = approving.asked(request)
    try:
        # A night of a backfill cannot be suspended, nor a flow run without a deployment, which nobody begins again.
        suspendable = deployment.id is not None and flow_run.parent_flow_run_id is None
        if question is not None and suspendable:
            if (ended := answered(request, ray)) is not None:
                return ended  # by somebody who was told of the question, and was faster than this run
            form = Reply.with_initial_data(description=asking_page(request, question))
            timeout = int(request.job.approval.deadline_h * 3600) + _LEAST_S
            suspend_flow_run(wait_for_input=form, timeout=timeout, key=_key(question))  # does not return
    except (*API_AWAY, RuntimeError) as fault:
        artifacts.warn(f"this run cannot be suspended ({in_words(fault)}); `nightjar approve` answers it")
    return Failed(name="Asks", message=str(error), data=error)


def answered(request: RunRequest, ray: str | None) -> State[Any] | None:
    """How this flow run ends that was suspended because it asked; None if it asked nothing, or nobody has answered."""
    newest = newest_revision(request.storage, request.run_uri)
    if newest is None or (question := newest.state.question) is None or question.flow_run != request.flow_run:
        # Another run may have validated the night since: then this one asks again, if the gates still do. What a person
        # answered on its page was of an older validation, and is not carried out.
        return None
    before, shown, reply = newest.state.decision, newest.state.published, _reply_to(question)
    approves = reply is not None and reply.decision == "approve"
    if reply is not None and (before is None or (approves and not before.approved)):
        done = approving.answer(
            request,
            approved=approves,
            by=reply.name or "somebody on Prefect's page",
            note=reply.note,
            name=question.name,
        )
    elif (kept := approving.carried_out(request)) is not None:
        done = kept
    else:
        return None
    get_run_logger().info("%s", done.decision.words)
    # Whoever carries out a decision sends the message. But a command leaves it to a flow run that it resumes.
    by_resumed = reply is not None and reply.model_dump() == _filled(done.decision)
    notify = done.decision != before or (shown is None and done.publication is not None) or by_resumed
    if done.publication is None:
        return failed(request, Rejected(question.no(done.decision)), ray, notify=notify)
    finished = pruned(FinishedRun(request, done.scored, done.verdict, done.publication))
    return completed(finished, notify=notify)


def _reply_to(question: Question) -> Reply | None:
    """What a person answered on the page of this flow run; None if nobody did."""
    try:
        # In a flow that is not async, it is the form itself.
        return cast("Reply", Reply.load(keyset_from_base_key(f"suspended-{_key(question)}")))
    except ValidationError:
        return None  # it was resumed without the form


def _filled(decision: Decision) -> dict[str, str]:
    """A decision as the form has it."""
    return {"decision": "approve" if decision.approved else "reject", "name": decision.by, "note": decision.note}


def _resume(question: Question, decision: Decision) -> tuple[bool, str]:
    """Let the flow run that asked end, if it is suspended. Returns whether it was resumed, and why it could not be."""
    if not PREFECT_API_URL.value():
        return False, ""
    try:
        with get_client(sync_client=True) as client:
            found = client.read_flow_run(UUID(question.flow_run))
        if found.state is None or not found.state.is_paused():
            return False, ""
        resume_flow_run(found.id, run_input=_filled(decision))
    except ObjectNotFound:
        return False, ""  # it was started with another API, or with none
    except (*API_AWAY, RuntimeError, ValueError) as error:
        return False, f"Prefect's run {question.flow_run} could not be resumed ({in_words(error)})"
    return True, ""


def _key(question: Question) -> str:
    """Prefect's key of what is asked: another one when the run is validated again."""
    return question.published.checksum[:16]


def answer(
    request: RunRequest,
    warn: Callable[[str], object],
    *,
    approved: bool,
    by: str = "",
    note: str = "",
    question: str = "",
) -> DecisionMade:
    """Answer a run whose gates ask, by a command.

    warn: called with each note for the person, a sentence. by: who answers; default: this user on this machine.
    question: its name, as `Question.name`, if the person knows it.

    Raises:
        JobError: Nothing asks, or what asked was answered or changed since.
        Held: Another command writes the run.
    """
    done = approving.answer(request, approved=approved, by=by or _somebody(), note=note, name=question)
    resumed, unresumed = _resume(done.question, done.decision)
    reportfiles.leave(request, warn)
    shown, given = done.publication, done.decision
    notes = [unresumed, *([shown.behind, shown.unfinished] if shown else [])]
    if not resumed:  # a flow run that is resumed sends the message itself, and deletes old nights
        notes.append(_notify(request, done))
        if shown:
            notes += old_nights(pruned(FinishedRun(request, done.scored, done.verdict, shown)))
    for each in filter(None, notes):
        warn(each)
    return DecisionMade(
        **as_line(given),
        job=request.job.name,
        run_id=request.run_id,
        revision=done.question.published.revision,
        publication=shown.number if shown else 0,
        tables_behind=shown.tables_behind if shown else (),
        unresumed=unresumed,
    )


def _somebody() -> str:
    """This user on this machine. In a container a user may have a number and no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _notify(request: RunRequest, done: approving.Answered) -> str:
    """Send the job's own message, with the page of the run that asked. Returns why it could not be sent."""
    request = replace(request, flow_run=done.question.flow_run)
    if done.publication is None:
        return notifying.failed(request, Rejected(done.question.no(done.decision)))
    return notifying.published(FinishedRun(request, done.scored, done.verdict, done.publication))


def keep_reason(request: RunRequest, error: NightjarError) -> None:
    """Keep why a run ends, for whoever asks once the terminal is closed. Storage that hangs holds up nothing."""
    step = "start" if isinstance(error, ClusterError) else "discover"
    thread = threading.Thread(
        target=waiting.keep_failure, args=(request, error, step), daemon=True, name="nightjar-reason"
    )
    thread.start()
    thread.join(_KEEP_S)
