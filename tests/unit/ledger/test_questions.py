"""What a run asks a person: which lines of its ledger ask, answer, and make a question void."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nightjar.inference.ledger.endings import FailedGate, done
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.ledger import State
from nightjar.inference.ledger.lines import (
    Closed,
    Decision,
    Line,
    Opened,
    Planned,
    Published,
    Question,
    Revoked,
    decode,
    question_name,
)
from nightjar.inference.records import Failed, Receipt, encode

PUBLISHED = Published(1, "manifest-000001.json", "0a1b2c3d4e5f", "2026-11-19")
GATES = (FailedGate("score.max", "The greatest 'score' is 9."), FailedGate("rows.min", "Too few."))
ASKED = Question(PUBLISHED, GATES, "2026-11-19T02:00:00+00:00", "2026-11-19T14:00:00+00:00", "flow-1")
YES = Decision(PUBLISHED.checksum, True, "anna", "a holiday", "2026-11-19T07:00:00+00:00")
NO = replace(YES, approved=False, by="ben", note="wrong fares")


def folded(*lines: Line) -> State:
    """The state of a ledger with these lines, as they are read back."""
    state = State()
    for line in lines:
        read = decode(encode(line))
        assert read is not None
        state.fold(read)
    return state


def stands(state: State) -> tuple[Question | None, Decision | None]:
    """What is asked, and the answer to it."""
    return state.question, state.decision


def opened(task: str) -> Opened:
    return Opened(this_holder(task))


def test_a_yes_approves_exactly_what_was_asked_about() -> None:
    """Not another revision, and not the same one with another manifest."""
    assert not folded(ASKED).approves(PUBLISHED)
    approved = folded(ASKED, YES)
    assert stands(approved) == (ASKED, YES)
    assert approved.approves(PUBLISHED)
    assert not approved.approves(replace(PUBLISHED, revision=2))
    assert not approved.approves(replace(PUBLISHED, checksum="ffffffffffff"))


def test_a_no_approves_nothing_and_may_become_a_yes() -> None:
    rejected = folded(ASKED, NO)
    assert stands(rejected) == (ASKED, NO)
    assert not rejected.approves(PUBLISHED)
    assert folded(ASKED, NO, YES).approves(PUBLISHED)


def test_an_answer_counts_only_for_the_question_that_it_is_about() -> None:
    other = replace(PUBLISHED, checksum="ffffffffffff")
    again = replace(ASKED, published=other)
    assert stands(folded(YES)) == (None, None), "nothing was asked"
    assert stands(folded(again, YES)) == (again, None), "a late answer, to what was asked before"
    assert stands(folded(ASKED, YES, again)) == (again, None), "another question has no answer yet"
    assert not folded(ASKED, YES, again).approves(other)


@pytest.mark.parametrize(
    "line",
    [
        Receipt("a", 1, 1, "w", None, None, 0.1, 0.0, rows_in=10, rows_out=10),
        Revoked("a", 1, "PartDamaged", "gone"),
        Planned(file="p2", fingerprint="f2", date="2026-11-19"),
    ],
    ids=lambda line: type(line).__name__,
)
def test_a_question_is_void_once_the_results_may_be_others(line: Line) -> None:
    """And so is its answer, even a yes."""
    for answers in ((), (NO,), (YES,)):
        state = folded(ASKED, *answers, line)
        assert stands(state) == (None, None)
        assert not state.approves(PUBLISHED)


def test_a_run_that_is_validated_again_asks_anew_unless_the_answer_was_yes() -> None:
    assert stands(folded(ASKED, opened("validate"))) == (None, None)
    assert stands(folded(ASKED, NO, opened("validate"))) == (None, None)
    assert stands(folded(ASKED, YES, opened("validate"))) == (ASKED, YES)


@pytest.mark.parametrize(
    "line",
    [opened("publish"), opened("score"), Closed(), Failed("a", 1, "OSError", "no"), done("validate", limited=False)],
    ids=["publish", "score", "closed", "failed", "ended"],
)
def test_what_leaves_the_results_as_they_are_leaves_the_question_open(line: Line) -> None:
    assert stands(folded(ASKED, line)) == (ASKED, None)
    assert folded(ASKED, line, YES).approves(PUBLISHED), "it can still be answered"


def test_a_question_has_a_short_name_for_the_command_line() -> None:
    """It tells the manifests of one run apart."""
    assert ASKED.name == question_name("0a1b2c3d4e5f") == "0a1b2c3d"


def test_a_run_that_was_refused_says_by_whom_and_what_was_asked() -> None:
    was_asked = "What was asked: score.max: The greatest 'score' is 9. rows.min: Too few."
    assert ASKED.no(NO) == f"rejected by ben at 2026-11-19T07:00:00+00:00: wrong fares. {was_asked}"
    assert ASKED.no(replace(NO, note="")) == f"rejected by ben at 2026-11-19T07:00:00+00:00. {was_asked}"
    assert ASKED.no(None) == (f"nobody approved it until 2026-11-19T14:00:00+00:00, which counts as a no. {was_asked}")
