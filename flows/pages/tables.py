"""The tables of a run on Prefect's pages: shards, retries and quarantined rows, gates. All are bounded."""

from __future__ import annotations

from typing import Any

from prefect.artifacts import create_table_artifact

from nightjar.flows.pages.delivery import Send
from nightjar.flows.pages.escaping import cell, code, markdown
from nightjar.flows.pages.wording import cells, said_of
from nightjar.inference.output.revisions import Revision
from nightjar.inference.run.report import Incident, RunReport, ShardLine
from nightjar.inference.run.request import RunRequest
from nightjar.inference.validation.gates import GateResult

_COMMANDS = 400_000
"""The most characters of all replay commands in a table; further lines have no command, because half of one is
useless."""


def shard_tables(request: RunRequest, revision: int | Revision) -> dict[str, Send]:
    """The table of shards, and that of retries and quarantined rows, by key, as functions that send them."""
    report = RunReport(request, revision)
    shards, incidents = ([_headed(each) for each in lines] for lines in (report.shards(), report.incidents()))
    total = len(report.plan)
    shown = f"All {total:,} shards" if len(shards) == total else f"{len(shards):,} of {total:,} shards"
    left_out = len(incidents) < report.all_incidents
    more = f" ({len(incidents):,} of {report.all_incidents:,})" if left_out else ""
    return {
        f"{request.job.name}-shards": lambda: create_table_artifact(
            _bounded(shards),
            key=f"{request.job.name}-shards",
            description=f"{shown} of {markdown(request.run_id)}: without result first, then retried, then slowest. "
            f"Complete in `shards-*.parquet` under {code(report.uri)}",
        ),
        f"{request.job.name}-retries": lambda: create_table_artifact(
            _bounded(incidents),
            key=f"{request.job.name}-retries",
            description=f"Failed attempts and quarantined rows of {markdown(request.run_id)}{more}; "
            "none is an empty table",
        ),
    }


def _headed(record: ShardLine | Incident) -> dict[str, Any]:
    """A line of a table, keyed by headings for people."""
    return {name.replace("_", " "): value for name, value in cells(record).items()}


_PASSED = {"pass": "yes", "warn": "NO (warns)", "ask": "NO (asks)", "block": "NO"}


def gate_table(request: RunRequest, gates: tuple[GateResult, ...]) -> dict[str, Send]:
    """The table of gates, by key, as a function that sends it."""
    key = f"{request.job.name}-gates"
    table = [
        {
            "gate": gate.name,
            "passed": _PASSED[gate.verdict],
            "observed": gate.observed,
            "limit": gate.limit,
            "what it means": gate.sentence,
            "where": "; ".join(said_of(offender) for offender in gate.where),
            "replay": gate.where[0].replay if gate.where else "",
        }
        for gate in gates
    ]
    return {
        key: lambda: create_table_artifact(
            _bounded(table), key=key, description=f"Gates of {markdown(request.run_id)}"
        ),
    }


def _bounded(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Escape and shorten the cells, so that the page shows them, and the server emits the table's event.

    The page renders text in cells as Markdown; the server refuses an event above about 1.5 MB.
    """
    lines, room = [], _COMMANDS
    for line in table:
        replay = line.get("replay", "")
        room -= len(replay)
        commands = {"replay": markdown(replay if room >= 0 else "")} if "replay" in line else {}
        lines.append({name: cell(value) for name, value in line.items()} | commands)
    return lines
