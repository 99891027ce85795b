"""Metrics of labels 0 and 1 against binned scores: each with the largest error that the bins can make.

All are computed from integer counts, and so are the same after any kill and resume. Scores in one bin count as equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nightjar.inference.metrics.figures import AtThreshold, Bounded, CalibrationBin

CALIBRATION_BINS = 16
"""The bins of [0, 1] for the calibration; their edges are edges of the finer bins, too."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What was counted. pairs: int64 of shape (bins, 2): the negatives and positives of each bin, in ascending order of
    score. inside: the bins of [0, 1], all of one width.
    """

    pairs: np.ndarray
    inside: slice

    @property
    def negatives(self) -> int:
        """The number of rows with label 0."""
        return int(self.pairs[:, 0].sum())

    @property
    def positives(self) -> int:
        """The number of rows with label 1."""
        return int(self.pairs[:, 1].sum())

    @property
    def fine(self) -> int:
        """The number of bins of [0, 1]."""
        return int(self.inside.stop - self.inside.start)

    def auroc(self) -> Bounded:
        """Area under the ROC curve by the trapezoid rule: U / (P·N), a tie counting half.

        U is Mann and Whitney's statistic (Ann. Math. Stat. 18, 1947, doi:10.1214/aoms/1177730491); its equality with
        the trapezoid area is Hanley and McNeil's (Radiology 143, 1982, doi:10.1148/radiology.143.1.7063747). Each pair
        in one bin is wrong by at most a half, hence the bound Σ pos·neg / (2·P·N). All sums are integers, and the
        result is rounded once.
        """
        wins = tied = below = 0  # `wins` counts halves
        for negative, positive in self._filled():
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
        for negative, positive in reversed(list(self._filled())):
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
        middles, half = self._middles(), 0.5 / self.fine
        errors = np.stack([middles, 1 - middles], axis=1)
        weights = self.pairs[self.inside] / (self.negatives + self.positives)
        return Bounded(float((weights * errors**2).sum()), float((weights * (2 * errors * half + half**2)).sum()))

    def calibration(self) -> tuple[CalibrationBin, ...]:
        """The calibration curve: the bins of [0, 1] that have rows."""
        middles, per = self._middles(), self.fine // CALIBRATION_BINS
        found = []
        for first in range(0, self.fine, per):
            rows = self.pairs[self.inside][first : first + per].sum(axis=1)
            positives = self.pairs[self.inside][first : first + per, 1].sum()
            if (count := int(rows.sum())) > 0:
                mean = float((rows * middles[first : first + per]).sum() / count)
                found.append(CalibrationBin(count, mean, float(positives / count)))
        return tuple(found)

    def ece(self) -> Bounded:
        """Expected calibration error: Σ rows/all · |mean score − share of label 1| over 16 bins of one width (Naeini et
        al., AAAI 2015). A mean is wrong by at most half a fine bin.
        """
        bins = self.calibration()
        rows = sum(each.rows for each in bins)
        value = sum(each.rows * abs(each.mean_score - each.positive_share) for each in bins) / rows
        return Bounded(value, 0.5 / self.fine)

    def at(self, threshold: float) -> AtThreshold:
        """Predictions: 1 from the threshold on, which is rounded to an edge of the bins; exact for scores beyond it."""
        edge = min(max(round(threshold * self.fine), 1), self.fine - 1)
        below, above = np.split(self.pairs, [self.inside.start + edge])
        true_negatives, false_negatives = map(int, below.sum(axis=0))
        false_positives, true_positives = map(int, above.sum(axis=0))
        rows, predicted, positives = int(self.pairs.sum()), true_positives + false_positives, self.positives
        return AtThreshold(
            threshold=edge / self.fine,
            true_negatives=true_negatives,
            false_positives=false_positives,
            false_negatives=false_negatives,
            true_positives=true_positives,
            accuracy=_share(true_positives + true_negatives, rows),
            precision=_share(true_positives, predicted),
            recall=_share(true_positives, positives),
            f1=_share(2 * true_positives, predicted + positives),
        )

    def _filled(self) -> Iterator[tuple[int, int]]:
        yield from map(tuple, self.pairs[self.pairs.any(axis=1)].tolist())

    def _middles(self) -> np.ndarray:
        return (np.arange(self.fine) + 0.5) / self.fine


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
