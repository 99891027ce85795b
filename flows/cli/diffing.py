"""What `nightjar diff` prints of two runs: tables of figures, of columns and of the rows that moved, and lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from nightjar.flows.cli.tables import table_of
from nightjar.flows.pages.escaping import line, visible
from nightjar.flows.pages.wording import distinct_text
from nightjar.inference.history.comparison import RunsCompared
from nightjar.inference.history.movement import NUMBER, VALUE, VECTOR, OutputMoved
from nightjar.inference.history.row_diff import RowsCompared, RunRows
from nightjar.inference.messages import counted

_SOME = 5
"""The most values that are named in a cell or a line."""

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
    table = table_of(found.job, ["figure", found.before, found.now])
    for each in found.figures:
        table.add_row(Text(visible(each.name)), _figure(each.before), _figure(each.now))
    return table


def _columns(found: RunsCompared, lines: int) -> Table:
    """The columns that are furthest apart come first."""
    names = ["column", "psi", "by chance", "js", "ks", "nulls", "mean before", "mean now"]
    names += ["distinct before", "distinct now", "new", "gone"]
    table = table_of("", names)
    for each in (each for each in found.columns[:lines] if not each.why):
        distances = (each.psi, each.psi_chance, each.js, each.ks, each.nulls, each.before, each.now)
        table.add_row(
            Text(visible(each.column)),
            *map(_figure, distances),
            *map(distinct_text, (each.distinct_before, each.distinct_now)),
            *(Text(visible(_first(values))) for values in (each.new, each.vanished)),
        )
    return table


def _said(found: RunsCompared, lines: int) -> str:
    """What these tables do not say."""
    said = [f"{each.column!r} cannot be compared: {each.why}" for each in found.columns[:lines] if each.why]
    if len(found.columns) > lines:
        said.append(f"{len(found.columns) - lines:,} more columns: --lines {len(found.columns)}")
    said += [
        f"the columns of {run} were not described: write `profile` into the job, and score it again"
        for run in found.undescribed
    ]
    said += [
        f"the columns of {run} are described by {counted(rows, 'row')}, drawn at random (profile.share)"
        for run, rows in found.drawn.items()
    ]
    said += [
        f"{name} was counted by other code in {found.before} than in {found.now}: its figures may differ for that alone"
        for name in found.recounted
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


def _left_over(found: RunsCompared, rows: RowsCompared) -> Iterator[Table | str]:
    """The rows that were not joined."""
    both = (rows.before, rows.now)
    told = {
        "only this run has the key": [each.only for each in both],
        "several rows have the key": [each.repeated for each in both],
        "the key is null": [each.keyless for each in both],
    }
    if not any(map(any, told.values())):
        return
    table = table_of("", ["not joined", found.before, found.now])
    _right(table, 1, 2)
    for name, numbers in told.items():
        if any(numbers):
            table.add_row(name, *(f"{number:,}" for number in numbers))
    yield table
    for run, each in zip((found.before, found.now), both, strict=True):
        yield from _examples(run, rows.key, each)


def _examples(run: str, key: Sequence[str], rows: RunRows) -> Iterator[str]:
    told = (("only in", rows.only, rows.some_only), ("not joined, because repeated, in", 0, rows.some_repeated))
    for what, total, some in told:
        if some:
            keys = "; ".join(_key(key, each) for each in some)
            more = f" and {total - len(some):,} more" if total > len(some) else ""
            yield line(f"{what} {run}: {keys}{more}")


def _outputs(outputs: Sequence[OutputMoved]) -> Table:
    """How far each output moved."""
    partly = any(each.unmeasured for each in outputs)
    names = ["output", "unchanged", "changed", *(["no distance"] if partly else []), "median", "p99", "max"]
    table = table_of("", names)
    _right(table, *range(1, len(names)))
    for each in outputs:
        total = each.changed + each.unchanged
        table.add_row(
            Text(visible(each.output)),
            f"{each.unchanged / total:.2%}",
            f"{each.changed:,}",
            *([f"{each.unmeasured:,}"] if partly else []),
            *map(_figure, (each.median, each.p99, each.max)),
        )
    return table


def _notes(found: RunsCompared, rows: RowsCompared, lines: int) -> Iterator[str]:
    """What the table of outputs does not say."""
    for each in rows.outputs[:lines]:
        if each.why:
            yield line(f"{each.output!r} was not compared: {each.why}")
        elif each.types[0] != each.types[1]:
            yield line(f"{each.output!r} is {each.types[0]} in {found.before} and {each.types[1]} in {found.now}")
        if each.unmeasured_rows:
            some = "; ".join(
                f"{_key(rows.key, row.key)} ({_value(row.before)} → {_value(row.now)})" for row in each.unmeasured_rows
            )
            more = each.unmeasured - len(each.unmeasured_rows)
            yield line(f"{each.output!r} has no distance: {some}{f' and {more:,} more' if more else ''}")
    if len(rows.outputs) > lines:
        yield f"{len(rows.outputs) - lines:,} more outputs: --lines {len(rows.outputs)}"


def _listed(found: RunsCompared, key: Sequence[str], output: OutputMoved) -> Iterator[Table | str]:
    """The rows of one output, and of values the changes."""
    if output.changes:
        yield line(f"{output.output}: which values changed")
        changes = table_of("", [found.before, found.now, "rows", "of the joined"])
        _right(changes, 2, 3)
        total = output.changed + output.unchanged
        for each in output.changes:
            values = (Text(line(_value(value))) for value in (each.before, each.now))
            changes.add_row(*values, f"{each.rows:,}", f"{each.rows / total:.2%}")
        yield changes
    if not output.rows:
        return
    which = "the first that changed, by their keys" if output.kind == VALUE else "the farthest first"
    yield line(f"{output.output}: {counted(len(output.rows), 'row')} of {output.changed:,}, {which}")
    yield _moved(found, key, output)


def _moved(found: RunsCompared, key: Sequence[str], output: OutputMoved) -> Table:
    apart = {NUMBER: "change", VECTOR: "distance"}.get(output.kind)
    table = table_of("", [*map(visible, key), found.before, found.now, *([apart] if apart else [])])
    if apart:
        _right(table, *range(len(key), len(key) + 3))
    for row in output.rows:
        values = (Text(line(_value(value))) for value in (*row.key, row.before, row.now))
        figure = "" if row.change is None else f"{row.change:{'+' if output.kind == NUMBER else ''}.4g}"
        table.add_row(*values, *([figure] if apart else []))
    return table


def _right(table: Table, *columns: int) -> None:
    """Numbers stand with their last digits below each other."""
    for column in columns:
        table.columns[column].justify = "right"


def _key(names: Sequence[str], values: Sequence[str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))


def _value(value: str | None) -> str:
    return _NULL if value is None else value


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, int) or 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def _first(values: Sequence[str]) -> str:
    more = f" and {len(values) - _SOME:,} more" if len(values) > _SOME else ""
    return ", ".join(values[:_SOME]) + more
