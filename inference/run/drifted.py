"""What is different tonight: a night's columns beside those of the nights that its checks on drift compare with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nightjar.inference.job.checks import DriftCheck
from nightjar.inference.job.model import Job
from nightjar.inference.metrics.drift import Drift, Group, Incomparable, drifts
from nightjar.inference.metrics.profile import ColumnProfile, Profile
from nightjar.inference.run.apart import ColumnCompared, compared
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.evidence import baseline

MAX_COLUMNS = 300
"""The most columns of a table; they come in the order of how far they are apart."""

MAX_GROUPED = 4
"""The most columns whose groups are kept, for a plot each."""


@dataclass(frozen=True, slots=True)
class ColumnDrifted:
    """A column beside the same column of another night. beyond: whether a figure differs by more than chance explains.
    groups: of the columns that are furthest apart, how many rows of each night are in each group.
    """

    figures: ColumnCompared
    beyond: bool = False
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class NightsCompared:
    """Tonight's columns beside those of another night. called: that night, for a sentence. why: why they cannot be
    compared; then there are no columns. columns: the first of them, the ones that are furthest apart before others.
    total, beyond: how many there are, and how many differ by more than chance explains. drawn: tonight's rows that are
    described, where these are not all.
    """

    called: str
    why: str = ""
    columns: tuple[ColumnDrifted, ...] = ()
    total: int = 0
    beyond: int = 0
    drawn: int | None = None


def drifted(storage: Storage, job: Job, date: str, profile: Profile, rows: int) -> tuple[NightsCompared, ...]:
    """Compare with each night that a check on drift names; without such a check, with the last published night. rows:
    tonight's, which may be more than the profile describes.

    Raises:
        JobError: A manifest or profile is not the one that was published.
    """
    nights = dict.fromkeys(check.night for check in job.checks if isinstance(check, DriftCheck)) or {"last": None}
    found = [baseline(storage, job.output.uri, date, night) for night in nights]
    drawn = profile.rows if profile.rows < rows else None
    return tuple(
        replace(beside(each.called, each.profile, profile), drawn=drawn)
        if each.profile
        else NightsCompared(each.called, each.why)
        for each in found
    )


def beside(called: str, before: Profile, now: Profile) -> NightsCompared:
    """Compare the columns that both nights have. called: the other night, for a sentence."""
    found = [
        _column(name, before.columns[name], now.columns[name], apart) for name, apart in drifts(before, now).items()
    ]
    found.sort(key=lambda each: (each.beyond, each.figures.rank), reverse=True)
    bounded = [
        ColumnDrifted(each.figures, each.beyond, each.groups if each.beyond and place < MAX_GROUPED else ())
        for place, each in enumerate(found[:MAX_COLUMNS])
    ]
    return NightsCompared(called, "", tuple(bounded), len(found), sum(each.beyond for each in found))


def _column(name: str, before: ColumnProfile, now: ColumnProfile, found: Drift | Incomparable) -> ColumnDrifted:
    figures = compared(name, before, now, found)
    if not isinstance(found, Drift):
        return ColumnDrifted(figures, found.changed)
    return ColumnDrifted(figures, found.beyond_chance, found.groups)
