"""Addresses of the reports that `nightjar serve` shows: below one base, by the names of job and run."""

from __future__ import annotations

import os
from urllib.parse import quote, urlencode

from nightjar.inference.run.request import RunRequest

BASE = "NIGHTJAR_REPORTS"
"""The variable that has the address where people reach the reports; `nightjar serve` sets it for its runs."""


def of_job(name: str) -> str:
    """The page of all nights of a job, below the base."""
    return f"jobs/{quote(name, safe='')}/"


def of_run(run_id: str, date: str) -> str:
    """A night's report, below its job's page. date: of a job whose nights have an output each; else empty."""
    return f"runs/{quote(run_id, safe='')}" + (f"?{urlencode({'date': date})}" if date else "")


def shown_at(request: RunRequest) -> str:
    """Where a person finds the report of this run; empty if nothing is known that serves it."""
    base = os.environ.get(BASE, "").rstrip("/")
    if not base.startswith(("http://", "https://")):
        return ""
    return f"{base}/{of_job(request.job.name)}{of_run(request.run_id, request.date if request.dated else '')}"
