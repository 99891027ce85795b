"""The distribution of the numbers of a column: moments, extreme values, and bins whose edges never change, so that two
nights can be compared bin by bin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from nightjar.inference.metrics.encoding import State
from nightjar.inference.metrics.figures import NumberFigures

COARSEST, FINEST = 6, 31
"""Bits of a bin: a power of two has 2^bits bins. With 6 a value is at most 1/128 of itself from the middle of its bin;
with 31 each float32, and each integer of 32 bits, has a bin of its own.
"""

MOST_BINS = 256
"""The most bins of a column whose bins are finer than the coarsest."""

_SOME = 4096
"""Values that say how fine the bins of more of them can be at most."""

_SPARSE = 16
"""Keys that lie this many times further apart than there are of them are sorted; others have a counter each."""

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
class Tally(State):
    """How many values each bin holds."""

    keys: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """The bins that hold values, ascending, as int64 of shape (bins,)."""

    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """The values in each bin, as int64 of shape (bins,)."""

    @classmethod
    def of(cls, keys: np.ndarray) -> Self:
        """Count keys, each of one value."""
        first, last = (int(keys.min()), int(keys.max())) if len(keys) else (0, 0)
        if last - first > _SPARSE * len(keys):
            return cls(*np.unique(keys, return_counts=True))
        counts = np.bincount(keys - first)
        filled = np.flatnonzero(counts)
        return cls(filled + first, counts[filled])

    def merge(self, other: Tally) -> None:
        """Add another's values. Its keys need not be there once each."""
        if np.array_equal(self.keys, other.keys):
            self.counts = self.counts + other.counts
            return
        keys, counts = np.concatenate([self.keys, other.keys]), np.concatenate([self.counts, other.counts])
        order = np.argsort(keys, kind="stable")  # a stable sort only merges what is two ascending runs
        keys, counts = keys[order], counts[order]
        firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        self.keys, self.counts = keys[firsts], np.add.reduceat(counts, firsts)


@dataclass(slots=True)
class Bins(Tally):
    """Bins by `keys_of`, as fine as `MOST_BINS` allow, so that values that lie close together are told apart.

    How fine they are depends on the values alone, in whatever order they are added: more values never need fewer bins.
    """

    bits: int = FINEST
    """As in `COARSEST, FINEST`."""

    @classmethod
    def holding(cls, values: np.ndarray) -> Bins:
        """The bins of finite float64 values."""
        # Bins that are too many for some of the values are not counted for all, which would sort them.
        some = values[:: max(1, len(values) // _SOME)]
        bits = cls.holding(some).bits if len(some) < len(values) else FINEST
        found = cls.of(keys_of(values, bits))
        found.bits = bits
        return found._few()

    def merge(self, other: Tally) -> None:
        assert isinstance(other, Bins)
        bits = min(self.bits, other.bits)
        found = self.at(bits)
        Tally.merge(found, other.at(bits))
        found = found._few()
        self.keys, self.counts, self.bits = found.keys, found.counts, found.bits

    def at(self, bits: int) -> Bins:
        """The same values in coarser bins. bits: at most as many as now."""
        if bits == self.bits:
            return self
        found = Bins(bits=bits)
        Tally.merge(found, Tally(self._keys(bits), self.counts))
        return found

    def _few(self) -> Bins:
        if len(self.keys) <= MOST_BINS:
            return self
        magnitudes, signs = np.abs(self.keys) - 1, np.sign(self.keys)
        # Two bins become one where no bit differs that is left.
        differ = np.where(signs[1:] == signs[:-1], magnitudes[1:] ^ magnitudes[:-1], np.iinfo(np.int64).max)
        least = int(np.partition(differ, -MOST_BINS)[-MOST_BINS])
        return self.at(max(self.bits - least.bit_length(), COARSEST))

    def _keys(self, bits: int) -> np.ndarray:
        # The bin of 0 stays: its neighbours have the keys 1 and -1.
        keys: np.ndarray = np.sign(self.keys) * (((np.abs(self.keys) - 1) >> (self.bits - bits)) + 1)
        return keys


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
            self.merge(NumberState(0, 0, 0, low, high, Moments.of(finite), Bins.holding(finite)))

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
        found = float(middles(self.bins.keys[index : index + 1], self.bins.bits)[0])
        return min(max(found, self.min), self.max) + 0.0  # 0 rather than -0


def keys_of(values: np.ndarray, bits: int = FINEST) -> np.ndarray:
    """The bin of each float64 that is no NaN: monotone, and the same on every machine. 0 has a bin of its own.

    Read as integers, the leading bits of the magnitudes are ordered like the magnitudes.
    """
    keys: np.ndarray = (np.abs(values).view(np.int64) >> (52 - bits)) + 1
    keys[values == 0] = 0
    np.negative(keys, out=keys, where=values < 0)
    return keys


def lowest(keys: np.ndarray, bits: int) -> np.ndarray:
    """The lower ends of bins; of one below 0 that is the end away from 0, which the bin does not hold."""
    ends: np.ndarray = (np.where(keys > 0, keys - 1, -keys) << (52 - bits)).view(np.float64)
    return np.where(keys > 0, ends, -ends)


def middles(keys: np.ndarray, bits: int) -> np.ndarray:
    """The middles of bins; of the finest ones their ends towards 0, which are all the float32 that they hold."""
    magnitudes = np.abs(keys)
    low, high = lowest(magnitudes, bits), lowest(magnitudes + 1, bits)
    whole = (keys == 0) | (bits == FINEST) | np.isinf(high)
    with np.errstate(invalid="ignore"):
        found = np.where(whole, low, low + (high - low) / 2)
    return np.where(keys > 0, found, -found)
