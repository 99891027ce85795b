"""Labels that are numbers against outputs that are numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import is_number
from nightjar.inference.metrics.columns import floats
from nightjar.inference.metrics.evaluator import Evaluator, Labels
from nightjar.inference.metrics.figures import Bounded
from nightjar.inference.metrics.numbers import Moments


@dataclass(slots=True)
class RegressionState(Evaluator):
    """Numbers against numbers. An error is the output less the label."""

    TASK: ClassVar[str] = "regression"
    LABELS: ClassVar[str] = "a number"
    SCORES: ClassVar[str] = "a number"
    EXAMPLE: ClassVar[str] = "minutes: float32"
    VALUES: ClassVar[str] = "a finite number"
    takes_label = takes_score = staticmethod(is_number)

    errors: float = 0.0
    """The sum of the errors."""

    absolute: float = 0.0
    """The sum of the magnitudes of the errors."""

    squares: float = 0.0
    """The sum of the squares of the errors."""

    labels: Moments = field(default_factory=Moments)
    """The moments of the labels of the compared rows."""

    def update(self, rows: pa.Table, labels: Labels) -> None:
        expected, found = self.numbers(labels), floats(self.outputs(rows, labels))
        compared = self.compared(~np.isnan(expected), ~np.isnan(found))
        expected, found = expected[compared], found[compared]
        self.rows += len(expected)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = found - expected
            self.errors += float(errors.sum())
            self.absolute += float(np.abs(errors).sum())
            self.squares += float(np.square(errors).sum())
        self.labels.merge(Moments.of(expected))

    def metric(self, name: str, threshold: float = 0.5) -> Bounded | str:
        """As `Evaluator.metric`. r2: 1 − Σ(f − y)² / Σ(y − ȳ)², the coefficient of determination."""
        if not self.rows:
            return "no row has both a label and an output"
        if not math.isfinite(self.squares):
            return "an error is infinite, or the sum of their squares is too large for a float"
        if name == "r2" and not 0 < self.labels.deviations < math.inf:
            return "all labels are equal" if not self.labels.deviations else "the labels are too far from each other"
        value = {
            "rmse": lambda: math.sqrt(self.squares / self.rows),
            "mae": lambda: self.absolute / self.rows,
            "bias": lambda: self.errors / self.rows,
            "r2": lambda: 1 - self.squares / self.labels.deviations,
        }[name]()
        return Bounded(value) if math.isfinite(value) else "it is too large for a float"
