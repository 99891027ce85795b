"""The values of a column: how often each occurs as long as there are few, and else about how many there are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.metrics.encoding import State
from nightjar.inference.metrics.keyhash import Hashes

MOST = 256
"""The most distinct values that are counted. A column with more has no counts, whatever the order of its rows."""

_MANY = 16 * MOST
"""The most distinct values of one update that are worth counting each."""

LONGEST = 200
"""The longest value in characters. A column with a longer one is text and no category, and has neither counts nor
slices; a longer name is no class.
"""

_PROBED = 2 * MOST
"""Rows that tell whether a column has few values, before all of them are counted."""

_BITS = 12
_REGISTERS = 1 << _BITS
_RANKS = 64 - _BITS
"""The bits of a hash that choose a register, and those whose leading zeros are counted."""

ERROR = 1.04 / math.sqrt(_REGISTERS)
"""The standard error of the count, relative to it: two of three counts are nearer than that, 997 of 1000 nearer than
three times as much.
"""


def counted_values(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray] | None:
    """The distinct values of a column without nulls, and how often each occurs; None if there are many."""
    if pc.count_distinct(column.slice(0, _PROBED)).as_py() > MOST:
        return None
    found = pc.value_counts(column)
    return (found.field("values"), found.field("counts").to_numpy()) if len(found) <= _MANY else None


@dataclass(slots=True)
class CategoryState(State):
    """counts: value, as text → rows. cut: whether the column has too many values, or too long ones, to count them."""

    counts: Counter[str] = field(default_factory=Counter)
    cut: bool = False

    def add(self, values: pa.Array, counts: np.ndarray) -> None:
        """Add each of these values as often as `counts` says; none is null."""
        self.merge(CategoryState(Counter(dict(zip(map(as_text, values.to_pylist()), counts.tolist(), strict=True)))))

    def merge(self, other: CategoryState) -> None:
        self.take(other)

    def take(self, other: CategoryState) -> Mapping[str, int]:
        """Add another's rows to these. Returns the values that were counted until now, and how often each occurred, if
        they are too many now.
        """
        counts, self.cut = self.counts + other.counts, self.cut or other.cut
        self.cut |= len(counts) > MOST or any(len(value) > LONGEST for value in other.counts)
        self.counts = Counter() if self.cut else counts
        return counts if self.cut else {}

    def ranked(self) -> list[tuple[str, int]]:
        """The values, the most frequent first; those that are equally frequent in their own order."""
        return sorted(self.counts.items(), key=lambda found: (-found[1], found[0]))


@dataclass(slots=True)
class DistinctState(State):
    """How many distinct values there are: HyperLogLog (Flajolet, Fusy, Gandouet and Meunier, AofA 2007). The package
    `datasketches` is no shorter: it takes one value at a time from Python, and needs the same hashes.

    registers: of each, one more than the longest run of leading zeros of the hashes that chose it; 0 without a value.
    """

    registers: np.ndarray = field(default_factory=lambda: np.zeros(_REGISTERS, np.uint8))

    def __post_init__(self) -> None:
        if len(self.registers) != _REGISTERS:
            raise ValueError(f"not {_REGISTERS} registers")

    def update(self, hashes: Hashes) -> None:
        """Add values by their hashes."""
        leading = (hashes >> np.uint64(_BITS)).astype(np.float64)  # exact, and its exponent is the number of its bits
        bits = (leading.view(np.int64) >> 52) - 1022
        ranks = np.minimum(_RANKS + 1 - bits, _RANKS + 1).astype(np.uint8)
        np.maximum.at(self.registers, (hashes & np.uint64(_REGISTERS - 1)).astype(np.intp), ranks)

    def merge(self, other: DistinctState) -> None:
        np.maximum(self.registers, other.registers, out=self.registers)

    def count(self) -> int:
        """About how many distinct values there are, within `ERROR`: without bias, and without tables, for all numbers
        (Ertl, arXiv:1702.01284, algorithm 6).
        """
        counts = np.bincount(self.registers, minlength=_RANKS + 2).tolist()
        z = _REGISTERS * _tau(1 - counts[_RANKS + 1] / _REGISTERS)
        for held in counts[_RANKS:0:-1]:
            z = 0.5 * (z + held)
        z += _REGISTERS * _sigma(counts[0] / _REGISTERS)
        return round(min(_REGISTERS * _REGISTERS / (2 * math.log(2) * z), 2.0**64)) if z else 1 << 64


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z, y = z + x * y, 2 * y
    return z


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x, before, y = math.sqrt(x), z, y / 2
        z -= (1 - x) ** 2 * y
    return z / 3


def as_text(value: Any) -> str:
    """A value as the text by which it is counted."""
    return str(value).lower() if isinstance(value, bool) else str(value)
