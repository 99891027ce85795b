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

_EXPONENTS = 1000

_NARROW = 37
"""The bits of `narrow_sums`, from the first of the largest number to the last of all."""

_SINGLE = 24
"""The bits of the mantissa of a float32."""

_WHOLE = 26
"""The most bits of whole numbers whose squares are floats."""

_LEADING = 18
"""The bits of a number's first part; its second part has the other 19."""

_LONE = 8
"""At most one in so many float32 may be too small to be added with the others."""


def exact_sum(values: np.ndarray) -> int:
    """The sum of finite float64 values in units of 2^-1126; at most `BLOCK` of them.

    The values are cut into multiples of ever smaller powers of two, which 64 bits hold and add exactly.
    """
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

    Each number is cut into two parts. Then each product of two parts, and the sum of `BLOCK` of them, has 53 bits at
    most: floats hold them exactly, in whatever order they are added. (Cut so by Ogita, Rump and Oishi, SIAM Journal on
    Scientific Computing 26, 2005.)
    """
    top = math.frexp(peak)[1]
    if values.dtype != np.float32 and top > _WHOLE:
        return None
    numbers, total, squares = values.astype(np.float64), 0, 0
    if values.dtype == np.float32:
        # Below this, the last bits of a float32 are too small.
        small = np.flatnonzero(np.abs(values) < np.float32(math.ldexp(1.0, top - _NARROW + _SINGLE - 1)))
        lone = numbers[small]
        if np.count_nonzero(lone) * _LONE > len(values):
            return None
        total, squares = exact_sum(lone), exact_sum(lone * lone)
        numbers[small] = 0.0
    rounder = math.ldexp(1.5, 52 + top - _LEADING)  # a sum with it is rounded to multiples of 2^(top - _LEADING)
    leading = numbers + rounder
    leading -= rounder
    numbers -= leading
    total += _units(leading.sum()) + _units(numbers.sum())
    squares += _units(_products(leading, leading)) + _units(_products(numbers, numbers))
    return total, squares + 2 * _units(_products(leading, numbers))


def _units(value: float) -> int:
    """A float in units of 2^-1126."""
    mantissa, exponent = math.frexp(value)
    return int(math.ldexp(mantissa, 53)) << (exponent - 53 + SMALLEST)


def _products(one: np.ndarray, other: np.ndarray) -> float:
    """The sum of products."""
    return float(np.einsum("i,i->", one, other))  # `one @ other` may start threads, which costs more than it gains
