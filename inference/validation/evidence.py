"""Where the gates' evidence on the input comes from: tonight's discovery, and what is published of earlier nights."""

from __future__ import annotations

from nightjar.inference.errors import Missing
from nightjar.inference.input.discovery import Discovery
from nightjar.inference.job.model import Job, RowsCheck
from nightjar.inference.output import publications as publish
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.gates import (
    Evidence,
    Found,
    GateResult,
    LastNight,
    evaluate,
    input_gates,
)


def found(storage: Storage, job: Job, date: str, discovery: Discovery, rows: int | None = None) -> Found:
    """The whole input as it was found, also where the run is limited; the last night only if a check asks for it.

    date: the logical date of the run. rows: of the whole input, where all of them were read and counted.
    """
    compares = any(isinstance(check, RowsCheck) and check.rows.against for check in job.checks)
    last = last_night(storage, job.output.uri, date) if compares else None
    uncounted = discovery.uncounted
    if uncounted and rows is not None:
        return Found(discovery.files.num_rows, rows, discovery.unreadable, last)
    return Found(discovery.files.num_rows, discovery.rows, discovery.unreadable, last, uncounted)


def judge_input(storage: Storage, job: Job, date: str, discovery: Discovery) -> tuple[GateResult, ...]:
    """The verdicts of the gates on the input, before anything is scored."""
    return evaluate(input_gates(job), Evidence(found(storage, job, date, discovery)))


def last_night(storage: Storage, output: str, date: str) -> LastNight | None:
    """The published run of the latest date before this one; one whose files somebody has removed is none.

    Raises:
        JobError: its manifest is not the one that was published.
    """
    runs = publish.newest(storage, output).runs
    # Of several runs of one date the one that is named by it, as readers of the latest night get it.
    before = sorted((entry.date, run == entry.date, run) for run, entry in runs.items() if entry.date < date)
    for day, _, run in reversed(before):
        try:
            totals = publish.read_manifest(storage, output, runs[run])["totals"]
        except Missing:
            continue
        return LastNight(run, day, totals["rows_in"])
    return None
