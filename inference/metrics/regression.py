"""Labels that are numbers against outputs that are numbers, as a state that merges exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import is_number
from nightjar.inference.errors import LabelInvalid
from nightjar.inference.metrics.columns import floats
from nightjar.inference.metrics.evaluator import Evaluator, Labels
from nightjar.inference.metrics.figures import Bounded, Evaluation, RegressionFigures
from nightjar.inference.metrics.numbers import BLOCK, SMALLEST, exact_sum

_SPLIT = 2.0**27 + 1
"""Veltkamp's constant: it cuts a float64 into two halves whose products are exact."""

_SUMS = ("errors", "absolute", "squares", "labels", "label_squares")


@dataclass(slots=True)
class RegressionState(Evaluator):
    """Numbers against numbers. An error is the output less the label, rounded to a float64.

    A row whose label is null or NaN counts only as `unlabelled`; another row whose output is null or NaN counts as
    `unscored`. huge: compared rows whose error, or a square of it or of the label, is no finite float; with any there
    are no figures. errors, absolute, squares, labels, label_squares: the exact sums over the others, in units of
    2^-1126: of errors, their magnitudes and their squares, each rounded to a float, and of labels and their squares,
    which are not rounded, because their difference may be small.
    """

    TASK: ClassVar[str] = "regression"
    LABELS: ClassVar[str] = "a number"
    SCORES: ClassVar[str] = "a number"
    EXAMPLE: ClassVar[str] = "minutes: float32"

    label: str
    score: str
    unlabelled: int = 0
    unscored: int = 0
    rows: int = 0
    huge: int = 0
    errors: int = 0
    absolute: int = 0
    squares: int = 0
    labels: int = 0
    label_squares: int = 0

    @staticmethod
    def takes_label(type_: pa.DataType) -> bool:
        """Whether labels may be of this type."""
        return is_number(type_)

    @staticmethod
    def takes_score(type_: pa.DataType) -> bool:
        """Whether outputs may be of this type."""
        return is_number(type_)

    def check(self, labels: Labels) -> None:
        self._numbers(labels)

    def _numbers(self, labels: Labels) -> np.ndarray:
        expected = floats(self.typed(labels))
        if (infinite := np.isinf(expected)).any():
            value = expected[infinite][0].item()
            raise LabelInvalid(f"label column {self.label!r} holds {value!r}; it must be a finite number or null")
        return expected

    def update(self, rows: pa.Table, labels: Labels) -> None:
        expected, found = self._numbers(labels), floats(self.outputs(rows, labels))
        known, given = ~np.isnan(expected), ~np.isnan(found)
        self.unlabelled += len(expected) - int(known.sum())
        self.unscored += int((known & ~given).sum())
        expected, found = expected[known & given], found[known & given]
        for first in range(0, len(expected), BLOCK):
            self._add(expected[first : first + BLOCK], found[first : first + BLOCK])

    def _add(self, expected: np.ndarray, found: np.ndarray) -> None:
        self.rows += len(expected)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = found - expected
            fine = np.isfinite(errors * errors) & np.isfinite(expected * expected)
        self.huge += len(fine) - int(fine.sum())
        errors, expected = errors[fine], expected[fine]
        squares = expected * expected
        self.errors += exact_sum(errors)
        self.absolute += exact_sum(np.abs(errors))
        self.squares += exact_sum(errors * errors)
        self.labels += exact_sum(expected)
        self.label_squares += exact_sum(squares) + exact_sum(_remainders(expected, squares))

    def merge(self, other: RegressionState) -> None:
        for name in ("unlabelled", "unscored", "rows", "huge", *_SUMS):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def values(self) -> tuple[Any, ...]:
        """The fields' values for JSON; the large sums as hexadecimal text."""
        return tuple(
            format(value, "x") if each.name in _SUMS else value
            for each in fields(self)
            for value in [getattr(self, each.name)]
        )

    @classmethod
    def of_values(cls, values: tuple[Any, ...]) -> RegressionState:
        """The inverse of `values`."""
        counts, sums = values[: -len(_SUMS)], values[-len(_SUMS) :]
        return cls(*counts, *(int(each, 16) for each in sums))

    def results(self) -> Evaluation:
        """The figures; each missing figure has a reason."""
        found = {name: self.metric(name) for name in ("rmse", "mae", "bias", "r2")}
        value = {name: each.value if isinstance(each, Bounded) else None for name, each in found.items()}
        reason, r2_reason = (each if isinstance(each, str) else None for each in (found["rmse"], found["r2"]))
        return self.evaluation(
            numbers=RegressionFigures(**value, reason=reason, r2_reason=None if reason else r2_reason),
        )

    def metric(self, name: str, threshold: float = 0.5) -> Bounded | str:
        """A metric, or why there is none. The sums are exact, and a figure is rounded once or twice."""
        if not self.rows:
            return "no row has both a label and an output"
        if self.huge:
            return f"{self.huge} errors are infinite, or too large to be squared"
        whole = self.rows << SMALLEST
        if name == "rmse":
            return Bounded(math.sqrt(self.squares / whole))
        if name == "mae":
            return Bounded(self.absolute / whole)
        return Bounded(self.errors / whole) if name == "bias" else self._r2()

    def _r2(self) -> Bounded | str:
        """1 − Σ(f − y)² / Σ(y − ȳ)², the coefficient of determination, with Σ(y − ȳ)² = Σy² − (Σy)²/n."""
        total = (self.label_squares * self.rows << SMALLEST) - self.labels * self.labels
        if total <= 0:
            return "all labels are equal"
        try:
            return Bounded((total - (self.squares * self.rows << SMALLEST)) / total)
        except OverflowError:
            return "the labels are nearly equal, and the errors far larger"


def _remainders(values: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """What the squares of values lack, each a float of its own (Dekker, Numer. Math. 18, 1971,
    doi:10.1007/BF01397083). Exact, unless the remainder is smaller than the smallest float.
    """
    cut = values * _SPLIT
    high = cut - (cut - values)
    low = values - high
    remainders: np.ndarray = ((high * high - squares) + 2 * high * low) + low * low
    return remainders
