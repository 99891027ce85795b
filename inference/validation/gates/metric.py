"""The gates on metrics of the labels against the scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nightjar.inference.job.checks import AT_THRESHOLD, MetricCheck
from nightjar.inference.job.label_sections import accumulator_of
from nightjar.inference.job.model import Job
from nightjar.inference.validation.gates.accumulators import OwnGate, own_gates
from nightjar.inference.validation.gates.limit import MetricLimit
from nightjar.inference.validation.gates.slices import SliceGate
from nightjar.inference.validation.gates.verdict import Evidence, GateResult, number


def metric_gates(check: MetricCheck, key: str, job: Job) -> Iterator[MetricGate | SliceGate | OwnGate]:
    """The gates of one check; none of a metric of labels that come after the night. key: the check's place, as
    `checks[0]`.
    """
    if accumulator_of(check.metric):
        yield from own_gates(check, key)
        return
    if job.label is None:
        return
    needed = job.evaluation.task == "binary" and check.metric in AT_THRESHOLD
    threshold = check.threshold if needed else None
    for end, bound in (("min", check.min), ("max", check.max)):
        if bound is None:
            continue
        limit = MetricLimit(check.metric, f"{key}.{end}", "min" if end == "min" else "max", bound, threshold)
        if check.slices:
            yield from (SliceGate(limit, column, check.min_rows) for column in check.slices)
        else:
            yield MetricGate(limit)


@dataclass(frozen=True)
class MetricGate:
    """A metric of all rows keeps its limit."""

    limited: MetricLimit

    def judge(self, evidence: Evidence) -> GateResult:
        """Judge the metric. Without a figure it does not pass."""
        of, state = self.limited, evidence.evaluation
        name, limit = f"{of.metric}.{of.end}", number(of.bound)
        found = "the labels were not compared" if state is None else of.figure(state)
        if isinstance(found, str):
            sentence = (
                f"There is no {of.what} for {of.key} = {limit}: {found}. If labels come after the night, write "
                f"`late_labels` in place of `label`, let this check warn (on_fail: warn) or remove it."
            )
            return GateResult(name, False, "no figure", limit, sentence)
        assert state is not None
        passed, shown = of.holds(found), of.shown(found)
        said = f"The {of.what} of {state.score!r} against {state.label!r} is {shown}"
        if passed:
            return GateResult(name, True, shown, limit, f"{said}; {of.key} = {limit} holds.")
        side, remedy = ("below", "lower") if of.end == "min" else ("above", "raise")
        sentence = (
            f"{said}, {side} {of.key} = {limit}. Look whether the model, its features or the labels have changed, "
            f"or {remedy} {of.key}."
        )
        return GateResult(name, False, shown, limit, sentence)

    def refuses_any(self, evidence: Evidence) -> bool:
        """As `JudgesPart.refuses_any`: never, because other rows may outweigh these."""
        return False

    def can_judge(self, evidence: Evidence) -> bool:
        """As `JudgesPart.can_judge`."""
        state = evidence.evaluation
        return state is not None and not isinstance(self.limited.figure(state), str)
