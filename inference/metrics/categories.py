"""How often each value of a column occurs, as a state that merges exactly, as long as there are few values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MOST = 256
"""The most distinct values that are counted. A column with more has no counts, whatever the order of its rows."""

_MANY = 16 * MOST
"""The most distinct values of one update that are worth counting each: numbers are faster by their values then."""

LONGEST = 200
"""The longest value in characters. A column with a longer one is text and no category, and has no counts."""


_PROBED = 2 * MOST
"""Rows that tell whether a column has few values, before all of them are counted."""


def counted_values(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray] | None:
    """The distinct values of a column without nulls, and how often each occurs; None if there are many."""
    if pc.count_distinct(column.slice(0, _PROBED)).as_py() > MOST:
        return None
    if pa.types.is_integer(column.type) and (dense := _dense(column)) is not None:
        return dense if len(dense[0]) <= _MANY else None
    found = pc.value_counts(column)
    return (found.field("values"), found.field("counts").to_numpy()) if len(found) <= _MANY else None


def _dense(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray] | None:
    """The same of integers that lie close together, which takes a fifth of the time; None for others."""
    low, high = pc.min_max(column).as_py().values()
    if low is None or high - low >= _MANY:
        return None
    values = column.to_numpy()
    counts = np.bincount(np.subtract(values, values.dtype.type(low), dtype=np.int64, casting="unsafe"))
    filled = np.flatnonzero(counts)
    return pa.array([low + each for each in filled.tolist()], column.type), counts[filled]


@dataclass(slots=True)
class CategoryState:
    """counts: value, as text → rows. cut: whether the column has too many values, or too long ones, to count them."""

    counts: Counter[str] = field(default_factory=Counter)
    cut: bool = False

    def add(self, values: pa.Array, counts: np.ndarray) -> Mapping[str, int]:
        """Add each of these values as often as `counts` says; none is null. Returns the values that are no longer
        counted, and how often each occurred, if they are too many now.
        """
        if self.cut:
            return {}
        return self._add(dict(zip(map(as_text, values.to_pylist()), counts.tolist(), strict=True)))

    def merge(self, other: CategoryState) -> Mapping[str, int]:
        """Add another's rows to these. Returns the values that are no longer counted, as `add`."""
        if other.cut:
            return self.cut_off()
        return other.counts if self.cut else self._add(other.counts)

    def _add(self, counts: dict[str, int] | Counter[str]) -> Mapping[str, int]:
        self.counts.update(counts)
        if len(self.counts) > MOST or any(len(value) > LONGEST for value in counts):
            return self.cut_off()
        return {}

    def cut_off(self) -> Mapping[str, int]:
        """There are too many values to count. Returns those that were counted, as `add`."""
        counted, self.counts, self.cut = self.counts, Counter(), True
        return counted

    def ranked(self) -> list[tuple[str, int]]:
        """The values, the most frequent first; those that are equally frequent in their own order."""
        return sorted(self.counts.items(), key=lambda found: (-found[1], found[0]))

    def values(self) -> tuple[Any, ...]:
        """The fields' values for JSON."""
        return (sorted(self.counts.items()), self.cut)

    @classmethod
    def of_values(cls, values: tuple[Any, ...]) -> CategoryState:
        """The inverse of `values`."""
        counts, cut = values
        return cls(Counter(dict(counts)), cut)


def as_text(value: Any) -> str:
    """A value as the text by which it is counted."""
    return str(value).lower() if isinstance(value, bool) else str(value)
