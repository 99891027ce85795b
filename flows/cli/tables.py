"""Tables and lists for the terminal: runs, a run's shards and incidents, a row's values, the nights of a backfill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from nightjar.flows.pages.advice import as_typed
from nightjar.flows.pages.escaping import line, visible
from nightjar.flows.pages.wording import cells, duration, metric_text, minute
from nightjar.inference.history.run_status import RunLine
from nightjar.inference.history.run_tables import Incident, ShardLine
from nightjar.inference.messages import counted
from nightjar.inference.output.visibility import Change, Listed
from nightjar.inference.run.request import RunRequest

if TYPE_CHECKING:
    from nightjar.flows.reports import NightListed
    from nightjar.flows.results import Night
    from nightjar.inference.history.replay import Replayed, Values

_RUNS = 5

_NAME_CHARS = 30
"""The longest column name, in characters, that values are aligned to."""

_SHARDS = ("input", "status", "failed_attempts", "rows", "quarantined", "seconds", "shard")
"""The columns of the table of shards. The incidents say why a shard failed."""


def runs(request: RunRequest, found: Sequence[RunLine]) -> Table:
    """The table of a job's runs."""
    columns = ["run", "state", "began", "took", "readers see", "shards", "rows", "lost", "metric"]
    table = table_of(f"{request.job.name}: {request.output}", columns)
    for each in found:
        number = f" (#{each.publication})" if each.publication and each.shown == each.revision else ""
        table.add_row(
            Text(visible(each.run_id)),
            Text(visible(f"{each.standing.words}{f' r{each.revision}' if each.revision else ''}") + _below(each.marks)),
            minute(each.began),
            duration(each.seconds),
            f"r{each.shown}{number}" if each.shown else "nothing",
            f"{each.done_shards:,} of {each.shards:,}",
            f"{each.rows_out:,}",
            f"{each.rows_quarantined:,}",
            Text(visible(metric_text(each.metric))),
        )
    return table


def shards(found: Sequence[ShardLine], total: int) -> Table:
    """The table of some of a run's `total` shards, without columns that are 0 everywhere; it fits into 80 columns."""
    of = f"{len(found):,} of {total:,}" if len(found) < total else f"all {total:,}"
    rows = [cells(each) for each in found]
    said = [name for name in _SHARDS if any(row[name] for row in rows)]
    table = table_of(f"Shards ({of}): without result first, then retried, then slowest", [])
    for name in said:
        # A name or an id may take two lines, but is complete, because `nightjar retry --shard` needs the whole id.
        table.add_column(name.replace("_", "\n"), overflow="fold", no_wrap=name not in ("input", "shard"))
    for row in rows:
        shown = (row[name] for name in said)
        table.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else visible(str(cell))) for cell in shown))
    return table


def sample_rows(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of a few rows with their predictions. It has no title, because Rich would fold it in a narrow table."""
    table = table_of("", [])
    for name in names:
        table.add_column(Text(line(name)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(line(value)) for value in row))
    return table


def printed(found: Sequence[ShardLine]) -> str:
    """The last printed lines of the shards without a result; empty if there are none."""
    said = [(each.shard, each.printed_last) for each in found if each.printed_last]
    lines = [f"  shard {shard}\n" + "\n".join(f"    {line(each)}" for each in last) for shard, last in said]
    return "\n".join(["Last printed lines of shards without a result", *lines]) if lines else ""


def incidents(found: Sequence[Incident], total: int, limit: int) -> str:
    """Some of a run's `total` failures, in lines that can be copied. limit: the most lines that were asked for."""
    more = "; --lines shows more" if len(found) >= limit else ""
    of = f" ({len(found):,} of {total:,}{more})" if len(found) < total else ""
    return "\n".join([f"Failed attempts and quarantined rows{of}", *(_incident(each) for each in found)])


def _incident(said: Incident) -> str:
    # The file is unknown for a shard of an earlier plan; an attempt has no row.
    model = f"model {said.model}" if said.model else ""
    places = (said.file, f"row {said.row}" if said.row is not None else "", model, f"shard {said.shard}")
    lines = [f"  {line(said.cause)}: {line(said.message)}"]
    told = {"where": ", ".join(filter(None, places)), "then": said.what_was_done, "again": as_typed(said.replay)}
    lines += [f"    {name:<8} {line(text)}" for name, text in told.items() if text]
    return "\n".join(lines)


def publications(request: RunRequest, found: Sequence[Listed]) -> Table:
    """The table of an output's publications; readers see the first one."""
    table = table_of(f"{request.job.name}: {request.output}", ["#", "time", "made by", "readers saw", "changed"])
    for number, each in enumerate(found):
        at, latest = each.snapshot, each.snapshot.latest()
        seen = f"{counted(len(at.runs), 'run')}, latest {latest} r{at.runs[latest].revision}" if latest else "nothing"
        told = (at.note, seen, changed_runs(each.changes))
        if at.damaged:
            told = ("damaged: it cannot be read", "unknown", "unknown")
        table.add_row(f"{at.number}{' (now)' if not number else ''}", at.at[:19], *(Text(visible(one)) for one in told))
    return table


def changed_runs(changed: Sequence[Change]) -> str:
    """Say in one line what a new snapshot changes for readers. Names at most `_RUNS` runs, the latest ones."""
    kinds = {
        "Lost": [f"{each.run_id} r{each.before}" for each in changed if not each.after],
        "Gained": [f"{each.run_id} r{each.after}" for each in changed if not each.before],
        "Other": [f"{each.run_id} r{each.before} → r{each.after}" for each in changed if each.before and each.after],
    }
    told = [f"{kind}: {_some(runs)}." for kind, runs in kinds.items() if runs]
    return " ".join(told) or "Nothing changed."


def _some(runs: list[str]) -> str:
    more = f" and {len(runs) - _RUNS:,} earlier" if len(runs) > _RUNS else ""
    return ", ".join(runs[-_RUNS:]) + more


def replayed(result: Replayed) -> str:
    """One row's input values, and its outputs or its error."""
    return "\n".join([*_values("input", result.inputs), result.text, *_values("output", result.outputs)])


def _values(kind: str, values: Values) -> list[str]:
    wide = max((len(name) for name, _ in values), default=0)
    return [f"  {kind:<6} {line(name):<{min(wide, _NAME_CHARS)}}  {line(value)}" for name, value in values]


def history(job: str, found: Iterable[NightListed]) -> Table:
    """The table of a job's nights."""
    table = table_of(job, ["night", "run", "state", "rows", "quarantined", "metric", "seconds"])
    for each in found:
        number = f" #{each.publication}" if each.publication else ""
        table.add_row(
            each.date,
            Text(visible(f"{each.run_id} r{each.revision}" if each.revision else each.run_id)),
            f"{each.state}{number}{_below(each.marks)}",
            f"{each.rows:,}",
            f"{each.quarantined:,}",
            Text(visible(metric_text(each.metric))),
            "" if each.seconds is None else f"{each.seconds:,.0f}",
        )
    return table


def _below(marks: str) -> str:
    """That a night did not pass all gates, in lines of its own: a table has no room beside its state."""
    return marks.replace(", ", "\n")


def nights(found: Iterable[Night]) -> Table:
    """The table of a backfill's nights."""
    table = table_of("", ["night", "state", "rows", "what happened"])
    for night in found:
        table.add_row(night.date, night.state, f"{night.rows:,}", Text(visible(night.said)))
    return table


_WHY = {
    "failed": "repeat the command to continue them",
    "asks": "a person must answer first, with `nightjar approve` or `nightjar reject`",
    "rolled back": "somebody rolled them back",
}
"""Why readers do not see a night, by its state, and what helps."""


def missing(found: Sequence[Night]) -> str:
    """How many nights readers do not see, and what helps; empty if there are none."""
    states = [night.state for night in found if not night.ok]
    if not states:
        return ""
    kinds = [state for state in _WHY if state in states]
    several = len(kinds) > 1
    each = [f"{states.count(state)} {state}: {_WHY[state]}" if several else _WHY[state] for state in kinds]
    verb = "is" if len(states) == 1 else "are"
    return f"{len(states)} of {counted(len(found), 'night')} {verb} not published; {'; '.join(each)}"


def table_of(title: str, columns: Sequence[str]) -> Table:
    """An empty table as all commands show them."""
    table = Table(
        title=Text(visible(title)) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in columns:
        # In a narrow terminal the other columns are folded first, because people copy these and search for them.
        table.add_column(name, overflow="fold", no_wrap=name in ("run", "night", "state"))
    return table
