"""The gates on metrics of the labels against the scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nightjar.inference.job.checks import AT_THRESHOLD, MetricCheck
from nightjar.inference.job.model import Job
from nightjar.inference.validation.gates.verdict import Evidence, GateResult, number


def metric_gates(check: MetricCheck, key: str, job: Job) -> Iterator[MetricGate]:
    """The gates of one check; none where labels come after the night. key: the check's place, as `checks[0]`."""
    if job.label is None:
        return
    if check.min is not None:
        yield MetricGate(check.metric, f"{key}.min", "min", check.min, check.threshold)
    if check.max is not None:
        yield MetricGate(check.metric, f"{key}.max", "max", check.max, check.threshold)


@dataclass(frozen=True)
class MetricGate:
    """A metric is at least, or at most, `bound`. key: the limit's place in the job, as `checks[0].min`. threshold: from
    which score on a row counts as predicted 1, where the metric needs that.

    The figure itself is compared, and not the ends of its error.
    """

    metric: str
    key: str
    end: Literal["min", "max"]
    bound: int | float
    threshold: float

    def judge(self, evidence: Evidence) -> GateResult:
        """Judge the metric. Without a figure it does not pass."""
        name, limit = f"{self.metric}.{self.end}", number(self.bound)
        state = evidence.evaluation
        found = "the labels were not compared" if state is None else state.metric(self.metric, self.threshold)
        if isinstance(found, str):
            sentence = (
                f"There is no {self._what} for {self.key} = {limit}: {found}. If labels come after the night, write "
                f"`evaluation` in place of `label`, let this check warn (on_fail: warn) or remove it."
            )
            return GateResult(name, False, "no figure", limit, sentence)
        assert state is not None
        passed = found.value >= self.bound if self.end == "min" else found.value <= self.bound
        # Six digits: a figure that is past its limit must not read like it, and its error is larger as a rule.
        shown = f"{found.value:.6g}"
        if not passed and float(shown) == self.bound:
            shown = number(found.value)
        error = f" ± {found.bound:.2g}" if found.bound >= 5e-7 else ""
        said = f"The {self._what} of {state.score!r} against {state.label!r} is {shown}{error}"
        if passed:
            return GateResult(name, True, f"{shown}{error}", limit, f"{said}; {self.key} = {limit} holds.")
        side, remedy = ("below", "lower") if self.end == "min" else ("above", "raise")
        sentence = (
            f"{said}, {side} {self.key} = {limit}. Look whether the model, its features or the labels have changed, "
            f"or {remedy} {self.key}."
        )
        return GateResult(name, False, f"{shown}{error}", limit, sentence)

    def refuses_any(self, evidence: Evidence) -> bool:
        """As `JudgesPart.refuses_any`: never, because other rows may outweigh these."""
        return False

    def can_judge(self, evidence: Evidence) -> bool:
        """As `JudgesPart.can_judge`."""
        state = evidence.evaluation
        return state is not None and not isinstance(state.metric(self.metric, self.threshold), str)

    @property
    def _what(self) -> str:
        return f"{self.metric} at {self.threshold:g}" if self.metric in AT_THRESHOLD else self.metric
