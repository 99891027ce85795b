"""The gates on metrics: of the labels against the outputs, of all rows or of each slice, and of accumulators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nightjar.inference.job.checks import MetricCheck
from nightjar.inference.job.label_sections import AT_THRESHOLD, accumulator_of
from nightjar.inference.job.model import Job
from nightjar.inference.messages import counted, nearest
from nightjar.inference.metrics.columns import number
from nightjar.inference.metrics.evaluator import Evaluator
from nightjar.inference.metrics.figures import AccumulatorFigures, Bounded, short_name
from nightjar.inference.metrics.slices import MOST_VALUES, SlicedColumn
from nightjar.inference.validation.gates import Evidence, Gate, GateResult, Limited, limits_of

_NAMED = 5
"""The most slices that a sentence names of each sort; the manifest has all."""


def metric_gates(check: MetricCheck, key: str, job: Job) -> Iterator[MetricGate | SliceGate | OwnGate]:
    """The gates of one check; none of a metric of labels that come after the night. key: the check's place, as
    `checks[0]`.
    """
    own = bool(accumulator_of(check.metric))
    if job.label is None and not own:
        return
    needed = not own and job.evaluation.task == "binary" and check.metric in AT_THRESHOLD
    for found in limits_of(check, key):
        limit = (*found, check.metric, check.threshold if needed else None)
        if own:
            yield OwnGate(*limit)
        elif check.slices:
            yield from (SliceGate(*limit, column, check.min_rows) for column in check.slices)
        else:
            yield MetricGate(*limit)


@dataclass(frozen=True)
class _Metric(Limited):
    """A metric keeps its limit: the figure itself, and not the ends of its error. threshold: from which score on a row
    counts as predicted 1; None for metrics that need none.
    """

    metric: str
    threshold: float | None

    @property
    def what(self) -> str:
        return self.metric if self.threshold is None else f"{self.metric} at {self.threshold:g}"

    def figure(self, state: Evaluator) -> Bounded | str:
        """The metric of some rows, or why there is none."""
        return state.metric(self.metric, self.threshold or 0.5)

    def shown(self, found: Bounded) -> str:
        """The figure and its largest error as text: six digits, but all of one that is past its limit and would read
        like it.
        """
        short = f"{found.value:.6g}"
        if not self.holds(found.value) and float(short) == self.bound:
            short = number(found.value)
        of = f" (a sample of {counted(found.sampled, 'group')})" if found.sampled else ""
        return short + (f" ± {found.bound:.2g}" if found.bound >= 5e-7 else "") + of

    def without(self, why: str) -> GateResult:
        """The verdict where there is no figure."""
        sentence = f"There is no {self.what} for {self.key} = {self.limit}: {why}"
        return GateResult(f"{self.metric}.{self.end}", False, "no figure", self.limit, sentence)

    def judged(self, found: Bounded, what: str, look: str) -> GateResult:
        """The verdict on a figure. look: what to look at where it does not keep the limit."""
        name, shown, passed = f"{self.metric}.{self.end}", self.shown(found), self.holds(found.value)
        fault = f"{what} is {shown}, {self.side} {self.key} = {self.limit}. {look}, or {self.remedy} {self.key}."
        sentence = f"{what} is {shown}; {self.key} = {self.limit} holds." if passed else fault
        return GateResult(name, passed, shown, self.limit, sentence)


@dataclass(frozen=True)
class MetricGate(_Metric):
    """A metric of all rows keeps its limit."""

    def judge(self, evidence: Evidence) -> GateResult:
        """Judge the metric. Without a figure it does not pass."""
        state = evidence.metrics.evaluation
        found = self.figure(state) if state else "the labels were not compared"
        if state is None or isinstance(found, str):
            return self.without(
                f"{found}. If labels come after the night, write `late_labels` in place of `label`, let this check "
                "warn (on_fail: warn) or remove it."
            )
        what = f"The {self.what} of {state.score!r} against {state.label!r}"
        return self.judged(found, what, "Look whether the model, its features or the labels have changed")


@dataclass(frozen=True, slots=True)
class _Judged:
    """The slices of a column. figures: of those that are judged, the worst first. small: those with too few compared
    rows, with these. without: those that have no figure, with the reason.
    """

    figures: list[tuple[str, Bounded, int]]
    small: list[str]
    without: list[str]


@dataclass(frozen=True)
class SliceGate(_Metric):
    """A metric keeps its limit in each slice of a column. min_rows: the fewest compared rows of a slice that is judged.

    A slice without a figure, because it has one class only for example, is told and not judged. A gate that can judge
    no slice does not pass.
    """

    column: str
    min_rows: int

    def judge(self, evidence: Evidence) -> GateResult:
        """Judge each slice that has enough rows and a figure."""
        slices = evidence.metrics.slices
        column = slices.columns[self.column] if slices else SlicedColumn()
        name, limit = f"{self.column}.{self.metric}.{self.end}", self.limit
        judged = self._judged(column)
        if not judged.figures:
            return GateResult(name, False, "no figure", limit, self._unjudged(column, judged))
        state = next(iter(column.states.values()))
        beyond = [found for found in judged.figures if not self.holds(found[1].value)]
        worst, figure, _ = judged.figures[0]
        what = f"The {self.what} of {state.score!r} against {state.label!r}"
        total = counted(len(judged.figures), "slice")
        if not beyond:
            sentence = (
                f"{what} keeps {self.key} = {limit} in {total} of {self.column!r}; the nearest is {worst} with "
                f"{self.shown(figure)}.{_left_out(judged, self.min_rows)}"
            )
            return GateResult(name, True, f"{worst} {self.shown(figure)}", limit, sentence)
        named = _some([f"{value} {self.shown(each)} ({counted(rows, 'row')})" for value, each, rows in beyond])
        sentence = (
            f"{what} is {self.side} {self.key} = {limit} in {len(beyond)} of {total} of {self.column!r}: {named}."
            f"{_left_out(judged, self.min_rows)} Look whether the model, its features or the labels have changed "
            f"there, or {self.remedy} {self.key}."
        )
        return GateResult(name, False, f"{worst} {self.shown(figure)}", limit, sentence)

    def _judged(self, column: SlicedColumn) -> _Judged:
        judged = _Judged([], [], [])
        for value, state in column.ranked():
            called = short_name(value)
            if state.rows < self.min_rows:
                judged.small.append(f"{called} {state.rows:,}")
            elif isinstance(found := self.figure(state), str):
                judged.without.append(f"{called} ({found})")
            else:
                judged.figures.append((called, found, state.rows))
        judged.figures.sort(key=lambda found: found[1].value, reverse=self.end == "max")
        return judged

    def _unjudged(self, column: SlicedColumn, judged: _Judged) -> str:
        check = self.key.removesuffix(f".{self.end}")
        if column.cut:
            return (
                f"{self.column!r} has more than {MOST_VALUES} values, or longer ones than a slice may have, so there "
                f"are no slices for {self.key}. Name a column with fewer values in {check}.slices."
            )
        why = _left_out(judged, self.min_rows) or " No row was compared."
        fewer = f" Lower {check}.min_rows if so few rows say enough." if judged.small else ""
        return (
            f"No slice of {self.column!r} can be judged by {self.key} = {self.limit}.{why}{fewer} If labels come "
            f"after the night, let this check warn (on_fail: warn) or remove it."
        )


def _left_out(judged: _Judged, min_rows: int) -> str:
    """A sentence for each sort of slices that were not judged."""
    said = ""
    if judged.small:
        said += f" Left out, because fewer than {min_rows:,} rows were compared: {_some(judged.small)}."
    if judged.without:
        said += f" Without a figure: {_some(judged.without)}."
    return said


def _some(words: Sequence[str]) -> str:
    more = f" and {len(words) - _NAMED:,} more" if len(words) > _NAMED else ""
    return ", ".join(words[:_NAMED]) + more


@dataclass(frozen=True)
class Computed(Gate):
    """An accumulator has figures. It warns where it has none: no row is wrong, and a check on a figure may block."""

    name: str

    def judge(self, evidence: Evidence) -> GateResult:
        found = evidence.accumulators.get(self.name)
        if found is None or found.reason:
            return GateResult(self.name, False, "no figures", "figures", _without(self.name, found))
        observed = counted(len(found.values), "figure")
        return GateResult(self.name, True, observed, "figures", f"{found.uses} gives {observed}.")


@dataclass(frozen=True)
class OwnGate(_Metric):
    """A figure of an accumulator keeps its limit, as `lift.at_top_decile`."""

    def judge(self, evidence: Evidence) -> GateResult:
        """Judge the figure. Without one it does not pass."""
        accumulator, _, figure = self.metric.partition(".")
        found = evidence.accumulators.get(accumulator)
        value = found.values.get(figure) if found else None
        if found is None or value is None:
            return self.without(_why_none(accumulator, figure, found))
        look = f"Look what {found.uses} counts, and whether the model or its input have changed"
        return self.judged(Bounded(value), self.metric, look)


def _why_none(accumulator: str, figure: str, found: AccumulatorFigures | None) -> str:
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
