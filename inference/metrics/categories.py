"""How often each value of a column occurs, as a state that merges exactly, as long as there are few values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MOST = 256
"""The most distinct values that are counted. A column with more has no counts, whatever the order of its rows."""

LONGEST = 200
"""The longest value in characters. A column with a longer one is text and no category, and has no counts."""


_FEW = 2048


@dataclass(slots=True)
class CategoryState:
    """counts: value, as text → rows. cut: whether the column has too many values, or too long ones, to count them."""

    counts: Counter[str] = field(default_factory=Counter)
    cut: bool = False

    def update(self, column: pa.ChunkedArray) -> None:
        """Add the values of a column of text, integers or bools; nulls do not count."""
        if self.cut:
            return
        column = column.drop_null()
        # A few rows tell sooner that an id is no category.
        if pc.count_distinct(column.slice(0, _FEW)).as_py() > MOST or len(found := pc.value_counts(column)) > MOST:
            self._cut()
            return
        values = [_text(value) for value in found.field("values").to_pylist()]
        self._add(dict(zip(values, found.field("counts").to_pylist(), strict=True)))

    def merge(self, other: CategoryState) -> None:
        """Add another's rows to these."""
        if self.cut or other.cut:
            self._cut()
        else:
            self._add(other.counts)

    def _add(self, counts: dict[str, int] | Counter[str]) -> None:
        self.counts.update(counts)
        if len(self.counts) > MOST or any(len(value) > LONGEST for value in counts):
            self._cut()

    def _cut(self) -> None:
        self.counts, self.cut = Counter(), True

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


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
