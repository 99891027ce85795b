"""How far a column of tonight is from the same column of another night.

Both are divided into the same groups: the values that are most frequent in the two together, or spans of numbers that
each had about a tenth of the other night's rows; and in each case the rows without a value. What is compared is the
share of the rows in each group. Texts of more values than are counted are divided twice, by their lengths and by their
hashes, and count by the division in which the nights are further apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from nightjar.inference.jsonform import SELDOM
from nightjar.inference.metrics.numbers import lowest
from nightjar.inference.metrics.profile import SPREAD, CategoryState, ColumnProfile, Profile

GROUPS = 10
"""Spans of numbers; a value that has more than a tenth of the rows has a span of its own."""

_CATEGORIES = 50
"""The most frequent values that are groups of their own; the others are one group."""

_EXPECTED = 5
"""The rows that the smaller night is expected to have with a value that is a group of its own, but for nights of few
rows: with fewer, chance exceeds what is allowed for it.
"""

_HALF = 0.5
"""What is added to each count (Jeffreys' prior), so that an empty group is rare and not impossible."""

SURE = 0.999
"""Chance alone exceeds what is allowed for chance in so many nights of a column at most: one in a thousand."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are compared, and how many of each night are in it."""

    name: str
    before: int
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A column that is profiled in two nights, and how far they are apart."""

    column: str
    """The name of the column."""

    rows_before: int
    """Rows of the other night that its profile describes."""

    rows_now: int
    """Rows of this night that its profile describes."""

    psi: float | None = None
    """The population stability index; None if the values cannot be compared."""

    nulls: float | None = None
    """The change of the share of rows without a value, above 0 if the share has grown; None if there are no figures."""

    chance: Mapping[str, float] = field(default_factory=dict)
    """`psi` and `nulls` → what differs by chance alone between nights of these sizes; without those that are None."""

    before: float | None = None
    """The mean of the numbers of the other night, or of the lengths of its texts; None if there are none."""

    now: float | None = None
    """The mean of the numbers of this night, or of the lengths of its texts; None if there are none."""

    new: tuple[str, ...] = ()
    """Values that this night alone has, the most frequent first; empty if either night has too many values to count."""

    vanished: tuple[str, ...] = ()
    """Values that the other night alone has, the most frequent first; empty in the same case as `new`."""

    why: str = ""
    """Why the column cannot be compared, '' if it can. There are then no figures, or only those of rows without a
    value."""

    changed: bool = False
    """Whether the column has another type than before."""

    groups: tuple[Group, ...] = field(default=(), metadata=SELDOM)
    """The groups that are compared, with the rows of each night in each group."""

    @property
    def beyond(self) -> bool:
        """Whether a figure differs by more than chance explains, which a check may allow; or the type does."""
        apart = {"psi": self.psi, "nulls": self.nulls}
        return self.changed or any(value is not None and abs(value) > self.chance[key] for key, value in apart.items())


def drifts(before: Profile, now: Profile) -> dict[str, Drift]:
    """Compare the columns that both nights have, by name."""
    common = [name for name in now.columns if name in before.columns]
    return {name: drift(before.columns[name], now.columns[name], len(common), name) for name in common}


def compare_columns(before: Profile, now: Profile) -> list[Drift]:
    """The columns that both nights have; those that differ by more than chance come first, the furthest apart of all in
    front.
    """
    found = drifts(before, now).values()
    return sorted(found, key=lambda each: (each.beyond, -1.0 if each.psi is None else each.psi), reverse=True)


def drift(before: ColumnProfile, now: ColumnProfile, columns: int = 1, column: str = "") -> Drift:
    """Compare two nights. columns: how many are compared at once; what is allowed for chance grows with them, so that
    all together do not cry wolf more often than one. column: its name.
    """
    found = Drift(column=column, rows_before=before.rows, rows_now=now.rows)
    if not before.rows or not now.rows:
        return replace(found, why=f"{'the other night' if not before.rows else 'tonight'} has no rows")
    kinds = {before.kind, now.kind} - {""}
    if len(kinds) > 1:
        return replace(found, why=f"it holds {_called(now.kind)} and held {_called(before.kind)}", changed=True)
    alarm = (1 - SURE) / columns
    nulls = now.missing / now.rows - before.missing / before.rows
    share = (before.missing + now.missing) / (before.rows + now.rows)
    deviation = math.sqrt(share * (1 - share) * _sizes(before.rows, now.rows))
    normal = NormalDist().inv_cdf(1 - alarm / 2)  # either way, as shares may rise and fall
    # The second term is for shares near 0, which are skewed (Bernstein's inequality has it, too).
    nulls_chance = normal * deviation + normal**2 / (3 * min(before.rows, now.rows))
    if kinds == {"other"}:
        why = "it holds neither numbers nor text nor bools"
        groups = (Group("a value", before.rows - before.missing, now.rows - now.missing), _missing(before, now))
        return replace(found, nulls=nulls, chance={"nulls": nulls_chance}, groups=groups, why=why)
    divisions = _divisions(before, now)
    each = [(*_psi(groups, before.rows, now.rows, alarm / len(divisions)), groups) for groups in divisions]
    psi, chance, division = max(each, key=lambda found: found[0] - found[1])
    means = [figures.mean if (figures := profile.numbers.results()) else None for profile in (before, now)]
    return replace(
        found,
        psi=psi,
        nulls=nulls,
        chance={"psi": chance, "nulls": nulls_chance},
        before=means[0],
        now=means[1],
        new=_only(now, before),
        vanished=_only(before, now),
        groups=division,
    )


def _psi(groups: tuple[Group, ...], before: int, now: int, alarm: float) -> tuple[float, float]:
    """The population stability index by one division, and what of it is chance. before, now: the rows. alarm: how often
    chance alone may exceed what is allowed for it.
    """
    old, new = (np.array(counts, float) for counts in zip(*((each.before, each.now) for each in groups), strict=True))
    p, q = ((counts + _HALF) / (counts + _HALF).sum() for counts in (old, new))
    # By chance PSI is chi-squared, times the sum of 1/rows (Yurdakul and Naranjo, Journal of Risk Model Validation 14,
    # 2020).
    chance = _chi_squared(len(groups) - 1, NormalDist().inv_cdf(1 - alarm)) * _sizes(before, now)
    return float(((q - p) * np.log(q / p)).sum()), chance


def _sizes(before: float, now: float) -> float:
    return 1 / before + 1 / now


def _divisions(before: ColumnProfile, now: ColumnProfile) -> list[tuple[Group, ...]]:
    missing = _missing(before, now)
    if "number" in (before.kind, now.kind):
        return [(*_by_span(before, now), missing)]
    if not before.categories.cut and not now.categories.cut:
        return [(*_by_category(before, now), missing)]
    lengths, hashes = _by_span(before, now), _by_hash(before, now)
    return [(*found, missing) for found in (lengths, hashes) if found]


def _missing(before: ColumnProfile, now: ColumnProfile) -> Group:
    return Group("no value", before.missing, now.missing)


def _by_hash(before: ColumnProfile, now: ColumnProfile) -> Sequence[Group]:
    counts = zip(before.spread.tolist(), now.spread.tolist(), strict=True)
    return [Group(f"texts {number} of {SPREAD} by their hashes", *each) for number, each in enumerate(counts, 1)]


def _by_category(before: ColumnProfile, now: ColumnProfile) -> Sequence[Group]:
    old, new = before.categories.counts, now.categories.counts
    # Both nights choose: the most frequent of one alone would be those that chance gave more rows in it.
    both = CategoryState(old + new)
    fewest = both.counts.total() * min(_EXPECTED / max(1, min(old.total(), new.total())), 1 / GROUPS)
    named = [value for value, rows in both.ranked()[:_CATEGORIES] if rows >= fewest]
    others = [counts.total() - sum(counts[value] for value in named) for counts in (old, new)]
    return [*(Group(value, old[value], new[value]) for value in named), Group("other values", *others)]


def _by_span(before: ColumnProfile, now: ColumnProfile) -> Sequence[Group]:
    bits = min(before.numbers.bins.bits, now.numbers.bins.bits)
    bins = [each.numbers.bins.at(bits) for each in (before, now)]
    keys = np.union1d(bins[0].keys, bins[1].keys)
    old, new = np.zeros((2, len(keys)), np.int64)
    for counts, each in zip((old, new), bins, strict=True):
        counts[np.searchsorted(keys, each.keys)] = each.counts
    infinite = [
        Group(name, getattr(before.numbers, field), getattr(now.numbers, field))
        for name, field in (("-inf", "minus_inf"), ("inf", "plus_inf"))
    ]
    infinite = [each for each in infinite if each.before or each.now]
    if not len(keys):
        return infinite
    reached = np.cumsum(old)
    tenth = max(1.0, reached[-1] / GROUPS)
    # The last bin of each span. A bin with more than a tenth ends the span in front of it, too.
    ends = set(np.searchsorted(reached, tenth * np.arange(1, GROUPS)).tolist())
    heavy = np.flatnonzero(old > tenth).tolist()
    ends |= {*heavy, *(bin_ - 1 for bin_ in heavy if bin_)}
    starts = [0, *sorted({end + 1 for end in ends if end + 1 < len(keys)})]
    stops = [*starts[1:], len(keys)]
    digits = min(max(4, 2 + round(bits * math.log10(2))), 15)  # enough to tell two bins apart
    edges = ["lowest", *(f"{end:.{digits}g}" for end in lowest(keys[starts[1:]], bits)), "highest"]
    spans = [
        Group(f"{low} to {high}", int(old[start:stop].sum()), int(new[start:stop].sum()))
        for low, high, start, stop in zip(edges, edges[1:], starts, stops, strict=False)
    ]
    return [*spans, *infinite]


def _only(one: ColumnProfile, other: ColumnProfile) -> tuple[str, ...]:
    if one.categories.cut or other.categories.cut:
        return ()
    return tuple(value for value, _ in one.categories.ranked() if not other.categories.counts[value])


def _chi_squared(freedom: int, normal: float) -> float:
    """The quantile of chi-squared that belongs to one of the normal distribution (Wilson, Hilferty; PNAS 17, 1931)."""
    if not freedom:
        return 0.0  # all rows are in one group, whose share is 1 in each night
    part = 2 / (9 * freedom)
    return float(freedom * max(0.0, 1 - part + normal * math.sqrt(part)) ** 3)


def _called(kind: str) -> str:
    return {"number": "numbers", "bool": "bools", "other": "values of other types"}.get(kind, kind)
