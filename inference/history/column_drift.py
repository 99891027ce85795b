"""How far a column is apart in two nights, in figures for people."""

from __future__ import annotations

from dataclasses import dataclass

from nightjar.inference.metrics.drift import Drift, Incomparable
from nightjar.inference.metrics.figures import Distinct
from nightjar.inference.metrics.profile import ColumnProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnCompared:
    """A column that is profiled in both runs; psi, js, ks, nulls, new and vanished as in `Drift`.

    psi_chance: what psi is by chance alone between nights of these sizes. before, now: the mean of numbers, and of the
    lengths of texts. distinct_before, distinct_now: the number of distinct values; None if it is unknown. why: why it
    cannot be compared; then there are no figures.
    """

    column: str
    psi: float | None = None
    psi_chance: float | None = None
    js: float | None = None
    ks: float | None = None
    nulls: float | None = None
    before: float | None = None
    now: float | None = None
    distinct_before: Distinct | None = None
    distinct_now: Distinct | None = None
    new: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    why: str = ""

    @property
    def rank(self) -> float:
        """By which the columns that are furthest apart come first; those without figures come last."""
        return -1.0 if self.psi is None else self.psi


def compared(name: str, before: ColumnProfile, now: ColumnProfile, found: Drift | Incomparable) -> ColumnCompared:
    """The figures of a column in two nights. found: how far they are apart."""
    if not isinstance(found, Drift):
        return ColumnCompared(column=name, why=found.why)
    means = [each.mean if (each := profile.numbers.results()) else None for profile in (before, now)]
    return ColumnCompared(
        column=name,
        psi=found.psi,
        psi_chance=found.chance.get("psi"),
        js=found.js,
        ks=found.ks,
        nulls=found.nulls,
        before=means[0],
        now=means[1],
        distinct_before=before.count_distinct(),
        distinct_now=now.count_distinct(),
        new=found.new,
        vanished=found.vanished,
        why=found.why,
    )
