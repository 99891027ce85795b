"""The report of a night, and the page of all nights of a job: one HTML file each, which needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from nightjar.flows.pages.advice import Commands
from nightjar.flows.pages.charts import Chart, account_charts, calibration_chart, drift_chart, trend_charts
from nightjar.flows.pages.escaping import visible
from nightjar.flows.pages.evaluated import evaluation_lines, late_lines, own_lines
from nightjar.flows.pages.wording import (
    describe,
    duration,
    first_of,
    late_table,
    machines_cost,
    metric_text,
    minute,
    named_instead,
    reused_text,
    said_of,
)
from nightjar.inference.errors import Rejected
from nightjar.inference.history.night import Report
from nightjar.inference.history.run_status import RunLine
from nightjar.inference.history.run_tables import worded
from nightjar.inference.messages import counted
from nightjar.inference.metrics.figures import Figures

_TEXT = 1500
"""The most characters of one text; a page has hundreds of them."""

_JOB = 20_000
"""The most characters of the job."""

_GATES = 300
_TRENDS = 6
_FILES = 100
"""The most gates, figures with a trend, and files of code or model that are shown."""

ALONE: Mapping[str, str] = MappingProxyType({})
"""No other pages: of a page that is a file."""

_SAYS = {"good": "says-pass", "bad": "says-block", "open": "says-ask"}
"""Tone → the class of a word in it."""

_BAD = {"failed", "rejected", "killed", "unreadable", "stopped", "silent", "rolled back"}


def report_page(report: Report, commands: Mapping[str, str], around: Mapping[str, str] = ALONE) -> str:
    """The page of one night. commands: what a person can do, each under a word for it. around: other pages, by name,
    where it is one of several; a file stands alone.
    """
    slowest = report.slow.shard if report.slow else ""
    behind = _behind(report)
    about, words = Commands(report.request), report.request.words
    metrics, late = report.metrics or Figures({}), report.late
    told = late_lines(late, report.newest.number) if late else []
    bins = metrics.evaluation.calibration if metrics.evaluation else ()
    ours = late is not None and late.revision == report.newest.number
    return (
        templates()
        .get_template("report.html")
        .render(
            report=report,
            line=report.line,
            verdict=verdict(report.line) + (", but a table does not show it" if behind else ""),
            tone="bad" if behind else tone(report.line),
            instead=named_instead(report.instead) if report.instead else "",
            said=[
                *(("table", late_table(each, report.now.number)) for each in report.late_tables),
                *worded(report.again, (each for each in report.notes if each not in report.line.standing.cause)),
                *_warnings(report),
            ],
            commands=commands,
            logs=about.command("logs", *words, "--shard", slowest),
            again=about.command("report", *words),
            drift=[
                drift_chart(each.column, night.called, each.groups)
                for night in report.compared
                for each in night.columns
                if each.groups
            ],
            calibration=calibration_chart(bins) if bins else None,
            trends=trend_charts(_trends(report), _TRENDS),
            account=account_charts(report.account) if report.account else (),
            gates=sorted(report.gates, key=lambda gate: gate.passed)[:_GATES],
            evaluation=[*(told if ours else evaluation_lines(metrics)), *own_lines(metrics)],
            earlier=[] if ours else told,
            unlabelled=_unlabelled(report),
            slow_input=next((each.input for each in report.shards if each.shard == slowest), ""),
            progress=describe(report.newest.state.progress),
            attempts=[each for each in report.incidents if each.attempt is not None],
            rows=[each for each in report.incidents if each.attempt is None],
            identity=_identity(report),
            files=_files(report),
            cost=machines_cost(report.cost) if report.cost else "",
            reused=_reused(report),
            around=around,
        )
    )


def verdict(line: RunLine) -> str:
    """How the night ended, in a few words."""
    state = line.standing.state
    if state == "published" and line.publication:
        return f"Published as #{line.publication}{line.marks}"
    if state == "failed" and line.standing.ended is not None and line.standing.ended.gates:
        return f"Refused by {line.standing.ended.where}"
    if line.standing.ended is not None and line.standing.ended.error == Rejected.__name__:
        return "Not approved"
    words = {"asks": f"Asks a person: {line.standing.words.removeprefix('asks at ')}"}
    return words.get(state, line.standing.words.capitalize())


def _reused(report: Report) -> str:
    if report.manifest is None:
        return ""
    cost, totals = report.request.job.cost, report.manifest.totals
    return reused_text(report.manifest.reused, totals.rows_in, cost.currency if cost else "")


def _behind(report: Report) -> bool:
    """Whether a table may lack this very night, which readers of the files see."""
    return report.line.standing.state == "published" and any(
        each.problem or report.line.date in each.lacks or each.publication < report.line.publication
        for each in report.late_tables
    )


def _warnings(report: Report) -> list[tuple[str, str]]:
    """What the gates say that did not pass, also those that labels were judged by that came late."""
    said = report.warnings
    if (late := report.late) is not None:
        of = "" if late.revision == report.line.revision else f"r{late.revision}, which readers see: "
        said += [f"{of}{gate.name}: {gate.sentence}" for gate in late.gates if not gate.passed]
    return [("warning", each) for each in said[:_GATES]]


def tone(line: RunLine) -> str:
    """The class of a night, which gives its colour: good, bad or open. Good is one that passed all gates."""
    state = line.standing.state
    return "good" if state in {"published", "validated"} and not line.marks else "bad" if state in _BAD else "open"


def _trends(report: Report) -> dict[str, list[tuple[str, float]]]:
    """Each figure of tonight over the nights that have it: name → dates with values."""
    tonight = report.trend[-1].figures if report.trend else ()
    return {
        name: [(each.date, each.figures[name]) for each in report.trend if name in each.figures] for name in tonight
    }


def _unlabelled(report: Report) -> str:
    """Why there is no evaluation."""
    found = report.metrics.evaluation if report.metrics else None
    if found is not None:
        return (
            f"No row has both a label and an output to compare: {found.excluded_null_labels:,} rows have no "
            f"{found.label!r}, and of the others {found.excluded_scores:,} have no usable {found.score!r}."
        )
    if report.request.job.late_labels is not None:
        evaluate = Commands(report.request).command("evaluate", *report.request.words)
        return f"Labels come later. When they are there: {evaluate}"
    return "There are no labels to compare with: the job names no label."


def _identity(report: Report) -> Markup:
    """The keys of the job that score, as YAML."""
    if report.identity is None:
        return Markup()
    plain = json.loads(json.dumps(report.identity.job))
    return escape(visible(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)[:_JOB]))


def _files(report: Report) -> list[tuple[str, str, str]]:
    """What scored: kind, name, and the SHA-256 or version."""
    if report.identity is None:
        return []
    kinds = (("code", report.identity.code), ("model", report.identity.model), ("package", report.identity.packages))
    return [(kind, name, digest) for kind, held in kinds for name, digest in sorted(held.items())][:_FILES]


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
    return template.render(job=job, output=output, nights=nights, charts=charts, around=around, reports=reports)


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


def text(value: Any) -> Any:
    """What a page shows of a value: text with its control characters made visible, and not too long."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return visible(value if len(value) <= _TEXT else value[:_TEXT] + "…")


def _number(value: float | None, form: str = ".4g") -> str:
    return "" if value is None else format(value, form)


def _headed(rows: Markup, head: Sequence[str]) -> Markup:
    """The rows of a table, each cell with the head of its column, for narrow windows, where a row is a list."""

    def row(found: re.Match[str]) -> str:
        names = iter(head)
        return re.sub("<t[dh](?=[ >])", lambda cell: f'{cell[0]} data-head="{escape(next(names, ""))}"', found[0])

    return Markup(re.sub("<tr>.*?</tr>", row, rows, flags=re.DOTALL))


@cache
def templates() -> Environment:
    """The templates of the pages, which escape what they are given."""
    made = Environment(
        loader=PackageLoader("nightjar.flows.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=text,
    )
    made.filters |= {
        "number": _number,
        "metric": metric_text,
        "short_list": first_of,
        "counted": counted,
        "minute": minute,
        "duration": duration,
        "said_of": said_of,
        "headed": _headed,
        "verdict": verdict,
        "tone": tone,
        "says": lambda line: _SAYS[tone(line)],
    }
    return made
