"""The gate on how the answers of language models ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nightjar.inference.job.checks import AnswersCheck
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import budget_rows
from nightjar.inference.validation.gates import Evidence, Gate, GateResult


def answers_gates(check: AnswersCheck, key: str, _: Job) -> Iterator[Cut]:
    """The gates of one check of answers. key: the check's place in the job, as `checks[0]`."""
    yield Cut(f"{key}.answers.cut", check.answers.cut)


@dataclass(frozen=True)
class Cut(Gate):
    """At most the share `share` of the answers had the most tokens that they may have, so that they were cut.

    What the workers counted is judged: all answers, those of quarantined rows, too.
    """

    key: str
    share: float

    def judge(self, evidence: Evidence) -> GateResult:
        cut, asked = evidence.usage.cut, evidence.usage.prompts
        allowed = budget_rows(self.share, asked)
        observed, limit = f"{cut:,} of {asked:,} answers", f"{allowed:,} answers ({self.share:g})"
        said = f"{observed} {'was' if cut == 1 else 'were'} cut at the most tokens that an answer may have"
        if cut <= allowed:
            return GateResult("answers.cut", True, observed, limit, f"{said}; {self.key} = {self.share:g} holds.")
        sentence = (
            f"{said}, more than the {allowed:,} that {self.key} = {self.share:g} allows. Raise max_tokens in "
            f"model.sampling, which asks for all answers again, or raise {self.key}."
        )
        return GateResult("answers.cut", False, observed, limit, sentence)
