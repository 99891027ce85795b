"""Tables and lists for the terminal: runs, shards, incidents, values of a row, and what `diff` compares."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from nightjar.flows.pages.advice import as_typed
from nightjar.flows.pages.escaping import line, visible
from nightjar.flows.pages.wording import cells, duration, first_of, metric_text, minute
from nightjar.flows.reports import Night, RunListed
from nightjar.inference.history.comparison import RowsCompared, RunsCompared
from nightjar.inference.history.movement import NUMBER, VALUE, VECTOR, OutputMoved
from nightjar.inference.history.replay import Replayed, Values
from nightjar.inference.history.run_tables import Incident, ShardLine
from nightjar.inference.messages import counted
from nightjar.inference.output.visibility import Change, PublicationListed
from nightjar.inference.run.request import RunRequest

_RUNS = 5

_NAME_CHARS = 30
"""The longest column name, in characters, that values are aligned to."""

_SHARDS = ("input", "status", "failed_attempts", "rows", "quarantined", "seconds", "shard")
"""The columns of the table of shards. The incidents say why a shard failed."""


def runs(request: RunRequest, found: Sequence[RunListed]) -> Table:
    """The table of a job's runs, or nights, without columns that say nothing; it fits into 80 columns."""
    columns = ["run", "state", "began", "took", "seen", "rows", "metric"]
    rows = []
    for each in found:
        # What befell a run is in lines of its own below its state: columns for it would fold the numbers.
        state = [f"{each.standing}{f' r{each.revision}' if each.revision else ''}"]
        state += each.marks.split(", ")[1:]
        if each.done_shards < each.shards:
            state.append(f"{each.done_shards:,} of {each.shards:,} shards")
        if each.rows_quarantined:
            state.append(f"{each.rows_quarantined:,} quarantined")
        if each.rows_partial:
            state.append(f"{each.rows_partial:,} partly scored")
        # The year is in the name of a night.
        times = (minute(each.began)[5:], duration(each.seconds))
        figures = (each.rows, metric_text(each.metric))
        rows.append((each.run_id, "\n".join(state), *times, each.seen or "nothing", *figures))
    told = [index for index in range(len(columns)) if not rows or any(row[index] != "" for row in rows)]
    shown = [[row[index] for index in told] for row in rows]
    no_wrap = ("run", "state", "began", "took", "seen")
    return table_of(f"{request.job.name}: {request.output}", [columns[index] for index in told], shown, no_wrap=no_wrap)


def shards(found: Sequence[ShardLine], total: int) -> Table:
    """The table of some of a run's `total` shards, without columns that are 0 everywhere; it fits into 80 columns."""
    of = f"{len(found):,} of {total:,}" if len(found) < total else f"all {total:,}"
    rows = [cells(each) for each in found]
    said = {name: name.replace("_", "\n") for name in _SHARDS if any(row[name] for row in rows)}
    # A name or an id may take two lines, but is complete, because logs and parts have it.
    no_wrap = {head for name, head in said.items() if name not in ("input", "shard")}
    title = f"Shards ({of}): without result first, then retried, then slowest"
    return table_of(title, list(said.values()), ([row[name] for name in said] for row in rows), no_wrap=no_wrap)


def sample_rows(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of a few rows with their predictions. It has no title, because Rich would fold it in a narrow table."""
    return table_of("", [*map(line, names)], [map(line, row) for row in rows])


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


def publications(request: RunRequest, found: Sequence[PublicationListed]) -> Table:
    """The table of an output's publications; readers see the first one."""
    rows = []
    for index, each in enumerate(found):
        number = f"{each.publication}{'' if index else ' (now)'}"
        rows.append((number, each.at[:19], each.note, runs_seen(each), changed_runs(each.changes)))
    return table_of(f"{request.job.name}: {request.output}", ["#", "time", "made by", "readers saw", "changed"], rows)


def runs_seen(found: PublicationListed) -> str:
    """What readers see with a publication."""
    runs, latest = counted(len(found.runs), "run"), found.latest
    return f"{runs}, the latest {latest} r{found.runs[latest]}" if latest else "nothing"


def changed_runs(changed: Sequence[Change]) -> str:
    """Say in one line what a new snapshot changes for readers. Names at most `_RUNS` runs, the latest ones."""
    kinds = {
        "Lost": [f"{each.run_id} r{each.before}" for each in changed if not each.after],
        "Gained": [f"{each.run_id} r{each.after}" for each in changed if not each.before],
        "Other": [f"{each.run_id} r{each.before} → r{each.after}" for each in changed if each.before and each.after],
    }
    told = [f"{kind}: {_some(runs)}." for kind, runs in kinds.items() if runs]
    return " ".join(told) or "Nothing changed."


def some_revisions(found: Mapping[str, int]) -> str:
    """Revisions of runs, by run, in one line."""
    return _some([f"{run} r{revision}" for run, revision in found.items()])


def _some(runs: list[str]) -> str:
    more = f" and {len(runs) - _RUNS:,} earlier" if len(runs) > _RUNS else ""
    return ", ".join(runs[-_RUNS:]) + more


def replayed(result: Replayed) -> str:
    """One row's input values, and its outputs or its error."""
    return "\n".join([*_values("input", result.inputs), result.text, *_values("output", result.outputs)])


def _values(kind: str, values: Values) -> list[str]:
    wide = max((len(name) for name, _ in values), default=0)
    return [f"  {kind:<6} {line(name):<{min(wide, _NAME_CHARS)}}  {line(value)}" for name, value in values]


def missing(found: Sequence[Night]) -> str:
    """How many nights readers do not see, by their state; empty if there are none. The line of each says what helps."""
    bad = [night.state for night in found if not night.ok]
    states = ", ".join(f"{bad.count(state)} {state}" for state in dict.fromkeys(bad))
    return f"{len(bad)} of {counted(len(found), 'night')} not published: {states}" if bad else ""


def table_of(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Iterable[object]] = (),
    numbers: Iterable[int] = (),
    no_wrap: Collection[str] = (),
) -> Table:
    """A table as all commands show them. numbers: the columns whose last digits stand below each other.

    no_wrap: the columns that a narrow terminal folds last, because people copy their values and search for them.
    """
    table = Table(
        title=Text(visible(title)) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in columns:
        table.add_column(Text(visible(name)), overflow="fold", no_wrap=name in no_wrap)
    for column in numbers:
        table.columns[column].justify = "right"
    for row in rows:
        table.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else visible(str(cell))) for cell in row))
    return table


_LISTED = 3
"""The most outputs whose rows are listed; of all others the table says how far they moved."""

_NULL = "null"


def compared(found: RunsCompared, lines: int) -> Iterator[Table | str]:
    """Tables and lines, in order. lines: the most columns, and outputs, of a table."""
    yield _figures(found)
    if found.columns:
        yield _columns(found, lines)
    if said := _said(found, lines):
        yield said
    if found.rows:
        yield from _rows(found, found.rows, lines)
    elif found.unjoined:
        yield line(found.unjoined)


def _figures(found: RunsCompared) -> Table:
    rows = [(each.name, _figure(each.before), _figure(each.now)) for each in found.figures]
    return table_of(found.job, ["figure", found.before, found.now], rows)


def _columns(found: RunsCompared, lines: int) -> Table:
    """The columns that are furthest apart come first."""
    names = ["column", "psi", "by chance", "nulls", "mean before", "mean now", "new", "gone"]
    rows = [
        (
            each.column,
            *map(_figure, (each.psi, each.chance.get("psi"), each.nulls, each.before, each.now)),
            *map(first_of, (each.new, each.vanished)),
        )
        for each in found.columns[:lines]
        if not each.why
    ]
    return table_of("", names, rows)


def _said(found: RunsCompared, lines: int) -> str:
    """What these tables do not say."""
    said = [f"{each.column!r} cannot be compared: {each.why}" for each in found.columns[:lines] if each.why]
    if len(found.columns) > lines:
        said.append(f"{len(found.columns) - lines:,} more columns: --lines {len(found.columns)}")
    said += [
        f"the columns of {run} were not described, or by another version: write `profile` into the job and score again"
        for run in found.undescribed
    ]
    said += [
        f"the columns of {run} are described by {counted(rows, 'row')}, drawn at random (profile.share)"
        for run, rows in found.drawn.items()
    ]
    return "\n".join(map(line, said))


def _rows(found: RunsCompared, rows: RowsCompared, lines: int) -> Iterator[Table | str]:
    yield line(f"{counted(rows.joined, 'row')} of both runs joined by {', '.join(rows.key)}")
    yield from _left_over(found, rows)
    measured = [each for each in rows.outputs if not each.why]
    if rows.joined and measured:
        yield _outputs(measured[:lines])
    yield from _notes(found, rows, lines)
    moved = [each for each in measured if each.changed]
    for each in moved[:_LISTED]:
        yield from _listed(found, rows.key, each)
    if len(moved) > _LISTED:
        yield f"{len(moved) - _LISTED:,} more outputs changed; --json has their rows, too"


def _left_over(found: RunsCompared, rows_of: RowsCompared) -> Iterator[Table]:
    both = (rows_of.before, rows_of.now)
    told = {
        "only this run has the key": [each.only for each in both],
        "several rows have the key": [each.repeated for each in both],
        "the key is null": [each.keyless for each in both],
    }
    rows = [(name, *numbers) for name, numbers in told.items() if any(numbers)]
    if rows:
        yield table_of("", ["not joined", found.before, found.now], rows, numbers=(1, 2))


def _outputs(outputs: Sequence[OutputMoved]) -> Table:
    partly = any(each.unmeasured for each in outputs)
    names = ["output", "unchanged", "changed", *(["no distance"] if partly else []), "median", "p99", "max"]
    rows = [
        (
            each.output,
            f"{each.unchanged / (each.changed + each.unchanged):.2%}",
            each.changed,
            *([each.unmeasured] if partly else []),
            *map(_figure, (each.median, each.p99, each.max)),
        )
        for each in outputs
    ]
    return table_of("", names, rows, numbers=range(1, len(names)))


def _notes(found: RunsCompared, rows: RowsCompared, lines: int) -> Iterator[str]:
    """What the table of outputs does not say."""
    for each in rows.outputs[:lines]:
        if each.why:
            yield line(f"{each.output!r} was not compared: {each.why}")
        elif each.types[0] != each.types[1]:
            yield line(f"{each.output!r} is {each.types[0]} in {found.before} and {each.types[1]} in {found.now}")
    if len(rows.outputs) > lines:
        yield f"{len(rows.outputs) - lines:,} more outputs: --lines {len(rows.outputs)}"


def _listed(found: RunsCompared, key: Sequence[str], output: OutputMoved) -> Iterator[Table | str]:
    """The rows of one output, and of values the changes."""
    if output.changes:
        yield line(f"{output.output}: which values changed")
        total = output.changed + output.unchanged
        rows = [
            (line(_value(each.before)), line(_value(each.now)), each.rows, f"{each.rows / total:.2%}")
            for each in output.changes
        ]
        yield table_of("", [found.before, found.now, "rows", "of the joined"], rows, numbers=(2, 3))
    if not output.rows:
        return
    which = "the first that changed, by their keys" if output.kind == VALUE else "the farthest first"
    yield line(f"{output.output}: {counted(len(output.rows), 'row')} of {output.changed:,}, {which}")
    yield _moved(found, key, output)


def _moved(found: RunsCompared, key: Sequence[str], output: OutputMoved) -> Table:
    apart = {NUMBER: "change", VECTOR: "distance"}.get(output.kind)
    rows = []
    for row in output.rows:
        figure = "" if row.change is None else f"{row.change:{'+' if output.kind == NUMBER else ''}.4g}"
        rows.append((*(line(_value(value)) for value in (*row.key, row.before, row.now)), *([figure] if apart else [])))
    columns = [*map(line, key), found.before, found.now, *([apart] if apart else [])]
    return table_of("", columns, rows, numbers=range(len(key), len(key) + 3) if apart else ())


def _value(value: str | None) -> str:
    return _NULL if value is None else value


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, int) or 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
