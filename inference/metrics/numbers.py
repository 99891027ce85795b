"""The distribution of the numbers of a column: moments, extreme values, and bins that never change, so that two nights
can be compared bin by bin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from nightjar.inference.metrics.encoding import State
from nightjar.inference.metrics.figures import NumberFigures

_BITS = 6
"""A power of two has 2^6 bins, so that a value is at most 1/128 of itself from the middle of its bin."""

_SHIFT = 52 - _BITS

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(slots=True)
class Moments(State):
    """The number of finite values, their mean, and the sum of their squared deviations from it. The sums are merged
    without cancellation (Chan, Golub and LeVeque, 1979). A sum that is too large for a float is infinite or NaN.
    """

    count: int = 0
    mean: float = 0.0
    deviations: float = 0.0

    @classmethod
    def of(cls, values: np.ndarray) -> Moments:
        """The moments of finite float64 values."""
        if not len(values):
            return cls()
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(values[0] + (values - values[0]).mean())  # of equal values exactly that value
            mean = mean if math.isfinite(mean) else float((values / len(values)).sum())
            return cls(len(values), mean, float(np.square(values - mean).sum()))

    def merge(self, other: Moments) -> None:
        if not other.count:
            return
        if not self.count:
            self.count, self.mean, self.deviations = other.count, other.mean, other.deviations
            return
        count, apart = self.count + other.count, other.mean - self.mean
        if math.isfinite(apart):
            self.mean += apart * (other.count / count)
        else:
            self.mean = self.mean * (self.count / count) + other.mean * (other.count / count)
        self.deviations += other.deviations + apart * apart * self.count * (other.count / count)
        self.count = count


@dataclass(slots=True)
class Bins(State):
    """The bins that hold values. keys, counts: int64, of shape (bins,); the keys are in ascending order."""

    keys: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def merge(self, other: Bins) -> None:
        if np.array_equal(self.keys, other.keys):
            self.counts = self.counts + other.counts
            return
        keys, counts = np.concatenate([self.keys, other.keys]), np.concatenate([self.counts, other.counts])
        order = np.argsort(keys, kind="stable")  # a stable sort only merges what is two ascending runs
        keys, counts = keys[order], counts[order]
        firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        self.keys, self.counts = keys[firsts], np.add.reduceat(counts, firsts)


@dataclass(slots=True)
class NumberState(State):
    """Finite numbers, and how many were not finite."""

    nan: int = 0
    """Values that are NaN."""

    plus_inf: int = 0
    """Values that are +inf."""

    minus_inf: int = 0
    """Values that are -inf."""

    min: float | None = None
    """The least finite number; None if there is none."""

    max: float | None = None
    """The greatest finite number; None if there is none."""

    moments: Moments = field(default_factory=Moments)
    """The moments of the finite numbers."""

    bins: Bins = field(default_factory=Bins)
    """How many finite numbers each bin holds, by the keys of `keys_of`."""

    def update(self, values: np.ndarray) -> None:
        """Add values of shape (rows,). Integers that are no float64 are rounded to one."""
        finite = values[np.isfinite(values)].astype(np.float64, copy=False)
        if len(finite) < len(values):
            self.nan += int(np.isnan(values).sum())
            self.plus_inf += int((values == np.inf).sum())
            self.minus_inf += int((values == -np.inf).sum())
        if len(finite):
            low, high = float(finite.min()) + 0.0, float(finite.max()) + 0.0  # 0 rather than -0
            bins = Bins(*np.unique(keys_of(finite), return_counts=True))
            self.merge(NumberState(0, 0, 0, low, high, Moments.of(finite), bins))

    def results(self) -> NumberFigures | None:
        """The figures; None if no value is finite."""
        if self.min is None or self.max is None:
            return None
        deviation = math.sqrt(self.moments.deviations / self.moments.count)
        return NumberFigures(
            count=self.moments.count,
            mean=min(max(self.moments.mean, self.min), self.max),
            std=deviation if math.isfinite(deviation) else None,
            min=self.min,
            max=self.max,
            quantiles={f"p{share * 100:g}": self.quantile(share) for share in QUANTILES},
        )

    def quantile(self, share: float) -> float:
        """The smallest value that at least this share of the values does not exceed, within 1/128 of itself."""
        index = int(np.searchsorted(np.cumsum(self.bins.counts), math.ceil(share * self.moments.count) or 1))
        assert self.min is not None
        assert self.max is not None
        return min(max(middle(int(self.bins.keys[index])), self.min), self.max) + 0.0  # 0 rather than -0


def keys_of(values: np.ndarray, bits: int = _BITS) -> np.ndarray:
    """The bin of each float64 that is no NaN: monotone, and the same on every machine. 0 has a bin of its own. A power
    of two has 2^bits bins.

    Read as integers, the leading bits of the magnitudes are ordered like the magnitudes.
    """
    keys: np.ndarray = (np.abs(values).view(np.int64) >> (52 - bits)) + 1
    keys[values == 0] = 0
    np.negative(keys, out=keys, where=values < 0)
    return keys


def lowest(key: int) -> float:
    """The lower end of a bin; of one below 0 that is the end away from 0."""
    if key > 0:
        return float((np.array([key - 1], np.int64) << _SHIFT).view(np.float64)[0])
    return -lowest(1 - key) if key else 0.0


def middle(key: int) -> float:
    """The middle of a bin."""
    low, high = lowest(abs(key)), lowest(abs(key) + 1)
    found = low + (high - low) / 2 if key and np.isfinite(high) else low
    return found if key > 0 else -found
