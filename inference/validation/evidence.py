"""Collects the gates' evidence about the input, from tonight's discovery and from earlier published nights."""

from __future__ import annotations

from nightjar.inference.errors import Missing
from nightjar.inference.input.discovery import Discovery
from nightjar.inference.job.checks import RowsCheck
from nightjar.inference.job.model import Job
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
from nightjar.inference.validation.manifest import read_manifest


def found(storage: Storage, job: Job, date: str, discovery: Discovery, rows: int | None = None) -> Found:
    """Describe the whole input as it was found, also if the run is limited; the last night only if a check needs it.

    date: the run's logical date. rows: the rows of the whole input that match, if all were read and counted.
    """
    compares = any(isinstance(check, RowsCheck) and check.rows.against for check in job.checks)
    last = last_night(storage, job.output.uri, date) if compares else None
    files, known, uncounted = discovery.files.num_rows, discovery.rows, discovery.uncounted
    if job.input.where:
        known, uncounted = 0, files  # which of the rows match is not known
    if uncounted and rows is not None:
        return Found(files, rows, discovery.unreadable, last)
    return Found(files, known, discovery.unreadable, last, uncounted)


def judge_input(storage: Storage, job: Job, date: str, discovery: Discovery) -> tuple[GateResult, ...]:
    """Judge the gates on the input, before anything is scored."""
    return evaluate(input_gates(job), Evidence(found(storage, job, date, discovery)))


def last_night(storage: Storage, output: str, date: str) -> LastNight | None:
    """The published run of the latest date before this one, or None. A run whose files were removed does not count.

    Raises:
        JobError: Its manifest is not the one that was published.
    """
    runs = publish.newest(storage, output).runs
    # If a date has several runs, the run named after the date counts, as it does for readers of the latest night.
    before = sorted((entry.date, run == entry.date, run) for run, entry in runs.items() if entry.date < date)
    for day, _, run in reversed(before):
        try:
            totals = read_manifest(storage, output, runs[run]).totals
        except Missing:
            continue
        return LastNight(run, day, totals.rows_in)
    return None
