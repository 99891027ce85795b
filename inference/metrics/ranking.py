"""Rows of one group, ranked by an output, against labels that say how relevant each is.

Of a group are kept the first k rows and those of the k greatest labels. Of rows with one score the least relevant come
first, so that a model that tells no rows apart is not praised for their order. Whatever a part leaves out, the whole
would leave out, too. Of many groups those with the smallest hashes are kept: a sample that depends on nothing but the
groups themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_native_number, is_number, is_text
from nightjar.inference.errors import JobError
from nightjar.inference.job.label_sections import METRICS, Evaluating
from nightjar.inference.metrics.columns import floats, plain_type
from nightjar.inference.metrics.encoding import State
from nightjar.inference.metrics.evaluator import Evaluator, Labels
from nightjar.inference.metrics.figures import Bounded, RankedGroups
from nightjar.inference.metrics.keyhash import comparable, hashes


@dataclass(frozen=True, slots=True)
class Tops(State):
    """Rows of groups: of each group the first k, and those of the k greatest labels above 0.

    groups, scores, grades: of each row, the best one of a group first: the hash of its group, as uint64, ascending; the
    score as float64, and the label as int64. All of shape (rows,).
    """

    groups: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    scores: np.ndarray = field(default_factory=lambda: np.zeros(0))
    grades: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def ranked(self) -> np.ndarray:
        """The groups that have a relevant row, each once."""
        return np.unique(self.groups[self.grades > 0])

    def added(self, other: Tops, k: int, most: int) -> tuple[Tops, bool]:
        """The tops of both, and whether there were more than `most` groups. other: in any order."""
        arrays = ([getattr(each, field.name) for each in (self, other)] for field in fields(Tops))
        together = Tops(*map(np.concatenate, arrays))
        each = np.unique(together.groups)
        if cut := len(each) > most:
            together = together.taken(together.groups <= each[most - 1])
        together = together.taken(np.lexsort((together.grades, -together.scores, together.groups)))
        kept = places(together.groups) < k
        kept[together.ideal(k)] = True
        return together.taken(kept), cut

    def ideal(self, k: int) -> np.ndarray:
        """The indices of the k greatest labels above 0 of each group, descending."""
        order = np.lexsort((-self.scores, -self.grades, self.groups))
        found: np.ndarray = order[(places(self.groups) < k) & (self.grades[order] > 0)]
        return found

    def taken(self, at: np.ndarray) -> Tops:
        """Some of the rows. at: their indices, or which they are."""
        return Tops(self.groups[at], self.scores[at], self.grades[at])


def places(groups: np.ndarray) -> np.ndarray:
    """The place of each entry among those of its group, from 0 on. groups: in ascending order."""
    _, firsts, sizes = np.unique(groups, return_index=True, return_counts=True)
    found: np.ndarray = np.arange(len(groups)) - np.repeat(firsts, sizes)
    return found


def means(tops: Tops, k: int) -> dict[str, float | None]:
    """The mean of each figure over the groups with a relevant row; None if there is none.

    ndcg: the sum of label / log2(1 + rank) over the first k rows, as a share of the sum in the best order (Järvelin and
    Kekäläinen, ACM TOIS 20, 2002, doi:10.1145/582415.582418). mrr: 1 / the rank of the first relevant row, 0 beyond k.
    map: the sum over the relevant rows among the first k of the share of relevant rows down to each, divided by the
    relevant rows that there could be there. precision: the share of k that is relevant.
    """
    ideal, tops = tops.taken(tops.ideal(k)), tops.taken(places(tops.groups) < k)
    ranked, ideal_firsts, ideal_sizes = np.unique(ideal.groups, return_index=True, return_counts=True)
    if not len(ranked):
        return dict.fromkeys(METRICS["ranking"])
    best = np.add.reduceat(ideal.grades / np.log2(places(ideal.groups) + 2), ideal_firsts)
    each, firsts, sizes = np.unique(tops.groups, return_index=True, return_counts=True)
    ranks, relevant = places(tops.groups) + 1, tops.grades > 0
    whole = np.cumsum(relevant)
    so_far: np.ndarray = whole - np.repeat((whole - relevant)[firsts], sizes)
    of_rows = {
        "ndcg": tops.grades / np.log2(ranks + 1),
        "mrr": (relevant & (so_far == 1)) / ranks,
        "map": relevant * so_far / ranks,
        "precision": relevant.astype(float),
    }
    of_best = {"ndcg": best, "mrr": 1, "map": ideal_sizes, "precision": k}
    figures = dict[str, float | None]()
    for name, values in of_rows.items():
        of_groups = np.add.reduceat(values, firsts)[np.isin(each, ranked)] / of_best[name]
        figures[name] = math.fsum(of_groups.tolist()) / len(ranked)
    return figures


MOST_GROUPS = 4096
"""The most groups that are kept. A mean over so many groups, of figures from 0 to 1, has a standard error of at most
0.008."""

MOST_RELEVANT = 10**9
"""The greatest label: 64 bits hold the sum of nine billion of them."""

_SLICE_SHARE = 8
"""A slice keeps this part of the groups that the whole keeps, because there may be hundreds of slices."""

_ENTRIES = 1 << 16
"""The most places, k for each group: with a large k fewer groups are kept, so that the state stays small."""

_BLOCK = 1 << 17
"""Rows at a time."""


@dataclass(slots=True)
class RankingState(Evaluator):
    """Groups of rows in descending order of their scores, against labels: whole numbers, 0 for a row that is not
    relevant.
    """

    TASK: ClassVar[str] = "ranking"
    LABELS: ClassVar[str] = "a whole number, 0 or more"
    SCORES: ClassVar[str] = "a number"
    EXAMPLE: ClassVar[str] = "score: float32"
    VALUES: ClassVar[str] = f"a whole number from 0 to {MOST_RELEVANT:,}"
    takes_label = staticmethod(is_native_number)
    takes_score = staticmethod(is_number)

    group: str = ""
    """The name of the column whose values are the groups."""

    k: int = 10
    """How many rows of a group, from the top, are looked at."""

    most: int = MOST_GROUPS
    """The most groups that are kept."""

    ungrouped: int = 0
    """Rows that have a label and an output, and no group."""

    cut: bool = False
    """Whether there are more groups than are kept."""

    tops: Tops = field(default_factory=Tops)
    """The rows that are kept of the groups that are kept."""

    @classmethod
    def of_section(cls, label: str, score: str, asked: Evaluating) -> RankingState:
        """No rows. asked: the job's section `evaluation`."""
        assert asked.group is not None
        most = min(MOST_GROUPS, _ENTRIES // asked.k)
        return cls(label, score, group=asked.group, k=asked.k, most=most)

    def for_slice(self) -> RankingState:
        """No rows, of fewer groups."""
        most = max(1, self.most // _SLICE_SHARE)
        return RankingState(self.label, self.score, group=self.group, k=self.k, most=most)

    @property
    def columns(self) -> Mapping[str, str]:
        """The output and the column of the groups."""
        return {self.score: "model.outputs", self.group: "evaluation.group"}

    def check_columns(self, types: Mapping[str, pa.DataType]) -> None:
        if not _names_groups(type_ := types[self.group]):
            raise JobError(
                f"evaluation.group: {self.group!r} is {type_}; name a column of text, integers, bools, dates, times or "
                "bytes"
            )

    def update(self, rows: pa.Table, labels: Labels) -> None:
        found, grades = floats(self.outputs(rows, labels)), self.numbers(labels)
        keys = comparable(rows[self.group])
        compared, grouped = self.compared(~np.isnan(grades), ~np.isnan(found)), np.asarray(keys.is_valid())
        self.ungrouped += int((compared & ~grouped).sum())
        compared = np.flatnonzero(compared & grouped)
        self.rows += len(compared)
        for first in range(0, len(compared), _BLOCK):
            at = compared[first : first + _BLOCK]
            block = keys.take(pa.array(at))
            self._add(Tops(hashes([block], len(at)), found[at] + 0.0, grades[at].astype(np.int64)))

    def fits(self, known: np.ndarray) -> np.ndarray:
        found: np.ndarray = (known >= 0) & (known <= MOST_RELEVANT) & (known == np.floor(known))
        return found

    def _add(self, rows: Tops) -> None:
        if self.cut:  # most rows of a large night are of groups that are not kept
            rows = rows.taken(rows.groups <= self.tops.groups[-1])
        self.tops, cut = self.tops.added(rows, self.k, self.most)
        self.cut |= cut

    def merge(self, other: RankingState) -> None:
        self.unlabelled += other.unlabelled
        self.unscored += other.unscored
        self.ungrouped += other.ungrouped
        self.rows += other.rows
        self._add(other.tops)
        self.cut |= other.cut

    def metric(self, name: str, threshold: float = 0.5) -> Bounded | str:
        if not self.rows:
            return f"no row has a label, an output and a value of {self.group!r}"
        value, groups = means(self.tops, self.k)[name], len(self.tops.ranked())
        if value is None:
            return f"no group of {self.group!r} has a row with a label above 0"
        return Bounded(value, sampled=groups if self.cut else None)

    def details(self) -> dict[str, Any]:
        """The groups that the means are over."""
        groups, ranked = np.unique(self.tops.groups), len(self.tops.ranked())
        found = RankedGroups(self.group, self.k, ranked, len(groups) - ranked, self.ungrouped, self.cut)
        return {"groups": found}


def _names_groups(type_: pa.DataType) -> bool:
    kind = plain_type(type_)
    tests = (is_text, is_.is_integer, is_.is_boolean, is_.is_date, is_.is_timestamp, is_.is_binary, is_.is_large_binary)
    return is_.is_null(kind) or any(test(kind) for test in tests)
