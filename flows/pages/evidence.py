"""What a page shows about failed rows and shards: the commands that score a row again, and the last printed lines."""

from __future__ import annotations

import shlex
from itertools import islice

from nightjar.flows.pages.escaping import cell, code, markdown
from nightjar.flows.pages.wording import said_of
from nightjar.inference.errors import GateFailed, NightjarError, StorageError
from nightjar.inference.output.revisions import newest_revision
from nightjar.inference.run.report import Incident, RunReport, printed_last
from nightjar.inference.run.request import RunRequest

_REPLAYS = 3
"""The number of rows whose replay commands a page shows for copying; the table has more."""

_PRINTED = 3
"""The number of failed shards whose last printed lines a page shows; the table of shards has more."""


def gate_rows(error: NightjarError) -> list[str]:
    """The rows that failed gates name, with the commands that score them again."""
    gates = error.gates if isinstance(error, GateFailed) else ()
    found = [(f"{gate.name}: {said_of(offender)}", offender.replay) for gate in gates for offender in gate.where]
    return [f"- {markdown(said)}{f'; {code(replay)}' if replay else ''}" for said, replay in found]


def lost_rows(request: RunRequest, most: int) -> list[tuple[str, str]]:
    """The first rows without a result, as (error and place, the command that scores it again); at most `most`."""
    try:
        newest = newest_revision(request.storage, request.run_uri)
        found = RunReport(request, newest).replays(most) if newest is not None else []
    except StorageError:
        return []  # the step itself, or the next one, reports it
    return [(f"{each.cause}: {each.message} (row {each.row} of {each.file}{_by(each)})", each.replay) for each in found]


def _by(row: Incident) -> str:
    return f", model {row.model}" if row.model else ""


def rows_without_result(request: RunRequest) -> list[str]:
    """The first rows without a result, each with the command that scores it again; a cell's text cannot be copied."""
    lines = [f"- {cell(said)}; {code(replay)}" for said, replay in lost_rows(request, _REPLAYS)]
    return ["", "Rows that could not be scored, the first of them:", "", *lines] if lines else []


def printed(request: RunRequest) -> list[str]:
    """The last printed lines of failed shards."""
    try:
        found = printed_last(request.storage, request.run_uri)
    except StorageError:
        return []
    if not found:
        return []
    command = shlex.join(["nightjar", "logs", request.job_path, request.run_id, *request.place])
    lines = ["", f"Printed last; all of it: {code(command)}"]
    for shard, last in islice(found.items(), _PRINTED):
        lines += [
            "",
            f"shard {code(shard)}" if shard else "by the workers",
            "",
            *(f"- {code(each)}" for each in last),
        ]
    return lines
