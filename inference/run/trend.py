"""The figures of one night and of the nights before it, by which a person sees whether tonight is like them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from nightjar.inference.errors import StorageError
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.output.revisions import revision_in
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.evaluations import by_latest
from nightjar.inference.validation.evidence import earlier_nights
from nightjar.inference.validation.manifest import Manifest

MAX_NIGHTS = 30
"""The most earlier nights of a trend: a month. Each costs a request to the storage."""


@dataclass(frozen=True, slots=True)
class NightFigures:
    """One night. figures: by name; what a night does not have is not in it."""

    date: str
    run_id: str
    rows: int
    quarantined: int
    figures: Mapping[str, float] = field(default_factory=dict)


def figures_of(metrics: Figures) -> dict[str, float]:
    """The figures by which nights are compared: of the evaluation and of the user's own accumulators, or without both
    the ends of the checked columns.
    """
    found = metrics.evaluation
    if found is not None or metrics.accumulators:
        return {name: each.value for name, each in (found.figures() if found else {}).items()} | metrics.own()
    ends = {
        f"{name}.{end}": value
        for name, column in metrics.columns.items()
        for end, value in (("min", column.min), ("max", column.max))
    }
    return {name: value for name, value in ends.items() if isinstance(value, int | float)}


def _figures(storage: Storage, output: str, run: str, night: Manifest) -> dict[str, float]:
    """As `figures_of`, with the labels that came late. An evaluation that is damaged is none; `status` says so."""
    try:
        return figures_of(by_latest(storage, revision_in(output, run, night.revision), night.metrics))
    except StorageError:
        return figures_of(night.metrics)


def trend(storage: Storage, output: str, date: str) -> tuple[NightFigures, ...]:
    """The published nights before this date, the earliest first; at most `MAX_NIGHTS`.

    Raises:
        JobError: A manifest is not the one that was published.
    """
    found = islice(earlier_nights(storage, output, date), MAX_NIGHTS)
    nights = [
        NightFigures(day, run, each.totals.rows_in, each.totals.rows_quarantined, _figures(storage, output, run, each))
        for run, day, each in found
    ]
    return tuple(reversed(nights))
