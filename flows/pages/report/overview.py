"""The pages of several nights: those of one job, with its figures over them; and the last ones of all served jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nightjar.flows.pages.report.charts import Chart, trend_charts
from nightjar.flows.pages.report.page import ALONE, templates, tone, verdict
from nightjar.flows.pages.report.writing import job_address
from nightjar.inference.history.run_status import RunLine

MAX_NIGHTS = 400
"""The most nights of the page: a year and a month. The ledger of each is read."""


def by_date(lines: Sequence[RunLine]) -> list[RunLine]:
    """The nights, the latest date first; a run that never began has no date, and comes by its name."""
    return sorted(lines, key=lambda night: (night.date or night.run_id, night.run_id), reverse=True)


def history_page(
    job: str,
    output: str,
    nights: Sequence[RunLine],
    around: Mapping[str, str] = ALONE,
    reports: Callable[[RunLine], str] = lambda _: "",
) -> str:
    """The page. nights: the latest first. around: other pages, by name, where it is one of several. reports: the
    address of a night's report; empty if there is none.
    """
    template, charts = templates().get_template("history.html"), _charts(nights)
    return template.render(
        job=job, output=output, nights=nights, tone=tone, charts=charts, around=around, reports=reports
    )


def _charts(nights: Sequence[RunLine]) -> list[Chart]:
    """The figures of the published nights, in the order of their dates."""
    seen = [night for night in reversed(nights) if night.standing.state == "published"]
    metrics = [(each.date, each.metric) for each in seen if each.metric is not None]
    name = metrics[-1][1].name if metrics else ""
    values: dict[str, list[tuple[str, float]]] = {
        "rows": [(each.date, each.rows) for each in seen],
        "quarantined": [(each.date, each.rows_quarantined) for each in seen],
        name: [(date, each.value) for date, each in metrics if each.name == name],
        "seconds": [(each.date, each.seconds) for each in seen if each.seconds is not None],
    }
    return trend_charts(values, len(values))


_ORDER = ("asks", "bad", "open", "good")
"""The jobs that need a person come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownNight:
    """A night. report: the address of its report; empty if nothing of it was begun. needs_person: whether a person must
    answer or mend it. commands: what a person can do then, each under a word for it.
    """

    line: RunLine
    report: str = ""
    needs_person: bool = False
    commands: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def verdict(self) -> str:
        """How it ended, in a few words."""
        return verdict(self.line)

    @property
    def tone(self) -> str:
        """As of a state; of a night that did not pass all gates, another one."""
        return tone(self.line.standing.state, self.line.marks)

    @property
    def asks(self) -> bool:
        """Whether a person must say yes before it is published."""
        return self.line.standing.state == "asks"


@dataclass(frozen=True, slots=True)
class Served:
    """A job that is served. path: of its file. schedule: in words. deployment: the address of Prefect's page of it.

    nights: the newest ones, the latest first. problem: why its nights cannot be shown.
    """

    name: str
    path: str
    schedule: str = ""
    deployment: str = ""
    nights: tuple[ShownNight, ...] = ()
    problem: str = ""

    @property
    def page(self) -> str:
        """The address of the page of all its nights, from the page of all jobs."""
        return job_address(self.name)

    @property
    def last(self) -> ShownNight | None:
        """Its last night, if it has one."""
        return self.nights[0] if self.nights else None

    @property
    def seen(self) -> ShownNight | None:
        """The newest of the nights shown that readers see."""
        return next((each for each in self.nights if each.line.shown), None)

    @property
    def needing(self) -> tuple[ShownNight, ...]:
        """The nights that need a person."""
        return tuple(each for each in self.nights if each.needs_person)

    @property
    def order(self) -> tuple[int, str]:
        """Its place among the jobs."""
        asks = any(each.asks for each in self.nights)
        kind = "asks" if asks else "bad" if self.problem else self.last.tone if self.last else "open"
        return _ORDER.index(kind), self.name


def index_page(jobs: Sequence[Served], prefect: str = "") -> str:
    """The page. prefect: the address of Prefect's pages."""
    ordered = sorted(jobs, key=lambda job: job.order)
    needing = [job for job in ordered if job.problem or job.needing]
    return templates().get_template("index.html").render(jobs=ordered, needing=needing, prefect=prefect)


def problem_page(title: str, said: str) -> str:
    """The page in place of one that cannot be shown. said: why, and what to do."""
    return templates().get_template("problem.html").render(title=title, said=said)
