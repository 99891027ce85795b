"""The gates on one output or carried column: min, max, nulls, finite."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from nightjar.inference.job.checks import ColumnCheck
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import budget_rows
from nightjar.inference.messages import counted
from nightjar.inference.metrics.columns import ColumnState, Number, number
from nightjar.inference.validation.gates import Evidence, Gate, GateResult, Limited, limits_of

_WORDS = {"min": "smallest", "max": "greatest"}
_KINDS = {"list": "lists", "other": "values that are not numbers"}


@dataclass(frozen=True)
class ColumnGate(Gate):
    """A gate on the figures of one column. It can name rows that it refuses, which are found while parts are audited.

    key: the limit's place in the job, as `checks[0].max`, under which `Evidence.offenders` has the rows.
    """

    JUDGES: ClassVar[frozenset[str]] = frozenset()
    """The kinds of columns (`ColumnState.kind`) that it can judge; "" is a column of nulls. Empty for all."""

    key: str
    column: str

    @property
    def name(self) -> str:
        return f"{self.column}.{self.key.rpartition('.')[2]}"

    def judge(self, evidence: Evidence) -> GateResult:
        """Judge the column. A column without figures, or of other values, does not pass."""
        state = evidence.metrics.columns.get(self.column)
        if state is not None and not state.rows and not evidence.rows_in:
            return GateResult(self.name, True, "no rows", self.limit, f"There is no {self.column!r} to judge.")
        if state is None:
            sentence = f"{self.column!r} was not measured, so {self.key} cannot be judged. Run the job again."
            return GateResult(self.name, False, "not measured", self.limit, sentence)
        if not self.can_judge(state.kind):
            holds = _KINDS[state.kind]
            sentence = f"{self.key} asks for numbers, but {self.column!r} holds {holds}. Remove {self.key}."
            return GateResult(self.name, False, holds, self.limit, sentence)
        result = self.judge_column(state)
        return result if result.passed else replace(result, where=evidence.offenders.get(self.key, ()))

    def can_judge(self, kind: str) -> bool:
        """Whether the gate can judge such a column. kind: as in `ColumnState`."""
        return not self.JUDGES or kind in self.JUDGES

    @property
    @abstractmethod
    def limit(self) -> str:
        """The limit, as text for a table."""

    @abstractmethod
    def judge_column(self, state: ColumnState) -> GateResult:
        """Judge the figures of the whole column."""

    @abstractmethod
    def spares(self, state: ColumnState) -> bool:
        """Whether the gate refuses none of the rows behind these figures."""


def column_gates(check: ColumnCheck, key: str, _: Job) -> Iterator[ColumnGate]:
    """The gates of one check on a column. key: the check's place in the job, as `checks[0]`."""
    for place, end, bound in limits_of(check, key):
        yield End(place, check.column, end, bound)
    if check.nulls is not None:
        yield Nulls(f"{key}.nulls", check.column, check.nulls)
    if check.finite:
        yield Finite(f"{key}.finite", check.column)


@dataclass(frozen=True)
class End(Limited, ColumnGate):
    """No value lies beyond `bound`. An infinite value can lie beyond it; NaN never passes."""

    JUDGES = frozenset({"", "number"})

    def spares(self, state: ColumnState) -> bool:
        value = self._outermost(state)
        return not self.can_judge(state.kind) or not (state.nan or (value is not None and not self.holds(value)))

    def judge_column(self, state: ColumnState) -> GateResult:
        value = self._outermost(state)
        if value is None and not state.nan:
            sentence = (
                f"{self.column!r} has no finite value in {counted(state.rows, 'row')} to compare with {self.key} = "
                f"{self.limit}. Mend the input or the model, or remove {self.key}."
            )
            return GateResult(self.name, False, "no value", self.limit, sentence)
        passed = self.spares(state)
        values = [] if value is None else [number(value)]
        observed = ", ".join([*values, *([f"{state.nan:,} NaN"] if state.nan else [])])
        sentence = f"The {_WORDS[self.end]} {self.column!r} is {observed}; {self.key} = {self.limit} holds."
        return GateResult(self.name, passed, observed, self.limit, sentence if passed else self._fault(state, value))

    def _fault(self, state: ColumnState, value: Number | None) -> str:
        said, remedy = [], "remove"
        if value is not None and not self.holds(value):
            where, remedy = f"{self.side} {self.key} = {self.limit}", self.remedy
            said.append(f"The {_WORDS[self.end]} {self.column!r} is {number(value)}, {where}.")
        if state.nan:
            said.append(
                f"{self.column!r} is NaN in {counted(state.nan, 'row')}, and {self.key} = {self.limit} "
                "does not allow NaN."
            )
        return f"{' '.join(said)} Mend the input or the model, or {remedy} {self.key}."

    def _outermost(self, state: ColumnState) -> Number | None:
        """The smallest or greatest value, with infinite values."""
        if self.end == "min":
            return -math.inf if state.minus_inf else state.min
        return math.inf if state.plus_inf else state.max


@dataclass(frozen=True)
class Nulls(ColumnGate):
    """At most the share `share` of the rows is null. NaN counts as null, because pandas and numpy write nulls as
    NaN.
    """

    share: float

    @property
    def limit(self) -> str:
        return f"{self.share:g} of the rows"

    def spares(self, state: ColumnState) -> bool:
        return not self._absent(state)

    def judge_column(self, state: ColumnState) -> GateResult:
        rows, absent, allowed = state.rows, self._absent(state), budget_rows(self.share, state.rows)
        observed, limit = f"{absent:,} of {rows:,} rows", f"{allowed:,} rows ({self.share:g})"
        what = "null" if absent == state.nulls else "null or NaN"
        said = f"{self.column!r} is {what} in {counted(absent, 'row')}"
        if absent <= allowed:
            return GateResult(self.name, True, observed, limit, f"{said}; {self.key} = {self.share:g} holds.")
        sentence = (
            f"{said}, more than the {allowed:,} that {self.key} = {self.share:g} allows. "
            f"Mend the input or the model, or raise {self.key}."
        )
        return GateResult(self.name, False, observed, limit, sentence)

    def _absent(self, state: ColumnState) -> int:
        # In a list NaN is one of the items, which the gate `finite` judges.
        return state.nulls + (0 if state.kind == "list" else state.nan)


@dataclass(frozen=True)
class Finite(ColumnGate):
    """No value is NaN or infinite; in a list no item is."""

    JUDGES = frozenset({"", "number", "list"})

    @property
    def limit(self) -> str:
        return "0"

    def spares(self, state: ColumnState) -> bool:
        return not state.nonfinite

    def judge_column(self, state: ColumnState) -> GateResult:
        observed = f"{state.nonfinite:,} not finite"
        if not state.nonfinite:
            sentence = f"Every value of {self.column!r} is finite; {self.key} holds."
            return GateResult(self.name, True, observed, "0", sentence)
        sentence = (
            f"{self.column!r} is NaN or infinite in {counted(state.nonfinite, 'value')}, which {self.key} forbids. "
            f"Mend the input or the model, or remove {self.key}."
        )
        return GateResult(self.name, False, observed, "0", sentence)
