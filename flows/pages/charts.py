"""The charts of a page: tables whose cells are bars, and lines over nights. The style of the page draws them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from nightjar.flows.pages.wording import duration
from nightjar.inference.messages import counted
from nightjar.inference.metrics.drift import Group
from nightjar.inference.metrics.figures import CalibrationBin
from nightjar.inference.run.account import Account

WIDE, HIGH = 480, 90
"""The box of a line, in pixels."""

_EDGE = 6
"""The room around the line in its box."""

_GROUPS = 12
"""The most groups of a column that are shown; those that differ most."""

_LARGEST = 1e15
"""From here on numbers are not drawn, and are written with an exponent."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table. filled: the part of it that a bar fills, from 0 to 1; None for a cell without a bar."""

    text: str
    filled: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Figures as a table."""

    title: str
    """The caption of the table and of the line."""

    head: tuple[str, ...]
    """The heads of the table's columns."""

    rows: tuple[tuple[Cell, ...], ...]
    """The rows of the table, with a cell for each column."""

    line: tuple[tuple[float, float], ...] = ()
    """The points (x, y) of the line, in a box of `WIDE` by `HIGH`; then the table is folded. Empty without a line."""

    ends: str = ""
    """Between which values the line goes, for people; empty without a line."""


def drift_chart(column: str, called: str, groups: Sequence[Group]) -> Chart:
    """The shares of a column's rows in each group, in the other night and tonight."""
    before, now = (max(1, sum(getattr(each, name) for each in groups)) for name in ("before", "now"))
    shares = [(each.name, each.before / before, each.now / now) for each in groups]
    title = f"{column}: tonight and {called}"
    if len(shares) > _GROUPS:
        title += f", the {_GROUPS} of {len(shares)} groups that differ most"
        least = sorted((abs(b - a) for _, a, b in shares), reverse=True)[_GROUPS - 1]
        shares = [each for each in shares if abs(each[2] - each[1]) >= least][:_GROUPS]
    rows = ((Cell(name), _share(a), _share(b)) for name, a, b in shares)
    return Chart(title, ("values", "before", "tonight"), tuple(rows))


def _share(share: float) -> Cell:
    return Cell(f"{share:.2%}", share)


def trend_charts(figures: Mapping[str, Sequence[tuple[str, float]]], most: int) -> list[Chart]:
    """A chart for each figure that at least two nights have; at most so many. figures: name → dates with values."""
    shown = [(name, nights) for name, nights in figures.items() if len(nights) > 1]
    return [trend_chart(name, nights) for name, nights in shown[:most]]


def trend_chart(name: str, nights: Sequence[tuple[str, float]]) -> Chart:
    """A figure over nights. nights: dates with values, in order.

    A value that cannot be drawn is a gap, which the title tells of; the table has it.
    """
    drawn = [(at, float(value)) for at, (_, value) in enumerate(nights) if abs(value) < _LARGEST]
    title = f"{name} over {len(nights)} nights"
    if gaps := len(nights) - len(drawn):
        title += f", {gaps} of them not drawn: NaN, infinite or too large"
    rows = tuple((Cell(date), Cell(_value(value))) for date, value in nights)
    if not drawn:
        return Chart(title, ("night", name), rows)
    low, high = min(value for _, value in drawn), max(value for _, value in drawn)
    ends = f"{_value(low)} to {_value(high)}" if low < high else f"{_value(low)} each night"
    return Chart(title, ("night", name), rows, tuple(_points(drawn, len(nights) - 1, low, high)), ends)


def _points(drawn: Iterable[tuple[int, float]], last: int, low: float, high: float) -> Iterator[tuple[float, float]]:
    for at, value in drawn:
        share = (value - low) / (high - low) if low < high else 0.5
        yield round(_EDGE + at / last * (WIDE - 2 * _EDGE), 1), round(HIGH - _EDGE - share * (HIGH - 2 * _EDGE), 1)


def calibration_chart(bins: Iterable[CalibrationBin]) -> Chart:
    """The share of labels 1 for each mean score: as long as the score, where scores mean what they say."""
    rows = (
        (
            Cell(f"{each.mean_score:.3f}", each.mean_score),
            Cell(f"{each.positive_share:.3f}", each.positive_share),
            Cell(f"{each.rows:,}"),
        )
        for each in bins
    )
    title = "Calibration: what a score says, and how often it is so"
    return Chart(title, ("mean score", "share of label 1", "rows"), tuple(rows))


def account_charts(account: Account) -> tuple[Chart, ...]:
    """The parts of a run's wall time; and what its workers did while they scored."""
    charts = [_seconds_chart(f"The {duration(account.wall_s)} of the run, in their order", account.parts)]
    if account.scoring:
        title = f"What {counted(account.workers, 'worker')} did while scoring, on average"
        charts.append(_seconds_chart(title, account.scoring))
    return tuple(charts)


def _seconds_chart(title: str, parts: Mapping[str, float]) -> Chart:
    whole = sum(parts.values()) or 1.0
    rows = (
        (Cell(name), Cell(f"{seconds:,.2f}"), Cell(f"{seconds / whole:.1%}", seconds / whole))
        for name, seconds in parts.items()
    )
    return Chart(title, ("part", "seconds", "share"), tuple(rows))


def _value(value: float) -> str:
    if abs(value) < 1e6:
        return f"{value:,.6g}"
    return f"{value:,.0f}" if abs(value) < _LARGEST else f"{Decimal(value):.6g}"
