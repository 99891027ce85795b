"""Profiles of several nights taken together, as if their rows were those of one night."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from nightjar.inference.metrics.profile import ColumnProfile, Profile


def merged(nights: Iterable[tuple[Profile, int]]) -> Profile:
    """Several nights taken together, each with its number of rows, of which a part may be described. A column that only
    some of them have is that of these nights.

    Each night has the weight of its rows: exactly where all are described, and else to the nearest row. The night of
    which the smallest part is described keeps its counts, so that no more rows are claimed than were seen.
    """
    found = list(nights)
    shares = [min(1.0, profile.rows / rows) if rows and profile.rows else 1.0 for profile, rows in found]
    columns: dict[str, ColumnProfile] = {}
    for (profile, _), share in zip(found, shares, strict=True):
        for name, column in profile.columns.items():
            columns.setdefault(name, ColumnProfile()).merge(_thinned(column, min(shares) / share))
    return Profile(columns)


def _thinned(column: ColumnProfile, share: float) -> ColumnProfile:
    """The counts of this share of the rows, for `drift`; a value that was counted is still one that occurs. Sums,
    extreme values and distinct values are those of all rows.
    """
    if share >= 1:
        return column

    def fewer(count: int) -> int:
        return round(count * share)

    old = column.numbers
    numbers = replace(
        old,
        nan=fewer(old.nan),
        plus_inf=fewer(old.plus_inf),
        minus_inf=fewer(old.minus_inf),
        counts=np.rint(old.counts * share).astype(np.int64),
    )
    counts = Counter({value: max(1, fewer(count)) for value, count in column.categories.counts.items()})
    return replace(
        column,
        rows=fewer(column.rows),
        nulls=fewer(column.nulls),
        numbers=numbers,
        categories=replace(column.categories, counts=counts),
        spread=None if column.spread is None else np.rint(column.spread * share).astype(np.int64),
    )
