"""Prefect's page of a run, and what a published run has for it."""

from __future__ import annotations

from nightjar.flows.pages.advice import Commands
from nightjar.flows.pages.ending import as_page, failure
from nightjar.inference.errors import NightjarError
from nightjar.inference.ledger.lines import Published
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.results import Publication, Verdict

PUBLISHED = Verdict(Published(1, "manifest.json", "", ""), 1, (), Figures({}), "shards.parquet")
PUBLICATION = Publication(1, 1, "manifest.json")


def failed_page(request: RunRequest, error: NightjarError) -> str:
    """What Prefect is given of a run that failed."""
    return as_page(failure(Commands(request), error), request, str(error))
