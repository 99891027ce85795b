"""What a check allows of a metric of the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nightjar.inference.messages import counted
from nightjar.inference.metrics.evaluator import Evaluator
from nightjar.inference.metrics.figures import Bounded
from nightjar.inference.validation.gates.verdict import number


@dataclass(frozen=True)
class MetricLimit:
    """A metric is at least, or at most, `bound`. key: the limit's place in the job, as `checks[0].min`. threshold: from
    which score on a row counts as predicted 1; None for metrics that need none.

    The figure itself is compared, and not the ends of its error.
    """

    metric: str
    key: str
    end: Literal["min", "max"]
    bound: int | float
    threshold: float | None

    @property
    def what(self) -> str:
        """The metric, in words."""
        return self.metric if self.threshold is None else f"{self.metric} at {self.threshold:g}"

    def figure(self, state: Evaluator) -> Bounded | str:
        """The metric of some rows, or why there is none."""
        return state.metric(self.metric) if self.threshold is None else state.metric(self.metric, self.threshold)

    def holds(self, found: Bounded) -> bool:
        """Whether the limit is kept."""
        return found.value >= self.bound if self.end == "min" else found.value <= self.bound

    def shown(self, found: Bounded) -> str:
        """The figure and its largest error as text."""
        short = shown_at(found.value, self.bound, self.holds(found))
        of = f" (a sample of {counted(found.sampled, 'group')})" if found.sampled else ""
        return short + (f" ± {found.bound:.2g}" if found.bound >= 5e-7 else "") + of


def shown_at(value: float, bound: float, holds: bool) -> str:
    """A figure as text: six digits, but all of one that is past its limit and would read like it."""
    short = f"{value:.6g}"
    return number(value) if not holds and float(short) == bound else short
