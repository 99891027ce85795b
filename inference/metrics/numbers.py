"""The distribution of the numbers of a column, as a state that merges exactly.

Sums are integers in units of the smallest float, and bins never change. So any grouping and any order of the same rows
give the same state, and two nights can be compared bin by bin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nightjar.inference.metrics.figures import NumberFigures
from nightjar.inference.metrics.packing import pack, unpack

SMALLEST = 1126
"""Sums are in units of 2^-1126: the last bit of the mantissa of the smallest float, as `numpy.frexp` gives it."""

BLOCK = 1 << 17
"""The most rows that are added at once."""

_BITS = 6
"""A power of two has 2^6 bins, so that a value is at most 1/128 of itself from the middle of its bin."""

_SHIFT = 52 - _BITS
_SIGN = 1 << (63 - _SHIFT)
"""What the leading bits of a float are less by, read as an integer, if it is negative."""

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(slots=True)
class NumberState:
    """Finite numbers, and how many were not finite.

    total, squares: the exact sums of the values and of their squares, each square rounded to a float; in units of
    2^-1126. huge: the values whose square is no float. keys, counts: the bins that hold values, in ascending order.
    """

    nan: int = 0
    plus_inf: int = 0
    minus_inf: int = 0
    low: float | None = None
    high: float | None = None
    total: int = 0
    squares: int = 0
    huge: int = 0
    keys: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def count(self) -> int:
        """The number of finite values."""
        return int(self.counts.sum())

    @property
    def ordered(self) -> int:
        """The number of values that lie below or above others: all but NaN."""
        return self.minus_inf + self.count + self.plus_inf

    def update(self, values: np.ndarray) -> None:
        """Add values of shape (rows,). Integers that are no float64 are rounded to one."""
        for first in range(0, len(values), BLOCK):
            block = values[first : first + BLOCK]
            if block.dtype.kind == "f" and not (np.isfinite(block.min()) and np.isfinite(block.max())):
                self._count_apart(block, np.ones(len(block), np.int64))
                block = block[np.isfinite(block)]
            if len(block):
                self._take(block.astype(np.float64, copy=False))

    def _take(self, block: np.ndarray) -> None:
        """Add finite float64 values."""
        self._ends(block)
        squares, small = _squares(block)
        self.huge += len(block) - int(small.sum())
        self.total += exact_sum(block)
        self.squares += exact_sum(squares[small])
        self._add_bins(*_binned(block))

    def update_few(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Add each of these float64 values as often as `counts` says: faster, where there are few."""
        finite = np.isfinite(values)
        self._count_apart(values, counts)
        values, counts = values[finite], counts[finite]
        if len(values):
            self._ends(values)
            squares, small = _squares(values)
            self.huge += int(counts[~small].sum())
            self.total += sum_of_few(values, counts)
            self.squares += sum_of_few(squares[small], counts[small])
            order = np.argsort(values, kind="stable")
            self._add_bins(keys_of(values[order]), counts[order])

    def _count_apart(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Count what is not finite."""
        self.nan += int(counts[np.isnan(values)].sum())
        self.plus_inf += int(counts[values == np.inf].sum())
        self.minus_inf += int(counts[values == -np.inf].sum())

    def _ends(self, values: np.ndarray) -> None:
        """Note the smallest and the largest of these finite values."""
        low, high = float(values.min()) + 0.0, float(values.max()) + 0.0
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)

    def _add_bins(self, keys: np.ndarray, counts: np.ndarray) -> None:
        self.keys, self.counts = added((self.keys, self.counts), (keys, counts))

    def merge(self, other: NumberState) -> None:
        """Add another's values to these."""
        self.nan += other.nan
        self.plus_inf += other.plus_inf
        self.minus_inf += other.minus_inf
        self.low = min((end for end in (self.low, other.low) if end is not None), default=None)
        self.high = max((end for end in (self.high, other.high) if end is not None), default=None)
        self.total += other.total
        self.squares += other.squares
        self.huge += other.huge
        if len(self.keys):
            self._add_bins(other.keys, other.counts)
        else:
            self.keys, self.counts = other.keys, other.counts

    def values(self) -> tuple[Any, ...]:
        """The fields' values for JSON."""
        sums = [format(each, "x") for each in (self.total, self.squares)]
        first = int(self.keys[0]) if len(self.keys) else 0
        bins = [first, pack(np.diff(self.keys, prepend=first)), pack(self.counts)]
        return (self.nan, self.plus_inf, self.minus_inf, self.low, self.high, *sums, self.huge, bins)

    @classmethod
    def of_values(cls, values: tuple[Any, ...]) -> NumberState:
        """The inverse of `values`."""
        nan, plus, minus, low, high, total, squares, huge, (first, gaps, counts) = values
        keys = np.cumsum(unpack(gaps)) + first
        return cls(nan, plus, minus, low, high, int(total, 16), int(squares, 16), huge, keys, unpack(counts))

    def results(self) -> NumberFigures | None:
        """The figures; None if no value is finite."""
        count = self.count
        if not count:
            return None
        assert self.low is not None
        assert self.high is not None
        return NumberFigures(
            count=count,
            mean=self.total / (count << SMALLEST),
            std=self._deviation(count),
            min=self.low,
            max=self.high,
            quantiles={f"p{share * 100:g}": self.quantile(share) for share in QUANTILES},
        )

    def _deviation(self, count: int) -> float | None:
        """The standard deviation of the population; None if a square is too large for a float."""
        if self.huge:
            return None
        # Sums of squares are in units of 2^-1126, squares of sums in units of its square: integers, so exact.
        # Python divides integers of any size, and rounds once.
        variance = (self.squares * count << SMALLEST) - self.total * self.total
        return math.sqrt(max(0.0, variance / (count * count << 2 * SMALLEST)))

    def quantile(self, share: float) -> float:
        """The smallest value that at least this share of the values does not exceed, within 1/128 of itself."""
        index = int(np.searchsorted(np.cumsum(self.counts), math.ceil(share * self.count) or 1))
        assert self.low is not None
        assert self.high is not None
        return min(max(middle(int(self.keys[index])), self.low), self.high) + 0.0  # 0 rather than -0


def added(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The bins of both, each a pair of ascending keys and their counts."""
    if np.array_equal(one[0], other[0]):
        return one[0], one[1] + other[1]
    keys, counts = np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])
    order = np.argsort(keys, kind="stable")  # a stable sort only merges what is two ascending runs
    keys, counts = keys[order], counts[order]
    firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[firsts], np.add.reduceat(counts, firsts)


def keys_of(values: np.ndarray) -> np.ndarray:
    """The bin of each finite float64: monotone, and the same on every machine. 0 has a bin of its own.

    Read as integers, the leading bits of the magnitudes are ordered like the magnitudes.
    """
    keys: np.ndarray = (np.abs(values).view(np.int64) >> _SHIFT) + 1
    keys[values == 0] = 0
    np.negative(keys, out=keys, where=values < 0)
    return keys


def _binned(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bins that hold these finite float64, in ascending order, and how many each holds."""
    # Counted by the leading bits as they are, sign included, because there are far fewer bins than values.
    leading = values.view(np.int64) >> _SHIFT
    first = int(leading.min())
    counts = np.bincount(leading - first)
    filled = np.flatnonzero(counts > 0)
    counts, leading = counts[filled], filled + first
    # Of a negative value the leading bits are its magnitude's, less 2^17 of them.
    magnitude = np.where(leading < 0, leading + _SIGN, leading)
    keys = np.where(leading < 0, -(magnitude + 1), magnitude + 1)
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    if zeros := np.count_nonzero(values == 0):
        for key, sign in ((1, False), (-1, True)):
            counts[keys == key] -= int((np.signbit(values) == sign)[values == 0].sum())
        keys, counts = added((keys, counts), (np.zeros(1, np.int64), np.array([zeros])))
        keys, counts = keys[counts > 0], counts[counts > 0]
    return keys, counts


def exact_sum(values: np.ndarray) -> int:
    """The sum of at most 2^26 finite float64 values in units of 2^-1126, without any rounding.

    Each mantissa is cut into halves of 27 and 26 bits. A float holds the sum of the halves with one exponent.
    """
    if not len(values):
        return 0
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, 27)
    halves, least = np.trunc(whole), int(exponents.min())
    exponents -= least
    high, low = (np.bincount(exponents, each) for each in (halves, np.ldexp(whole - halves, 26)))
    return sum(
        ((int(high[place]) << 26) + int(low[place])) << (place + least - 53 + SMALLEST)
        for place in np.flatnonzero((high != 0) | (low != 0)).tolist()
    )


def sum_of_few(values: np.ndarray, counts: np.ndarray) -> int:
    """As `exact_sum`, of each value as often as `counts` says."""
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    each = zip(whole.tolist(), exponents.tolist(), counts.tolist(), strict=True)
    return sum((mantissa * count) << (exponent - 53 + SMALLEST) for mantissa, exponent, count in each)


def _squares(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The squares of finite values, and which of them are floats."""
    with np.errstate(over="ignore"):
        squares = values * values
    return squares, np.isfinite(squares)


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
