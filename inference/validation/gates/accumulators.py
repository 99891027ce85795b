"""The gates on figures of the user's own accumulators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nightjar.inference.job.checks import MetricCheck
from nightjar.inference.messages import counted, nearest
from nightjar.inference.metrics.figures import AccumulatorFigures
from nightjar.inference.validation.gates.limit import shown_at
from nightjar.inference.validation.gates.verdict import Evidence, GateResult, number


def own_gates(check: MetricCheck, key: str) -> Iterator[OwnGate]:
    """The gates of one check on a figure of an accumulator. key: the check's place, as `checks[0]`."""
    for end, bound in (("min", check.min), ("max", check.max)):
        if bound is not None:
            yield OwnGate(check.metric, f"{key}.{end}", "min" if end == "min" else "max", bound)


@dataclass(frozen=True)
class Computed:
    """An accumulator has figures. It warns where it has none: no row is wrong, and a check on a figure may block."""

    name: str

    def judge(self, evidence: Evidence) -> GateResult:
        """As `Gate.judge`."""
        found = evidence.accumulators.get(self.name)
        if found is None or found.reason:
            return GateResult(self.name, False, "no figures", "figures", _without(self.name, found))
        observed = counted(len(found.values), "figure")
        return GateResult(self.name, True, observed, "figures", f"{found.uses} gives {observed}.")


@dataclass(frozen=True)
class OwnGate:
    """A figure is at least, or at most, `bound`. metric: `lift.at_top_decile`. key: the limit's place in the job."""

    metric: str
    key: str
    end: Literal["min", "max"]
    bound: int | float

    def judge(self, evidence: Evidence) -> GateResult:
        """Judge the figure. Without one it does not pass."""
        accumulator, _, figure = self.metric.partition(".")
        name, limit = f"{self.metric}.{self.end}", number(self.bound)
        found = evidence.accumulators.get(accumulator)
        value = found.values.get(figure) if found else None
        if found is None or value is None:
            sentence = f"There is no {self.metric} for {self.key} = {limit}: {self._why(accumulator, figure, found)}"
            return GateResult(name, False, "no figure", limit, sentence)
        holds = value >= self.bound if self.end == "min" else value <= self.bound
        shown = shown_at(value, self.bound, holds)
        if holds:
            return GateResult(name, True, shown, limit, f"{self.metric} is {shown}; {self.key} = {limit} holds.")
        side, remedy = ("below", "lower") if self.end == "min" else ("above", "raise")
        sentence = (
            f"{self.metric} is {shown}, {side} {self.key} = {limit}. Look what {found.uses} counts, and whether "
            f"the model or its input have changed, or {remedy} {self.key}."
        )
        return GateResult(name, False, shown, limit, sentence)

    def _why(self, accumulator: str, figure: str, found: AccumulatorFigures | None) -> str:
        if found is None or found.reason:
            return _without(accumulator, found)
        if figure in found.values:
            return f"{found.uses} gives none for these rows; let this check warn (on_fail: warn) if there may be none."
        known = nearest(figure, found.values) or f"; it gives {', '.join(found.values)}"
        return f"{found.uses} gives no {figure!r}{known}."


def _without(name: str, found: AccumulatorFigures | None) -> str:
    if found is None:
        return f"accumulators.{name} was not asked. Run again."
    return f"{found.reason}. Mend {found.uses} and repeat the command."
