"""Figures of groups of ranked rows. Rows of equal score have no order: a figure is the mean over all their orders."""

from __future__ import annotations

import math

import numpy as np

from nightjar.inference.metrics.tops import Tops, before


def means(tops: Tops, k: int) -> dict[str, float | None]:
    """The mean of each figure over the groups with a relevant row; None if there is none.

    ndcg: the sum of label / log2(1 + rank) over the first k rows, as a share of the sum in the best order (Järvelin and
    Kekäläinen, ACM TOIS 20, 2002, doi:10.1145/582415.582418). mrr: 1 / the rank of the first relevant row, 0 beyond k.
    map: the sum over the relevant rows among the first k of the share of relevant rows down to each, divided by the
    relevant rows that there could be there. precision: the share of k that is relevant.
    """
    ranked, ideal_firsts, ideal_sizes = np.unique(tops.ideal_groups, return_index=True, return_counts=True)
    if not len(ranked):
        return dict.fromkeys(("ndcg", "mrr", "map", "precision"))
    discounts = 1 / np.log2(np.arange(2, k + 2))
    ideal_ranks = np.arange(len(tops.ideals)) - np.repeat(ideal_firsts, ideal_sizes)
    best = np.add.reduceat(tops.ideals * discounts[ideal_ranks], ideal_firsts)
    each, firsts = np.unique(tops.groups, return_index=True)
    gain, reciprocal, precise, right = (
        np.add.reduceat(found, firsts)[np.isin(each, ranked)] for found in _of_levels(tops, firsts, discounts)
    )
    found = {"ndcg": gain / best, "mrr": reciprocal, "map": precise / ideal_sizes, "precision": right / k}
    return {name: math.fsum(values.tolist()) / len(ranked) for name, values in found.items()}


def _of_levels(
    tops: Tops, firsts: np.ndarray, discounts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What the rows of each distinct score, which have ranks in a row, give to the figures of their group: discounted
    gain, reciprocal rank of the first relevant row, the shares that `map` adds up, and relevant rows.
    """
    rows, relevant = tops.counts.astype(float), tops.relevant.astype(float)
    above = before(tops.counts, firsts)
    earlier = before(tops.relevant, firsts).astype(float)
    gain, reciprocal, precise, right = np.zeros((4, len(rows)))
    none_yet = (earlier == 0).astype(float)  # the probability that no row before this one is relevant
    for place in range(len(discounts)):
        at = np.flatnonzero((place < tops.counts) & (above + place < len(discounts)))
        if not len(at):
            break
        m, r, rank = rows[at], relevant[at], above[at] + place + 1
        gain[at] += tops.gains[at] / m * discounts[rank - 1]
        right[at] += r / m
        # Given that a row is relevant, each of the others of its score is so with the probability (r − 1) / (m − 1).
        precise[at] += r / m * (earlier[at] + 1 + place * (r - 1) / np.maximum(m - 1, 1)) / rank
        reciprocal[at] += none_yet[at] * r / (m - place) / rank
        none_yet[at] *= np.maximum(m - place - r, 0) / (m - place)
    return gain, reciprocal, precise, right
