"""Frozen records that the commands and the Python functions report. Their fields are the keys of `--json`, but for
`FinishedRun` and `Launched`, which become a `RunResult`.

`docs/json/` has the JSON Schema of each command's output, made from these classes by `tests/tools/json_schemas.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nightjar.inference.history.retention import Pruned
from nightjar.inference.history.run_status import RunFigures, marked, overruled
from nightjar.inference.history.run_tables import Incident, ShardLine
from nightjar.inference.ledger.endings import Ended
from nightjar.inference.ledger.lines import Decision
from nightjar.inference.ledger.progress import TokenRates
from nightjar.inference.messages import counted
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.output.outcomes import Reused
from nightjar.inference.output.targets import TableShown, late_tables
from nightjar.inference.records import Counts, Failed, Usage
from nightjar.inference.run.account import Account, WorkersCost
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.results import Publication, Sample, Scored, Verdict
from nightjar.inference.validation.evaluations import LateEvaluation


@dataclass(frozen=True, slots=True)
class Column:
    """A column. type: Arrow's name of it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What is known of a run before it scores: its input, and what its shards' identity is made of.

    rows: those that are known before the files are read; of uncounted_files they are not. where: only the rows that
    match it are scored; empty if the job has none. snapshot: of the table that is the input. reads: the columns of the
    input. identity: a line for each thing that scores, with the reason for each file of the code.
    """

    job: str
    run_id: str
    files: int
    unreadable_files: int
    rows: int
    uncounted_files: int
    where: str
    snapshot: str
    reads: tuple[Column, ...]
    identity: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport(Ahead):
    """What would be scored.

    unread: why files could not be read, empty if all could. files_left_out: files that cannot match `where`, by what
    their paths say, or their table. committed: shards that have a result; to_score: those that have none.
    reusable_shards, reusable_rows: further ones that an earlier revision has a result of; reuses: whether the run takes
    them over, so that they are not to be scored; source: that revision, as `2026-11-19/r1`. rows_from: the revision
    from which outputs of rows are taken that are the same; empty for none. rows_per_shard: fewest and most. columns: of
    the input. again: what makes shards old that had a result.
    """

    unread: str
    files_left_out: int
    shards: int
    committed: int
    to_score: int
    reusable_shards: int
    reusable_rows: int
    reuses: bool
    source: str
    rows_from: str
    rows_per_shard: tuple[int, int]
    columns: int
    again: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport(Ahead):
    """What `nightjar check` found. state: `ready`.

    columns: those that readers will get. notes: what a person should know.
    """

    date: str
    state: str
    device: str
    output: str
    columns: tuple[Column, ...]
    sample: Sample
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """startup_s: until the model was loaded. first_start: when the first shard was begun, in seconds since 1970.

    steady_s: from the first shard's start to the last one's end. rows_per_s: scored in that time.
    """

    startup_s: float
    first_start: float
    steady_s: float
    rows_per_s: int


@dataclass(frozen=True, slots=True)
class RunResult(Counts):
    """A finished run.

    state: `published`, or `validated` where it was not to be published. publication: its number, else 0. reused_shards:
    those that were committed before. reused: the results that were taken over from earlier revisions. again: what made
    shards old that had a result. notes: what a person should know of how it was scored. warnings: what those gates say
    that did not pass and only warn. unreported: why Prefect's API does not know how the run ended. metrics: what the
    audit computed of outputs and labels. manifest: its URI. tables_behind: why tables of the job do not show what is
    published, a sentence each. usage: what language models took in the run, by whichever command; token_rates: of this
    command; token_cost: by `model.cost`, null if the job has no such prices. pruned: what was deleted of old nights;
    null if the job keeps all, or if it failed.
    """

    job: str
    run_id: str
    revision: int
    state: str
    publication: int
    shards: int
    reused_shards: int
    reused: tuple[Reused, ...]
    failed_attempts: int
    retries: int
    deaths: int
    device: str
    again: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    tables_behind: tuple[str, ...]
    unreported: str
    metrics: Figures
    manifest: str
    account: Account | None
    engine: EngineFigures
    usage: Usage
    token_rates: TokenRates
    token_cost: float | None
    cost: WorkersCost | None
    pruned: Pruned | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionMade(Decision):
    """What `nightjar approve` and `nightjar reject` did. publication: its number; 0 after a no.

    unresumed: why Prefect's run, which waits, could not be told.
    """

    job: str
    run_id: str
    revision: int
    publication: int
    tables_behind: tuple[str, ...] = ()
    unresumed: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a command failed. error: the class of the exception.

    state: `failed`, `held` (another writer holds the run), `asks` (a person must say yes before it is published) or
    `interrupted`.
    """

    state: str
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a worker printed. time: UTC. shard: what was being scored, empty before the first one.

    stream: `out`, `err`, or `note` where it is a remark of Nightjar's.
    """

    time: str
    worker: str
    shard: str
    attempt: int
    stream: str
    text: str


@dataclass(frozen=True, kw_only=True)
class RunListed(RunFigures):
    """A run in a list: how it stands, why, and what to do about it.

    state: published, rolled back (also by `unpublish`), publishing, running, waiting, silent, failed, rejected,
    stopped, asks, limited, validated, killed, unreadable or unknown. standing: the state with the gate or
    step. cause: why it stands so, a sentence. ended: how it ended without a publication. tried_again: how the last try
    ended that could not begin. commands: what to do, each under a word for it.
    """

    state: str
    standing: str
    cause: str
    ended: Ended | None
    tried_again: Ended | None
    commands: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RunStatus(RunListed):
    """How far a run is: its figures as `runs` lists them, and what follows.

    job_file: as the person can type it. holder: who writes the run now. instead: the run that
    latest/, dates/ and tables show for the date of this one, if that is another;
    else empty. output_publication: the newest publication of the output, whatever it shows. published: the last of the
    runs that readers see. tables: the job's output.tables; one whose publication is lower does not show yet what
    readers of the files see. summary: its progress in a sentence. again: what makes shards old that had a result.
    notes: what a person should know about how it was scored. warnings: what the gates say that did not pass and only
    warn. failed_shards: the number of shards without a result; failures: the last attempts at the first of them.
    evaluation: the newest one by labels that came later, of the revision that readers see, or else of this one.
    """

    job: str
    job_file: str
    holder: str | None = None
    instead: str = ""
    output_publication: int = 0
    published: tuple[str, ...] = ()
    tables: tuple[TableShown, ...] = ()
    summary: str = ""
    again: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    failed_shards: int = 0
    failures: tuple[Failed, ...] = ()
    evaluation: LateEvaluation | None = None

    @property
    def late_tables(self) -> tuple[TableShown, ...]:
        """The tables that do not show what readers of the files see, or cannot be asked."""
        return late_tables(self.tables, self.output_publication, bool(self.published))


@dataclass(frozen=True, kw_only=True)
class RunShown(RunStatus):
    """How far a run is, and the first of its shards (without a result, then retried, then slowest) and incidents."""

    shards_shown: tuple[ShardLine, ...] = ()
    incidents: tuple[Incident, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportWritten:
    """The page of a night that `nightjar report` wrote. state: as in `RunStatus`. page: its URI."""

    job: str
    run_id: str
    revision: int
    state: str
    page: str


@dataclass(frozen=True)
class FinishedRun:
    """A run that came to its end: it is published, or validated where it was not to be published.

    account: where its time went, until its last step ended; None where a person's answer ended it. pruned: what was
    deleted of old nights after it; None where the job keeps all, or it is not published. unpruned: why this failed.
    """

    request: RunRequest
    scored: Scored
    verdict: Verdict
    publication: Publication
    account: Account | None = None
    pruned: Pruned | None = None
    unpruned: str = ""

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
    """A finished run, as a command has it.

    pages: the address of Prefect's pages; empty if its server ended with the command. unreported: why Prefect's API
    does not know how the run ended, if it was away by then. ray: the cluster that was named.
    """

    run: FinishedRun
    pages: str = ""
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
