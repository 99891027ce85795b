"""The gate on a metric of each slice: of the rows with each value of a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightjar.inference.messages import counted
from nightjar.inference.metrics.figures import Bounded, short_name
from nightjar.inference.metrics.slices import MOST_VALUES, SlicedColumn
from nightjar.inference.validation.gates.limit import MetricLimit
from nightjar.inference.validation.gates.verdict import Evidence, GateResult, number

_NAMED = 5
"""The most slices that a sentence names of each sort; the manifest has all."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """The slices of a column. figures: of those that are judged, the worst first. small: those with too few compared
    rows, with these. without: those that have no figure, with the reason.
    """

    figures: list[tuple[str, Bounded, int]]
    small: list[str]
    without: list[str]


@dataclass(frozen=True)
class SliceGate:
    """A metric keeps its limit in each slice of a column. min_rows: the fewest compared rows of a slice that is judged.

    A slice without a figure, because it has one class only for example, is told and not judged. A gate that can judge
    no slice does not pass.
    """

    limited: MetricLimit
    column: str
    min_rows: int

    def judge(self, evidence: Evidence) -> GateResult:
        """Judge each slice that has enough rows and a figure."""
        of, column = self.limited, self._sliced(evidence)
        name, limit = f"{self.column}.{of.metric}.{of.end}", number(of.bound)
        judged = self._judged(column)
        if not judged.figures:
            return GateResult(name, False, "no figure", limit, self._unjudged(column, judged))
        state = next(iter(column.states.values()))
        beyond = [found for found in judged.figures if not of.holds(found[1])]
        worst, figure, _ = judged.figures[0]
        what = f"The {of.what} of {state.score!r} against {state.label!r}"
        total = counted(len(judged.figures), "slice")
        if not beyond:
            sentence = (
                f"{what} keeps {of.key} = {limit} in {total} of {self.column!r}; the nearest is {worst} with "
                f"{of.shown(figure)}.{_left_out(judged, self.min_rows)}"
            )
            return GateResult(name, True, f"{worst} {of.shown(figure)}", limit, sentence)
        side, remedy = ("below", "lower") if of.end == "min" else ("above", "raise")
        named = _some([f"{value} {of.shown(each)} ({counted(rows, 'row')})" for value, each, rows in beyond])
        sentence = (
            f"{what} is {side} {of.key} = {limit} in {len(beyond)} of {total} of {self.column!r}: {named}."
            f"{_left_out(judged, self.min_rows)} Look whether the model, its features or the labels have changed "
            f"there, or {remedy} {of.key}."
        )
        return GateResult(name, False, f"{worst} {of.shown(figure)}", limit, sentence)

    def refuses_any(self, evidence: Evidence) -> bool:
        """As `JudgesPart.refuses_any`: never, because other rows may outweigh these."""
        return False

    def can_judge(self, evidence: Evidence) -> bool:
        """As `JudgesPart.can_judge`."""
        return bool(self._judged(self._sliced(evidence)).figures)

    def _sliced(self, evidence: Evidence) -> SlicedColumn:
        return evidence.slices.columns[self.column] if evidence.slices else SlicedColumn()

    def _judged(self, column: SlicedColumn) -> _Judged:
        judged = _Judged([], [], [])
        for value, state in column.ranked():
            called = short_name(value)
            if state.rows < self.min_rows:
                judged.small.append(f"{called} {state.rows:,}")
            elif isinstance(found := self.limited.figure(state), str):
                judged.without.append(f"{called} ({found})")
            else:
                judged.figures.append((called, found, state.rows))
        judged.figures.sort(key=lambda found: found[1].value, reverse=self.limited.end == "max")
        return judged

    def _unjudged(self, column: SlicedColumn, judged: _Judged) -> str:
        of = self.limited
        if column.cut:
            return (
                f"{self.column!r} has more than {MOST_VALUES} values, or longer ones than a slice may have, so there "
                f"are no slices for {of.key}. Name a column with fewer values in {of.key.rpartition('.')[0]}.slices."
            )
        why = _left_out(judged, self.min_rows) or " No row was compared."
        fewer = f" Lower {of.key.rpartition('.')[0]}.min_rows if so few rows say enough." if judged.small else ""
        return (
            f"No slice of {self.column!r} can be judged by {of.key} = {number(of.bound)}.{why}{fewer} If labels come "
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
