"""Labels 0 and 1 against scores, counted in bins: each metric with the largest error that the bins can make.

Scores in one bin count as equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import is_native_number
from nightjar.inference.metrics.columns import floats
from nightjar.inference.metrics.evaluator import Evaluator, Labels
from nightjar.inference.metrics.figures import Bounded, CalibrationBin, Predictions
from nightjar.inference.metrics.numbers import Tally, keys_of, lowest

_UNIFORM = 4096
"""The bins of one width that [0, 1] would have. Its ends have finer ones, but with the same edges among theirs."""

_BITS = 8
"""Below 1/16, a power of two of the score has 2^8 bins; from 15/16 on, one of its distance from 1; and so outside of
[0, 1]. So the scores of rare events, and those of a model that is nearly sure, are told apart.
"""

_TAIL = int(keys_of(np.array([1 / 16]), _BITS)[0])
"""The bin that begins with 1/16; that of 0 is 0."""

_TOP = _TAIL + _UNIFORM * 14 // 16
"""The bin that begins with 15/16."""

_ONE = _TOP + _TAIL - 1
"""The bin of 1."""

_CLIP = 1e-7
_UNDEFINED = {
    "precision": "no row is predicted 1",
    "recall": "no row has label 1",
    "f1": "no row has label 1 or is predicted 1",
}

CALIBRATION_BINS = 16
"""The bins of [0, 1] for the calibration; their edges are edges of the finer bins, too."""


@dataclass(slots=True)
class BinaryState(Evaluator):
    """Labels 0 and 1 against scores, counted in bins of the score, which never change.

    outside: the scores outside of [0, 1]. counted: the bins, of which those of negatives and of positives alternate.
    loss: the sum over the scores in [0, 1]. The log loss is the mean of −[y ln p + (1 − y) ln(1 − p)], with p clipped
    to [1e-7, 1 − 1e-7].
    """

    TASK: ClassVar[str] = "binary"
    LABELS: ClassVar[str] = "bool, or 0 and 1"
    SCORES: ClassVar[str] = "a float"
    EXAMPLE: ClassVar[str] = "score: float32"
    VALUES: ClassVar[str] = "0, 1"
    takes_label = staticmethod(is_native_number)
    takes_score = staticmethod(pa.types.is_floating)

    outside: int = 0
    loss: float = 0.0
    counted: Tally = field(default_factory=Tally)

    def update(self, rows: pa.Table, labels: Labels) -> None:
        values, found = floats(self.outputs(rows, labels)), self.numbers(labels)
        compared = self.compared(~np.isnan(found), ~np.isnan(values))
        values, positive = values[compared], found[compared] == 1
        self.rows += len(values)
        self.counted.merge(Tally.of(_bins(values) * 2 + positive))
        inside = (values >= 0) & (values <= 1)
        self.outside += len(values) - int(inside.sum())
        # |p − 0| of a positive, |p − 1| of a negative, without a branch for each row.
        p = np.abs(np.clip(values[inside], _CLIP, 1 - _CLIP) - ~positive[inside])
        self.loss -= float(np.log(p).sum())

    def metric(self, name: str, threshold: float = 0.5) -> Bounded | str:
        scores = self._scores
        if not self.rows:
            return "no row has both a label and a score"
        if name in ("auroc", "average_precision"):
            if not scores.positives or not scores.negatives:
                return f"no row has label {0 if scores.positives else 1}"
            return scores.auroc() if name == "auroc" else scores.average_precision()
        if self.outside:
            return f"{self.outside} scores lie outside [0, 1]"
        if name == "log_loss":
            return Bounded(self.loss / self.rows)
        if name == "brier":
            return scores.brier()
        return scores.ece() if name == "ece" else _of_predictions(name, scores.at(threshold))

    def details(self) -> dict[str, Any]:
        """The number of rows with label 1; of scores in [0, 1] the predictions and the calibration."""
        scores, inside = self._scores, self.rows and not self.outside
        return {
            "positives": scores.positives,
            "predictions": scores.at(0.5) if inside else None,
            "calibration": scores.calibration() if inside else (),
        }

    @property
    def _scores(self) -> Scores:
        bins, at = np.unique(self.counted.keys >> 1, return_inverse=True)
        pairs = np.zeros((len(bins), 2), np.int64)
        pairs[at, self.counted.keys & 1] = self.counted.counts
        return Scores(bins, pairs)

    def fits(self, known: np.ndarray) -> np.ndarray:
        found: np.ndarray = (known == 0) | (known == 1)
        return found


@dataclass(frozen=True, slots=True)
class Scores:
    """What was counted. bins: those that hold rows, in ascending order of score. pairs: int64 of shape (bins, 2): the
    negatives and positives of each. All metrics but the first two need scores in [0, 1].
    """

    bins: np.ndarray
    pairs: np.ndarray

    @property
    def negatives(self) -> int:
        """The number of rows with label 0."""
        return int(self.pairs[:, 0].sum())

    @property
    def positives(self) -> int:
        """The number of rows with label 1."""
        return int(self.pairs[:, 1].sum())

    def auroc(self) -> Bounded:
        """Area under the ROC curve by the trapezoid rule: U / (P·N), a tie counting half.

        U is Mann and Whitney's statistic (Ann. Math. Stat. 18, 1947, doi:10.1214/aoms/1177730491); its equality with
        the trapezoid area is Hanley and McNeil's (Radiology 143, 1982, doi:10.1148/radiology.143.1.7063747). Each pair
        in one bin is wrong by at most a half, hence the bound Σ pos·neg / (2·P·N). All sums are integers, and the
        result is rounded once.
        """
        wins = tied = below = 0  # `wins` counts halves
        for negative, positive in self.pairs.tolist():
            wins += positive * (2 * below + negative)
            tied += positive * negative
            below += negative
        total = 2 * self.positives * self.negatives
        return Bounded(wins / total, tied / total)

    def average_precision(self) -> Bounded:
        """Area under the curve of precision and recall, as the sum Σ (R_n − R_{n−1}) P_n over falling thresholds. (The
        trapezoid rule would be too optimistic: Davis and Goadrich, ICML 2006.)

        The order in a bin is not known. Its positives would have the highest precision in front of its negatives, and
        the lowest behind them; the bound is the larger of the two differences.
        """
        value = low = high = 0.0
        true = false = 0
        for negative, positive in reversed(self.pairs.tolist()):
            if positive:
                value += positive * ((true + positive) / (true + positive + false + negative))
                high += positive * ((true + positive) / (true + positive + false))
                low += positive * ((true + 1) / (true + 1 + false + negative))
            true, false = true + positive, false + negative
        return Bounded(value / true, max(high - value, value - low) / true)

    def brier(self) -> Bounded:
        """The mean of (p − y)², with p the middle of its bin (Brier, Monthly Weather Review 78, 1950).

        p is wrong by at most half a bin, δ, so the square by at most 2·|p − y|·δ + δ².
        """
        middles, halves = _centres(self.bins)
        errors, half = np.stack([middles, 1 - middles], axis=1), halves[:, np.newaxis]
        weights = self.pairs / self.pairs.sum()
        return Bounded(float((weights * errors**2).sum()), float((weights * (2 * errors * half + half**2)).sum()))

    def calibration(self) -> tuple[CalibrationBin, ...]:
        """The calibration curve: the bins of [0, 1] that have rows."""
        middles, _ = _centres(self.bins)
        coarse, found = np.minimum((middles * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1), []
        for each in np.unique(coarse):
            pairs = self.pairs[coarse == each]
            rows, positives = int(pairs.sum()), int(pairs[:, 1].sum())
            mean = float((pairs.sum(axis=1) * middles[coarse == each]).sum() / rows)
            found.append(CalibrationBin(rows, mean, positives / rows))
        return tuple(found)

    def ece(self) -> Bounded:
        """Expected calibration error: Σ rows/all · |mean score − share of label 1| over 16 bins of one width (Naeini et
        al., AAAI 2015). A mean is wrong by at most half of its fine bins.
        """
        bins = self.calibration()
        rows = sum(each.rows for each in bins)
        value = sum(each.rows * abs(each.mean_score - each.positive_share) for each in bins) / rows
        return Bounded(value, float((self.pairs.sum(axis=1) * _centres(self.bins)[1]).sum()) / rows)

    def at(self, threshold: float) -> Predictions:
        """Predictions: 1 from the threshold on, which is rounded to an edge of the bins; exact for scores beyond it."""
        edge = min(max(round(threshold * _UNIFORM), 1), _UNIFORM - 1) / _UNIFORM
        upper = self.bins >= _bins(np.array([edge]))[0]
        return Predictions(edge, *map(int, (*self.pairs[~upper].sum(axis=0), *self.pairs[upper].sum(axis=0))))


def _of_predictions(name: str, found: Predictions) -> Bounded | str:
    right = found.true_positives
    part, whole = {
        "accuracy": (right + found.true_negatives, found.rows),
        "precision": (right, right + found.false_positives),
        "recall": (right, right + found.false_negatives),
        "f1": (2 * right, 2 * right + found.false_positives + found.false_negatives),
    }[name]
    return Bounded(part / whole) if whole else _UNDEFINED[name]


def _bins(values: np.ndarray) -> np.ndarray:
    """The bin of each score: fixed and monotone. A score on an edge is in the bin above the edge."""
    found: np.ndarray = (np.clip(values, 0, 1) * _UNIFORM).astype(np.int64) + (_TAIL - _UNIFORM // 16)
    low, top, above = np.flatnonzero(values < 1 / 16), np.flatnonzero(values >= 15 / 16), np.flatnonzero(values > 1)
    found[low] = keys_of(values[low], _BITS)
    found[top] = _ONE - keys_of(np.nextafter(1 - np.minimum(values[top], 1), 0), _BITS)
    found[above] = keys_of(values[above], _BITS) - keys_of(np.ones(1), _BITS) + _ONE + 1
    return found


def _edges(bins: np.ndarray) -> np.ndarray:
    """The ends of bins of [0, 1], of shape (2, bins)."""
    at = np.stack([bins, bins + 1])
    top = 1 - lowest(np.clip(_ONE + 1 - at, 0, _TAIL), _BITS)
    ends: np.ndarray = np.where(at <= _TAIL, lowest(at, _BITS), (at - _TAIL) / _UNIFORM + 1 / 16)
    ends[at > _TOP] = top[at > _TOP]
    return ends


def _centres(bins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The middle of each bin of [0, 1], and half of its width."""
    low, high = _edges(bins)
    return (low + high) / 2, (high - low) / 2
