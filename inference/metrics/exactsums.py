"""Sums of numbers without any rounding: integers in units of 2^-1126, so that no order of the terms matters."""

from __future__ import annotations

import math

import numpy as np

SMALLEST = 1126
"""Sums are in units of 2^-1126: the last bit of the mantissa of the smallest float, as `numpy.frexp` gives it."""

BLOCK = 1 << 17
"""The most rows that are added at once."""

_DIGITS = 45
"""The bits of a value that are added at once: 64 bits hold the sum of `BLOCK` such numbers."""

_FEW = 16
"""So few values are added in less time one by one."""

_EXPONENTS = 1000

_NARROW = 37
"""The bits of `narrow_sums`, from the first of the largest number to the last of all."""

_SINGLE = 24
"""The bits of the mantissa of a float32."""

_WHOLE = 26
"""The most bits of whole numbers whose squares are floats."""

_CHUNK = 1 << 14
"""The numbers of `narrow_sums` that are added at once: two arrays of them stay in the cache of a core."""

_LONE = 8
"""At most one in so many float32 may be too small to be added with the others."""


def exact_sum(values: np.ndarray) -> int:
    """The sum of finite float64 values in units of 2^-1126; at most `BLOCK` of them.

    The values are cut into multiples of ever smaller powers of two, which 64 bits hold and add exactly.
    """
    if len(values) <= _FEW:
        return sum_of_few(values, np.ones(len(values), np.int64))
    total = 0
    while len(values) and (peak := float(max(values.max(), -values.min()))):
        shift = _DIGITS - math.frexp(peak)[1]
        whole = np.trunc(_scaled(values, shift))  # rounded up, the largest float would be none
        total += int(whole.astype(np.int64).sum()) << (SMALLEST - shift)
        values = values - _scaled(whole, -shift)
    return total


def _scaled(values: np.ndarray, shift: int) -> np.ndarray:
    """The values times 2^shift."""
    # The power itself may be no float where the product is one.
    return values * 2.0**shift if abs(shift) < _EXPONENTS else np.ldexp(values, shift)


def sum_of_few(values: np.ndarray, counts: np.ndarray) -> int:
    """As `exact_sum`, of each value as often as `counts` says."""
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    each = zip(whole.tolist(), exponents.tolist(), counts.tolist(), strict=True)
    return sum((mantissa * count) << (exponent - 53 + SMALLEST) for mantissa, exponent, count in each)


def narrow_sums(values: np.ndarray, peak: float) -> tuple[int, int] | None:
    """The exact sums of finite numbers and of their squares, as `exact_sum` has them, in a fraction of its time; None
    where the numbers have too many bits. values: float32 or integers, at most `BLOCK`. peak: the largest magnitude.

    Each number, as it is added, is a whole number of `_NARROW` bits times the same power of two, and its square is a
    float of twice as many, which is cut into two parts. So each sum of `_CHUNK` of them has 51 bits at most: floats
    hold it exactly, in whatever order they are added. (Cut so by Ogita, Rump and Oishi, SIAM Journal on Scientific
    Computing 26, 2005.)
    """
    top = math.frexp(peak)[1]
    total = squares = 0
    if values.dtype != np.float32:
        if top > _WHOLE:
            return None
    elif len(small := _below(values, math.ldexp(1.0, top - _NARROW + _SINGLE - 1))):
        # The last bits of these are too small.
        lone = values[small].astype(np.float64)
        if np.count_nonzero(lone) * _LONE > len(values):
            return None
        total, squares = exact_sum(lone), exact_sum(lone * lone)
        values = values.copy()
        values[small] = 0
    rounder = math.ldexp(1.5, 52 + 2 * top - _NARROW)  # a sum with it is rounded to multiples of 2^(2 top - _NARROW)
    numbers, leading = np.empty((2, min(len(values), _CHUNK)))
    for first in range(0, len(values), _CHUNK):
        chunk = values[first : first + _CHUNK]
        held, part = numbers[: len(chunk)], leading[: len(chunk)]
        held[:] = chunk
        total += _units(held.sum())
        held *= held
        np.add(held, rounder, out=part)
        part -= rounder
        held -= part
        squares += _units(part.sum()) + _units(held.sum())
    return total, squares


def _below(values: np.ndarray, limit: float) -> np.ndarray:
    """Where the magnitude of a float32 is below this."""
    return np.flatnonzero(np.abs(values) < np.float32(limit))


def _units(value: float) -> int:
    """A float in units of 2^-1126."""
    mantissa, exponent = math.frexp(value)
    return int(math.ldexp(mantissa, 53)) << (exponent - 53 + SMALLEST)
