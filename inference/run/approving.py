"""A person's answer to gates that ask: the ledger keeps it, and a yes publishes at once. Nothing is scored."""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from dataclasses import dataclass

from nightjar.inference.errors import Held, JobError, Rejected
from nightjar.inference.ledger.endings import utc
from nightjar.inference.ledger.ledger import State
from nightjar.inference.ledger.lines import Decision, Question
from nightjar.inference.output import revisions as revs
from nightjar.inference.run.lease import leased
from nightjar.inference.run.publishing import (
    check_visible,
    finish_publication,
    make_visible,
    shown_everywhere,
    verdict_of,
)
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.results import Publication, Scored, Verdict
from nightjar.inference.run.reuse import check_sources


@dataclass(frozen=True)
class Answered:
    """A question with its answer, carried out."""

    question: Question
    """The question of the run's newest revision."""

    decision: Decision
    """The person's answer."""

    scored: Scored
    """The result of the score step, as far as the ledger has it."""

    verdict: Verdict
    """The result of the validate step, from the manifest."""

    publication: Publication | None
    """None after a no."""


def asked(request: RunRequest) -> Question | None:
    """The question of a run's newest revision, answered or not; None if it has none."""
    newest = revs.newest_revision(request.storage, request.run_uri)
    return newest.state.question if newest else None


def answer(request: RunRequest, *, approved: bool, by: str, note: str = "", name: str = "") -> Answered:
    """Keep a person's answer, and carry it out. A no may be changed to a yes; after a yes there is only `unpublish`.

    A yes that was cut off while it was carried out is finished first; another yes then comes to the same.

    name: of the question, as `Question.name`, if it is known.

    Raises:
        JobError: The output belongs to another job; nothing asks; or what asked was answered, was scored or validated
            again since, or has waited too long.
        Held: Another command writes the run.
        TakenBack: Results that the run took over were taken back since. A no is possible.
    """
    request.check_owner()
    newest, finished = _newest(request)
    question = newest.state.question if newest else None
    if newest is None or question is None:
        raise JobError(f"the run {request.run_id!r} asks nothing: no gate of its newest revision says on_fail: ask")
    given = newest.state.decision
    if finished and approved and given is not None:
        return _as_it_is(request, newest, question, given)
    _check(request, newest, question, approved, name)
    with suppress(Rejected), leased(request, newest.uri, "publish", keep=False, seen=newest) as writer:
        if (writer.state.question, writer.state.decision) != (question, given) or writer.state.intent is not None:
            raise Held("another command has changed this run since; repeat the command to see how it stands")
        if given is None or not given.approved:
            given = Decision(question.published.checksum, approved, by, note, utc())
            if approved:
                check_sources(request, writer.ledger, writer.state)  # a yes forbids a no, and would publish nothing
            writer.append([given])
        if not given.approved:
            raise Rejected(question.no(given))  # the lease keeps it as the run's end
        began, entry = time.time(), question.published
        verdict = verdict_of(request, entry, writer.epoch)
        shown = shown_everywhere(request, entry, began, *make_visible(request, writer, entry))
        return Answered(question, given, _scored(writer.state, entry.revision), verdict, shown)
    assert given is not None
    return _as_it_is(request, newest, question, given)


def carried_out(request: RunRequest) -> Answered | None:
    """The question that was answered before; an unfinished yes is carried out now. None without an answer."""
    newest, _ = _newest(request)
    if newest is None or (question := newest.state.question) is None or (given := newest.state.decision) is None:
        return None
    if given.approved and not newest.sealed:
        return answer(request, approved=True, by=given.by, note=given.note)
    if newest.state.published is not None:
        check_visible(request, question.published)
    return _as_it_is(request, newest, question, given)


def _newest(request: RunRequest) -> tuple[revs.Revision | None, bool]:
    """The newest revision, and whether its publication was begun and has been finished only now."""
    newest = revs.newest_revision(request.storage, request.run_uri)
    finished = newest is not None and finish_publication(request, newest)
    return (revs.newest_revision(request.storage, request.run_uri) if finished else newest), finished


def _as_it_is(request: RunRequest, newest: revs.Revision, question: Question, given: Decision) -> Answered:
    """The question, whose answer was carried out."""
    entry, shown = question.published, newest.state.published
    verdict = verdict_of(request, entry, newest.state.epoch)
    made = shown_everywhere(request, entry, time.time(), shown.number) if shown is not None else None
    return Answered(question, given, _scored(newest.state, newest.number), verdict, made)


def _check(request: RunRequest, newest: revs.Revision, question: Question, approved: bool, name: str) -> None:
    run = f"{request.job.name} {request.run_id} r{newest.number}"
    given, words = newest.state.decision, " ".join(request.words)
    if newest.sealed:
        raise JobError(f"{run} was published already; `nightjar unpublish JOB {words}` takes it back")
    if name and name != question.name:
        raise JobError(
            f"{run} was validated again since that was asked: the question is now {question.name}, not {name}; look at "
            "it, and answer again"
        )
    if given is not None and given.approved and not approved:
        raise JobError(
            f"{run} was {given.words}, and is not published yet: `nightjar approve JOB {words}` ends that; "
            f"then `nightjar unpublish JOB {words}` takes it back"
        )
    if given is not None and not given.approved and not approved:
        raise JobError(f"{run} was {given.words}")
    if question.lapsed and not (given is not None and given.approved):
        again = shlex.join([request.command, "JOB", *request.again])
        raise JobError(
            f"{run} waited until {question.until} (approval.deadline_h), which counts as a no; `nightjar {again}` "
            "validates it once more, scores nothing that is there, and asks again"
        )


def _scored(state: State, revision: int) -> Scored:
    """The result of the score step, as far as the ledger has it, with the answer as a note."""
    notes = [*state.about.notes(state.progress.counts.batches_cut, state.progress.ceilings)]
    if state.decision is not None:
        notes.append(state.decision.words)
    return Scored(revision, state.epoch, state.progress, warnings=tuple(notes), again=state.about.again)
