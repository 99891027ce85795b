"""Frozen records that the commands and the Python functions report. Their fields are the keys of `--json`.

`docs/json/` has the JSON Schema of each command's output, made from these classes by `tests/tools/json_schemas.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nightjar.inference.history.retention import Pruned
from nightjar.inference.history.run_status import RunFigures
from nightjar.inference.history.run_tables import Incident, ShardLine
from nightjar.inference.ledger.endings import Ended
from nightjar.inference.ledger.lines import Decision
from nightjar.inference.ledger.progress import TokenRates
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.output.outcomes import Reused
from nightjar.inference.output.targets import TableShown, late_tables
from nightjar.inference.records import Counts, Failed
from nightjar.inference.run.account import Account, WorkersCost
from nightjar.inference.run.results import Sample
from nightjar.inference.usage import Usage
from nightjar.inference.validation.evaluations import LateEvaluation


@dataclass(frozen=True, slots=True)
class Column:
    """A column. type: Arrow's name of it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What is known of a run before it scores: its input, and what its shards' identity is made of."""

    job: str
    """The name of the job."""

    run_id: str
    """The name of the run."""

    files: int
    """Files of the input, the unreadable ones included."""

    unreadable_files: int
    """Files that could not be read."""

    rows: int
    """Rows that are known before the files are read and `where` is applied; of a plan only the rows of its shards."""

    uncounted_files: int
    """Files whose rows are not known before they are read."""

    where: str
    """Only the rows that match this condition are scored; empty if the job has none."""

    snapshot: str
    """The snapshot of the table that is the input; empty if the input is no table."""

    reads: tuple[Column, ...]
    """The columns of the input."""

    identity: tuple[str, ...]
    """The shards' identity: a line for each thing that scores, with the reason for each file of the code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport(Ahead):
    """What would be scored."""

    unread: str
    """Why files could not be read; empty if all could."""

    files_left_out: int
    """Further files, which cannot match `where`, by what their paths say, or their table."""

    shards: int
    """Shards of the plan; with a limit only the first ones."""

    committed: int
    """Shards that have a result."""

    to_score: int
    """Shards that have no result, without those that the run takes over."""

    reusable_shards: int
    """Further shards that an earlier revision has a result of."""

    reusable_rows: int
    """Rows of the reusable shards, as far as they are known before the files are read."""

    reuses: bool
    """Whether the run takes the reusable shards over, so that they are not to be scored."""

    source: str
    """The revision that has the reusable shards, as `2026-11-19/r1`; empty if there are none."""

    rows_from: str
    """The revision from which outputs of rows are taken that are the same, as `2026-11-19/r1`; empty for none."""

    rows_per_shard: tuple[int, int]
    """The fewest and the most rows of the shards whose rows are known; 0 and 0 if none are."""

    columns: int
    """How many columns the input has."""

    again: tuple[str, ...]
    """What makes shards old that had a result, a sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport(Ahead):
    """What `nightjar check` found."""

    date: str
    """The logical date of the night that was checked."""

    state: str
    """`ready`; whatever must be changed first is an error."""

    device: str
    """The devices on which the models were loaded, separated by commas; of an endpoint its host."""

    output: str
    """The URI of the job's output."""

    columns: tuple[Column, ...]
    """The columns that readers will get."""

    sample: Sample
    """What the model made of a few rows."""

    notes: tuple[str, ...]
    """What a person should know, a sentence each."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """How long the engine took to start, and how fast it scored; 0 where nothing was left to score."""

    startup_s: float
    """Seconds from the start of the score step until the first shard was begun; the model was loaded by then."""

    first_start: float
    """When the first shard was begun, in seconds since 1970."""

    steady_s: float
    """Seconds from the first shard's start to the last one's end, in each score step of the command."""

    rows_per_s: int
    """Rows scored per second of `steady_s`, rounded."""


@dataclass(frozen=True, slots=True)
class RunResult(Counts):
    """A finished run."""

    job: str
    """The name of the job."""

    run_id: str
    """The name of the run."""

    revision: int
    """The number of the run's revision."""

    state: str
    """`published`, or `validated` where the run was not to be published."""

    publication: int
    """The number of the publication, else 0."""

    shards: int
    """Shards of the plan."""

    reused_shards: int
    """Shards that were committed before the command, or taken over from an earlier revision."""

    reused: tuple[Reused, ...]
    """The results that were taken over from earlier revisions."""

    failed_attempts: int
    """Attempts that failed, and receipts that the audit revoked."""

    retries: int
    """Requests to the storage that were repeated for shards that this command committed."""

    deaths: int
    """Attempts whose process died."""

    device: str
    """The devices on which the models were loaded, separated by commas; of an endpoint its host; empty if nothing was
    left to score.
    """

    again: tuple[str, ...]
    """What made shards old that had a result, a sentence each."""

    notes: tuple[str, ...]
    """What a person should know of how the run was scored, a sentence each."""

    warnings: tuple[str, ...]
    """What the gates say that did not pass and only warn, or that a person has approved, a sentence each."""

    tables_behind: tuple[str, ...]
    """Why tables of the job do not show what is published, a sentence each."""

    unreported: str
    """Why Prefect's API does not know how the run ended; empty if it does."""

    metrics: Figures
    """What the audit computed of outputs and labels."""

    manifest: str
    """The URI of the manifest."""

    account: Account | None
    """Where the wall time of the run went; null if a person's answer ended the run."""

    engine: EngineFigures
    """How long the engine took to start, and how fast it scored."""

    usage: Usage
    """What language models took in the run, by whichever command."""

    token_rates: TokenRates
    """How fast language models were asked by this command."""

    token_cost: float | None
    """What `usage` costs by `model.cost`; null if the job has no such prices."""

    cost: WorkersCost | None
    """What the workers of this command cost, by `cost` of the job; null without prices, or if nothing was scored."""

    pruned: Pruned | None = None
    """What was deleted of old nights; null if the job keeps all, nothing was published, or the deletion failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionMade(Decision):
    """What `nightjar approve` and `nightjar reject` did."""

    job: str
    """The name of the job."""

    run_id: str
    """The name of the run."""

    revision: int
    """The number of the revision that was asked about."""

    publication: int
    """The number of the snapshot; 0 after a no."""

    tables_behind: tuple[str, ...] = ()
    """As in `RunResult`."""

    unresumed: str = ""
    """Why Prefect's run, which waits, could not be told."""


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
    """One line that a worker printed."""

    time: str
    """When the line was kept, which for a worker is when its shard was scored: UTC, ISO 8601."""

    worker: str
    """`host:pid` of the worker's process."""

    shard: str
    """The shard that was being scored; empty before the first one."""

    attempt: int
    """The number of the attempt at the shard."""

    stream: str
    """`out`, `err`, or `note` where the line is a remark of Nightjar's."""

    text: str
    """The line, without its end."""


@dataclass(frozen=True, kw_only=True)
class RunListed(RunFigures):
    """A run in a list: how it stands, why, and what to do about it."""

    state: str
    """published, rolled back (also by `unpublish`), publishing, running, waiting, silent, failed, rejected, stopped,
    asks, limited, validated, killed, unreadable or unknown."""

    standing: str
    """The state, with the gate or step at which the run ended."""

    cause: str
    """Why the run stands so, a sentence; empty if there is nothing to explain."""

    ended: Ended | None
    """How the run ended without a publication; null if it did not, or if that was not kept."""

    tried_again: Ended | None
    """Of a run that was published, how the last try ended that could not begin; null if there was none since."""

    commands: Mapping[str, str]
    """What to do, each command under a word for it."""


@dataclass(frozen=True, kw_only=True)
class RunStatus(RunListed):
    """How far a run is: its figures as `runs` lists them, and what follows."""

    job: str
    """The name of the job."""

    job_file: str
    """The path of the job file, as the person can type it."""

    holder: str | None = None
    """Who writes the run now, for people; null if nobody does."""

    instead: str = ""
    """The run that latest/, dates/ and tables show for the date of this one, if that is another; else empty."""

    output_publication: int = 0
    """The number of the newest publication of the output, whatever it shows; 0 before there is one."""

    published: tuple[str, ...] = ()
    """The last of the runs that readers see, by name."""

    tables: tuple[TableShown, ...] = ()
    """The job's output.tables; one below `output_publication` does not show yet what readers of the files see."""

    summary: str = ""
    """The run's progress in a sentence; empty if nothing of the run was begun."""

    again: tuple[str, ...] = ()
    """What makes shards old that had a result, a sentence each."""

    notes: tuple[str, ...] = ()
    """What a person should know: how the run was scored, what it waits for, what could not be read."""

    warnings: tuple[str, ...] = ()
    """What the gates say that did not pass and only warn, or that a person has approved, a sentence each."""

    failed_shards: int = 0
    """The number of shards that failed and have no result."""

    failures: tuple[Failed, ...] = ()
    """The last attempts at the first of the failed shards."""

    evaluation: LateEvaluation | None = None
    """The newest by labels that came later, of the revision that readers see, or else of this one; null for none."""

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
    """The page of a night that `nightjar report` wrote."""

    job: str
    """The name of the job."""

    run_id: str
    """The name of the run."""

    revision: int
    """The number of the revision; 0 if the run has none."""

    state: str
    """As in `RunStatus`."""

    page: str
    """The URI of the page."""


@dataclass(frozen=True, slots=True)
class Night:
    """What became of one night."""

    date: str
    """The logical time of the night."""

    state: str
    """published, skipped (it was published before), rolled back, asks (a person must say yes first) or failed."""

    rows: int = 0
    """Rows with outputs; 0 of a night that was skipped because readers see it already."""

    said: str = ""
    """What else is to be said: why the night failed, asks or was skipped, and what to do."""

    @property
    def ok(self) -> bool:
        """Whether readers see the night."""
        return self.state in {"published", "skipped"}
