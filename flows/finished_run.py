"""The result of a run's four steps, which becomes the records of `reports`, a page, and what is notified."""

from __future__ import annotations

from dataclasses import dataclass

from nightjar.inference.history.retention import Pruned
from nightjar.inference.history.run_status import marked, overruled
from nightjar.inference.messages import counted
from nightjar.inference.run.account import Account
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.results import Publication, Scored, Verdict


@dataclass(frozen=True)
class FinishedRun:
    """A run that came to its end: it is published, or validated where it was not to be published."""

    request: RunRequest
    """The run."""

    scored: Scored
    """The result of the score step."""

    verdict: Verdict
    """The result of the validate step."""

    publication: Publication
    """The result of the publish step."""

    account: Account | None = None
    """Where the run's time went, until its last step ended; None where a person's answer ended the run."""

    pruned: Pruned | None = None
    """What was deleted of old nights; None where the job keeps all, nothing was published, or the deletion failed."""

    unpruned: str = ""
    """Why the deletion of old nights failed; empty if it did not."""

    @property
    def sentence(self) -> str:
        """How the run ended, for one line."""
        progress, number = self.scored.progress, self.publication.number
        done = f"published as #{number}" if number else "validated, not published"
        if self.scored.finished:
            done = f"nothing to score: published before, as #{number}"
        lost = f", {progress.counts.rows_quarantined:,} quarantined" if progress.counts.rows_quarantined else ""
        lost += f", {progress.counts.rows_partial:,} partly scored" if progress.counts.rows_partial else ""
        lost += f", {counted(progress.shards, 'shard')}"
        marks = marked(**overruled(self.verdict.gates)) if number else ""
        return f"{done}: {progress.counts.rows_out:,} of {progress.rows:,} rows{lost}{marks}"


@dataclass(frozen=True)
class Launched:
    """A finished run, as a command has it."""

    run: FinishedRun
    """The run."""

    pages: str = ""
    """The address of Prefect's pages; empty if its server ended with the command."""

    unreported: str = ""
    """Why Prefect's API does not know how the run ended; empty unless the API was away by then."""

    ray: str | None = None
    """The cluster that was named, host:port or ray://host:port."""
