"""The gates of the user's own: a function that is given the night's figures and says whether it may be published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nightjar.inference.job.checks import CallCheck
from nightjar.inference.job.model import Job
from nightjar.inference.validation.gates import Evidence, Gate, GateResult


def call_gates(check: CallCheck, key: str, _: Job) -> Iterator[Called]:
    """The gate of one check. key: the check's place in the job, as `checks[0]`."""
    yield Called(f"{key}.call", check.call)


@dataclass(frozen=True)
class Called(Gate):
    """The function `spec` says yes. A function that fails, or returns something else, does not."""

    key: str
    spec: str

    def judge(self, evidence: Evidence) -> GateResult:
        name = self.spec.rpartition(":")[2]
        answer = evidence.called.get(self.key, f"{self.key}: {self.spec} was not asked. Run again")
        if isinstance(answer, str):
            return GateResult(name, False, "no verdict", "yes", f"{answer}.")
        observed = answer.observed or ("yes" if answer.passed else "no")
        verdict = f"{self.spec} says {'yes' if answer.passed else 'no'} ({self.key})"
        sentence = f"{verdict}: {answer.sentence}" if answer.sentence else f"{verdict}."
        return GateResult(name, answer.passed, observed, answer.limit or "yes", sentence)
