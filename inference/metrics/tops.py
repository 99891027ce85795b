"""The tops of groups of rows, as far as figures of their first k ranks need them: arrays that merge exactly.

Of a group are kept the distinct scores from the greatest down until k rows are covered, and the k greatest labels.
Whatever a part leaves out, the whole would leave out, too. Of many groups those with the smallest hashes are kept: a
sample that depends on nothing but the groups themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from nightjar.inference.metrics.packing import pack, unpack


@dataclass(frozen=True, slots=True)
class Tops:
    """Groups by their hashes, as uint64, in ascending order.

    groups, scores, counts, gains, relevant: for each distinct score that is kept of a group, the greatest first: its
    group, the score as float64, its rows, the sum of their labels, and how many of these are above 0. ideal_groups,
    ideals: the greatest labels above 0 of each group, descending. All of shape (entries,).
    """

    groups: np.ndarray
    scores: np.ndarray
    counts: np.ndarray
    gains: np.ndarray
    relevant: np.ndarray
    ideal_groups: np.ndarray
    ideals: np.ndarray

    @classmethod
    def of_rows(cls, groups: np.ndarray, scores: np.ndarray, grades: np.ndarray) -> Tops:
        """Rows in any order, each as an entry of its own. grades: their labels, as int64."""
        relevant = grades > 0
        each = np.ones_like(grades)
        return cls(groups, scores, each, grades, relevant.astype(np.int64), groups[relevant], grades[relevant])

    @classmethod
    def none(cls) -> Tops:
        """No rows."""
        return cls.of_rows(np.zeros(0, np.uint64), np.zeros(0), np.zeros(0, np.int64))

    def each_group(self) -> np.ndarray:
        """The groups, each once."""
        return np.unique(self.groups)

    def ranked(self) -> np.ndarray:
        """The groups that have a relevant row, each once."""
        return np.unique(self.ideal_groups)

    def added(self, other: Tops, k: int, most: int) -> tuple[Tops, bool]:
        """The tops of both, and whether there were more than `most` groups. other: in any order."""
        together = Tops(*map(np.concatenate, zip(_arrays(self), _arrays(other), strict=True)))
        each = together.each_group()
        if cut := len(each) > most:
            together = together.up_to(each[most - 1])
        return together._topped(k), cut

    def up_to(self, last: np.uint64) -> Tops:
        """The groups whose hash is not greater."""
        inside, ideal = self.groups <= last, self.ideal_groups <= last
        *levels, groups, labels = _arrays(self)
        kept = [*(each[inside] for each in levels), groups[ideal], labels[ideal]]
        return Tops(*kept)

    def _topped(self, k: int) -> Tops:
        """Each distinct score of each group once; of each group those with fewer than k rows above, and k labels."""
        order = np.lexsort((-self.ideals, self.ideal_groups))
        ideal_groups, ideals = self.ideal_groups[order], self.ideals[order]
        places = before(np.ones(len(ideals), np.int64), np.flatnonzero(_changes(ideal_groups)))
        ideal_groups, ideals = ideal_groups[places < k], ideals[places < k]
        order = np.lexsort((-self.scores, self.groups))
        groups, scores = self.groups[order], self.scores[order]
        firsts = np.flatnonzero(_changes(groups) | _changes(scores))
        groups, scores = groups[firsts], scores[firsts]
        counts, gains, relevant = (
            np.add.reduceat(each[order], firsts) if len(firsts) else each
            for each in (self.counts, self.gains, self.relevant)
        )
        kept = before(counts, np.flatnonzero(_changes(groups))) < k
        top = [*(each[kept] for each in (groups, scores, counts, gains, relevant)), ideal_groups, ideals]
        return Tops(*top)

    def values(self) -> list[str]:
        """The arrays as text. A group's hash is kept once, by the gap before it."""
        groups, sizes = np.unique(self.groups, return_counts=True)
        ideal_sizes = np.searchsorted(self.ideal_groups, groups, "right") - np.searchsorted(self.ideal_groups, groups)
        gaps, bits = np.diff(groups, prepend=np.uint64(0)), self.scores.view(np.uint64)
        return [*map(pack, (gaps, sizes, bits, self.counts, self.gains, self.relevant, ideal_sizes, self.ideals))]

    @classmethod
    def of_values(cls, values: list[str]) -> Tops:
        """The inverse of `values`."""
        gaps, sizes, bits, counts, gains, relevant, ideal_sizes, ideals = map(unpack, values)
        groups = np.cumsum(gaps.view(np.uint64), dtype=np.uint64)
        levels = (np.repeat(groups, sizes), bits.view(np.float64), counts, gains, relevant)
        return cls(*levels, np.repeat(groups, ideal_sizes), ideals)


def before(counts: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """The sum of the counts of a group that come before each of its entries. firsts: the first entry of each group."""
    whole = np.cumsum(counts) - counts
    found: np.ndarray = whole - np.repeat(whole[firsts], np.diff(firsts, append=len(counts)))
    return found


def _arrays(tops: Tops) -> tuple[Any, ...]:
    return tuple(getattr(tops, each.name) for each in fields(tops))


def _changes(values: np.ndarray) -> np.ndarray:
    """Where a value differs from the one before it; so does the first."""
    changed = np.ones(len(values), bool)
    changed[1:] = values[1:] != values[:-1]
    return changed
