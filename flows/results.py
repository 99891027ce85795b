"""What a run, a command and a night of a backfill came to."""

from __future__ import annotations

from dataclasses import dataclass

from nightjar.inference.messages import counted
from nightjar.inference.run.account import Account
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.results import Publication, Scored, Verdict
from nightjar.inference.validation.gates import marked, overruled


@dataclass(frozen=True)
class FinishedRun:
    """A run that came to its end: it is published, or validated where it was not to be published.

    account: where its time went, until its last step ended; None where a person's answer ended it.
    """

    request: RunRequest
    scored: Scored
    verdict: Verdict
    publication: Publication
    account: Account | None = None

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
    """A finished run, as a command has it. ray: the cluster that was named. unreported: why Prefect's API does not know
    how the run ended, if it was away by then."""

    run: FinishedRun
    api_url: str
    own_api: bool
    unreported: str = ""
    ray: str | None = None


@dataclass(frozen=True, slots=True)
class Night:
    """What became of one night.

    state: published, skipped (it was published before), rolled back, asks (a person must say yes first) or failed.
    """

    date: str
    state: str
    rows: int = 0
    said: str = ""

    @property
    def ok(self) -> bool:
        """Whether readers see the night."""
        return self.state in {"published", "skipped"}
