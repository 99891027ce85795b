"""The page of all nights of a job: its figures over the nights, and a table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nightjar.flows.pages.report.charts import Chart, Drawing, trend_chart
from nightjar.flows.pages.report.page import ALONE, templates, tone
from nightjar.flows.reports import NightListed
from nightjar.inference.history.run_status import RunLine

MAX_NIGHTS = 400
"""The most nights of the page: a year and a month. The ledger of each is read."""


_ALIKE = ("date", "run_id", "revision", "publication", "rows", "metric", "seconds", "approved", "warned")


def night_listed(line: RunLine) -> NightListed:
    """A line of `nightjar history`."""
    return NightListed(
        state=line.standing.state,
        quarantined=line.rows_quarantined,
        **{name: getattr(line, name) for name in _ALIKE},
    )


def by_date(lines: Sequence[RunLine]) -> list[NightListed]:
    """The nights, the latest date first; a run that never began has no date, and comes by its name."""
    return sorted(map(night_listed, lines), key=lambda night: (night.date or night.run_id, night.run_id), reverse=True)


def history_page(
    job: str,
    output: str,
    nights: Sequence[NightListed],
    around: Mapping[str, str] = ALONE,
    reports: Callable[[NightListed], str] = lambda _: "",
) -> str:
    """The page. nights: the latest first. around: other pages, by name, where it is one of several. reports: the
    address of a night's report; empty if there is none.
    """
    template = templates().get_template("history.html")
    drawing = Drawing()
    charts = _charts(nights, drawing)
    return template.render(
        job=job,
        output=output,
        nights=nights,
        tone=tone,
        charts=charts,
        missing=drawing.missing,
        around=around,
        reports=reports,
    )


def _charts(nights: Sequence[NightListed], drawing: Drawing) -> list[Chart]:
    """The figures of the published nights, in the order of their dates."""
    seen = [night for night in reversed(nights) if night.state == "published"]
    metrics = [(each.date, each.metric) for each in seen if each.metric is not None]
    name = metrics[-1][1].name if metrics else ""
    values: dict[str, list[tuple[str, float]]] = {
        "rows": [(each.date, each.rows) for each in seen],
        "quarantined": [(each.date, each.quarantined) for each in seen],
        name: [(date, each.value) for date, each in metrics if each.name == name and not isinstance(each.value, str)],
        "seconds": [(each.date, each.seconds) for each in seen if each.seconds is not None],
    }
    shown = {what: found for what, found in values.items() if len(found) > 1}
    return [
        chart
        for what, found in shown.items()
        for chart in drawing.of(f"{what} over the nights", trend_chart, what, found)
    ]
