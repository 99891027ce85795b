"""Tables for the terminal: runs, one run's shards and incidents, the nights of a backfill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from nightjar.flows.escaping import visible
from nightjar.inference.report import RunLine
from nightjar.inference.request import RunRequest

if TYPE_CHECKING:
    from nightjar.flows.backfill import Night

_SHARDS = ("input", "status", "failed attempts", "why", "rows", "quarantined", "seconds", "shard")
_INCIDENTS = ("cause", "what was done", "message", "file", "row", "shard")


def runs(request: RunRequest, found: Sequence[RunLine]) -> Table:
    """A job's runs."""
    table = _table(f"{request.job.name}: {request.output}", ["run", "state", "readers see", "shards", "rows", "lost"])
    for line in found:
        table.add_row(
            Text(visible(line.run_id)),
            f"{line.state} r{line.revision}",
            f"r{line.shown}" if line.shown else "nothing",
            f"{line.done_shards:,} of {line.shards:,}",
            f"{line.rows_out:,}",
            f"{line.rows_quarantined:,}",
        )
    return table


def shown(
    shards: Sequence[dict[str, Any]], incidents: Sequence[dict[str, Any]], total: int, limit: int
) -> Iterator[Table]:
    """One run's shards, and what went wrong in it. total: shards of the run. limit: lines of either, at most."""
    if shards:
        of = f"{len(shards):,} of {total:,}" if len(shards) < total else f"all {total:,}"
        yield _filled(f"Shards ({of}): without result first, then retried, then slowest", _SHARDS, shards)
    if incidents:
        first = f" (the first {limit:,}; --limit shows more)" if len(incidents) >= limit else ""
        yield _filled(f"Failed attempts and quarantined rows{first}", _INCIDENTS, incidents)


def nights(found: Iterable[Night]) -> Table:
    """What became of each night of a backfill."""
    table = _table("", ["night", "state", "rows", "what happened"])
    for night in found:
        table.add_row(night.date, night.state, f"{night.rows:,}", Text(visible(night.said)))
    return table


def _filled(title: str, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> Table:
    table = _table(title, columns)
    for row in rows:
        table.add_row(*(Text(visible(str(row[name]))) for name in columns))
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(
        title=Text(visible(title)) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
