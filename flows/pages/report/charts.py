"""Plots as SVG for a page: matplotlib draws them, and the page's style gives them their colours, light or dark.

matplotlib is imported when the first plot is drawn, because that takes a while. The same data give the same bytes.
"""

from __future__ import annotations

import io
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from markupsafe import Markup

from nightjar.flows.pages.escaping import line
from nightjar.flows.pages.wording import duration
from nightjar.inference.messages import counted
from nightjar.inference.metrics.drift import Group
from nightjar.inference.metrics.figures import CalibrationBin
from nightjar.inference.run.account import Account

if TYPE_CHECKING:
    from matplotlib.axes import Axes

P = ParamSpec("P")
T = TypeVar("T")

_COLOURS = {
    "#010203": "currentColor",
    "#040506": "var(--quiet)",
    "#070809": "var(--rule)",
    "#0a0b0c": "var(--now)",
    "#0d0e0f": "var(--before)",
}
"""The colours that are drawn, and what they are in the page: its style has them for light and for dark."""

_INK, _QUIET, _RULE, _NOW, _BEFORE = _COLOURS

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "nightjar",
    "text.parse_math": False,  # a column may be called $x$
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": _QUIET,
    "axes.labelcolor": _INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _RULE,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
}

_DRAWING = threading.Lock()
"""matplotlib has one style per process, and nights of a backfill may end at the same moment."""

_GROUPS = 12
"""The most groups of a plot; those that differ most. The table has all."""

_RIGHT = 0.4
"""The room for the half of the last label, in inches."""

_LABEL = 18
"""The most characters of a label in a plot."""

_LARGEST = 1e15
"""From here on numbers are not drawn, and are written with an exponent: not even a float has all digits of a greater
one."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot, and the same figures as a table. title: of both. svg: safe to be put into a page."""

    title: str
    svg: Markup
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Drawing:
    """Draws the plots of a page, which is worth more than its plots. missing: which could not be drawn, and why."""

    def __init__(self) -> None:
        self.missing: list[str] = []

    def of(self, what: str, draw: Callable[P, T], *given: P.args, **named: P.kwargs) -> list[T]:
        """What `draw` makes, alone in a list; an empty one if it fails. what: is drawn, for people."""
        try:
            return [draw(*given, **named)]
        except Exception as error:  # noqa: BLE001 - matplotlib fails in many ways, by what it is given
            self.missing.append(f"the plot of {what}, which cannot be drawn: {type(error).__name__}: {error}")
            return []


def drift_chart(column: str, called: str, groups: Sequence[Group]) -> Chart:
    """The shares of a column's rows in each group: tonight's bars over those of the other night."""
    before, now = (max(1, sum(getattr(each, name) for each in groups)) for name in ("before", "now"))
    shares = [(each.name, each.before / before, each.now / now) for each in groups]
    shown = shares
    if len(shares) > _GROUPS:
        least = sorted((abs(b - a) for _, a, b in shares), reverse=True)[_GROUPS - 1]
        shown = [each for each in shares if abs(each[2] - each[1]) >= least][:_GROUPS]

    def draw(axes: Axes) -> None:
        at = range(len(shown))
        axes.bar(at, [100 * share for _, share, _ in shown], width=0.9, color=_BEFORE, label=_short(called, 40))
        axes.bar(at, [100 * share for _, _, share in shown], width=0.45, color=_NOW, label="tonight")
        axes.set_xticks(list(at), [_short(name) for name, _, _ in shown], rotation=40, ha="right")
        axes.grid(visible=False, axis="x")
        axes.set_ylabel("% of the rows")
        axes.legend(loc="upper right", bbox_to_anchor=(1.02, 1.2), ncols=2, fontsize=8)

    title = f"{column}: tonight and {called}"
    rows = tuple((name, f"{share:.2%}", f"{other:.2%}") for name, share, other in shares)
    return Chart(
        title, _svg(title, draw, (4.8, 3.0), left=0.8, bottom=0.9, top=0.3), ("values", called, "tonight"), rows
    )


def trend_chart(name: str, nights: Sequence[tuple[str, float]]) -> Chart:
    """A figure over nights; the last one is marked. nights: dates with values, in order.

    A value that cannot be drawn is a gap, which the title tells of; the table has it.
    """
    values = [float(value) if abs(value) < _LARGEST else math.nan for _, value in nights]
    gaps = sum(map(math.isnan, values))

    def draw(axes: Axes) -> None:
        at = range(len(nights))
        axes.plot(at, values, color=_NOW, marker="o", markersize=3, linewidth=1.4)
        axes.plot([len(nights) - 1], values[-1:], color=_NOW, marker="o", markersize=7)
        every = max(1, (len(nights) + 3) // 4)
        ticks = list(range(len(nights) - 1, -1, -every))
        axes.set_xticks(ticks, [_short(nights[tick][0]) for tick in ticks])
        axes.margins(y=0.2)
        if min(filter(math.isfinite, values), default=0.0) >= 0:
            axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
        axes.ticklabel_format(axis="y", useOffset=False, style="plain")

    title = f"{name} over {len(nights)} nights"
    if gaps:
        title += f", {gaps} of them not drawn: NaN, infinite or too large"
    rows = tuple((date, _value(value)) for date, value in nights)
    return Chart(title, _svg(title, draw, (4.8, 2.0), bottom=0.3), ("night", name), rows)


def trend_charts(figures: Mapping[str, Sequence[tuple[str, float]]], most: int, drawing: Drawing) -> list[Chart]:
    """A chart for each figure that at least two nights have; at most so many. figures: name → dates with values."""
    shown = [(name, nights) for name, nights in figures.items() if len(nights) > 1][:most]
    return [
        chart for name, nights in shown for chart in drawing.of(f"{name} over the nights", trend_chart, name, nights)
    ]


def calibration_chart(bins: Sequence[CalibrationBin]) -> Chart:
    """The share of labels 1 for each mean score; on the diagonal scores mean what they say."""

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=_QUIET, linewidth=1, linestyle="--", label="calibrated")
        scores, shares = [each.mean_score for each in bins], [each.positive_share for each in bins]
        axes.plot(scores, shares, color=_NOW, marker="o", markersize=4, linewidth=1.4, label="tonight")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="mean score", ylabel="share of label 1")
        axes.legend(loc="upper left", fontsize=8)

    title = "Calibration: what a score says, and how often it is so"
    rows = tuple((f"{each.mean_score:.3f}", f"{each.positive_share:.3f}", f"{each.rows:,}") for each in bins)
    return Chart(title, _svg(title, draw, (4.8, 3.2)), ("mean score", "share of label 1", "rows"), rows)


def account_charts(account: Account) -> tuple[Chart, ...]:
    """The parts of a run's wall time; and what its workers did while they scored."""
    charts = [_seconds_chart(f"The {duration(account.wall_s)} of the run, in their order", list(account.parts.items()))]
    if account.scoring:
        title = f"What {counted(account.workers, 'worker')} did while scoring, on average"
        charts.append(_seconds_chart(title, list(account.scoring.items())))
    return tuple(charts)


def _seconds_chart(title: str, parts: Sequence[tuple[str, float]]) -> Chart:
    """A bar for each part, the first at the top."""
    whole = sum(seconds for _, seconds in parts) or 1.0

    def draw(axes: Axes) -> None:
        at = range(len(parts))
        drawn = axes.barh(at, [seconds for _, seconds in parts], height=0.7, color=_BEFORE, edgecolor=_NOW)
        axes.bar_label(drawn, [f" {seconds / whole:.0%}" for _, seconds in parts], fontsize=8, color=_INK)
        axes.set_yticks(list(at), [_short(name, 24) for name, _ in parts], fontsize=8)
        axes.set_ylim(len(parts) - 0.4, -0.6)
        axes.set_xlabel("seconds")
        axes.margins(x=0.12)
        axes.grid(visible=False, axis="y")

    rows = tuple((name, f"{seconds:,.2f}", f"{seconds / whole:.1%}") for name, seconds in parts)
    size = (4.8, 0.8 + 0.22 * max(3, len(parts)))
    return Chart(title, _svg(title, draw, size, left=1.5), ("part", "seconds", "share"), rows)


def _value(value: float) -> str:
    """A value in a table."""
    if abs(value) < 1e6:
        return f"{value:,.6g}"
    return f"{value:,.0f}" if abs(value) < _LARGEST else f"{Decimal(value):.6g}"


def _short(text: str, most: int = _LABEL) -> str:
    shown = line(text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _svg(
    title: str,
    draw: Any,
    inches: tuple[float, float],
    *,
    left: float = 0.75,
    bottom: float = 0.5,
    top: float = 0.12,
) -> Markup:
    """A plot as inline SVG. draw: puts it on the axes it is given. left, bottom, top: the room for labels, in inches:
    matplotlib finds out how much they need by drawing three times.
    """
    import matplotlib
    from matplotlib.figure import Figure

    out = io.StringIO()
    with _DRAWING, matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=inches)
        wide, high = inches
        draw(figure.add_axes((left / wide, bottom / high, 1 - (left + _RIGHT) / wide, 1 - (bottom + top) / high)))
        unsaid: Any = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=unsaid)
    return _inline(title, out.getvalue())


def _inline(title: str, svg: str) -> Markup:
    """The SVG of matplotlib as a part of a page: named for those who do not see it, and in the page's colours."""
    svg = svg[svg.index("<svg") :]
    opening, _, rest = svg.partition(">")
    (box,) = re.findall(r'viewBox="[^"]*"', opening)
    (width,) = re.findall(r'width="([\d.]+)pt"', opening)
    # The names of matplotlib's groups would be there once for each plot, and its style would be that of the page.
    rest = re.sub(r"<style .*?</style>", "", re.sub(r'<g id="[^"]*">', "<g>", rest), flags=re.DOTALL)
    rest = re.sub(r'style="[^"]*"', lambda found: _themed(found[0]), rest)
    named = Markup('<svg xmlns:xlink="http://www.w3.org/1999/xlink" role="img" aria-label="{}" {} width="{}">').format(
        line(title), Markup(box), round(float(width) * 4 / 3)
    )
    return named + Markup(rest)


def _themed(style: str) -> str:
    """A style attribute with the font and the colours of the page."""
    for drawn, shown in _COLOURS.items():
        style = style.replace(drawn, shown)
    return re.sub(r"font-family: [^;\"]*", "font-family: inherit", style)
