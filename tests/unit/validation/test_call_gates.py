"""The gate of a function of the user's own: only a yes is a yes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightjar.inference.job.file import parse_job
from nightjar.inference.validation.gates import Evidence, Found, GateResult, Judgement, evaluate
from nightjar.inference.validation.gates.rules import gates_of

CONTENT = {
    "name": "calls",
    "input": {"uri": "in/"},
    "model": {"uses": "mine:Model", "outputs": {"score": "float32"}},
    "output": {"uri": "out/"},
    "checks": [{"call": "mychecks:allowed"}],
}
KEY = "checks[0].call"


def judged(answer: Judgement | str = "") -> GateResult:
    job = parse_job(CONTENT, Path("/jobs/job.yaml"))
    return evaluate(gates_of(job), Evidence(Found(1, 4), called={KEY: answer} if answer else {}))[-1]


@pytest.mark.parametrize(
    ("answer", "observed", "limit", "says"),
    [
        (Judgement(True), "yes", "yes", "mychecks:allowed says yes (checks[0].call)."),
        (Judgement(False), "no", "yes", "mychecks:allowed says no (checks[0].call)."),
        (
            Judgement(True, "nobody is flagged", "0 flagged", "none"),
            *("0 flagged", "none", "mychecks:allowed says yes (checks[0].call): nobody is flagged"),
        ),
        (
            Judgement(False, "three are flagged", "3 flagged", "none"),
            *("3 flagged", "none", "mychecks:allowed says no (checks[0].call): three are flagged"),
        ),
        (Judgement(False, sentence="why"), "no", "yes", "mychecks:allowed says no (checks[0].call): why"),
    ],
)
def test_what_the_function_says_is_the_verdict(answer: Judgement, observed: str, limit: str, says: str) -> None:
    assert judged(answer) == GateResult("allowed", answer.passed, observed, limit, says)


def test_a_function_that_gave_no_verdict_does_not_pass() -> None:
    """Nor one that nobody asked."""
    expected = GateResult("allowed", False, "no verdict", "yes", "it broke.")
    assert judged("it broke") == expected
    says = "checks[0].call: mychecks:allowed was not asked. Run again."
    assert judged() == GateResult("allowed", False, "no verdict", "yes", says)
