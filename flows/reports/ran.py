"""What a command reports of what it did: a run, an answer, a publication, a failure, and the lines of a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nightjar.inference.ledger.lines import Decision
from nightjar.inference.ledger.progress import TokenRates
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.output.publications import Origin
from nightjar.inference.output.visibility import Change
from nightjar.inference.records import Usage
from nightjar.inference.run.account import Account, WorkersCost


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long each part of a command took, in seconds. ray, prefect: until they had started, side by side."""

    total: float
    ray: float
    prefect: float
    discover: float
    score: float
    validate: float
    publish: float


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """startup_s: until the model was loaded. first_start: when the first shard was begun, in seconds since 1970.

    steady_s: from the first shard's start to the last one's end. rows_per_s: scored in that time.
    workers: those whose memory was measured, which only Linux tells. resident_mb: of the largest one.
    proportional_mb: of all together, where a page that several of them share is counted once.
    """

    startup_s: float
    first_start: float
    steady_s: float
    rows_per_s: int
    workers: int
    resident_mb: int
    proportional_mb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFigures(Usage):
    """What language models took in a run, by whichever command; zeros for other models.

    requests … answering_ms: as in the manifest. cached_share: of the prompts' tokens those that the model had computed
    before. rates: of this command. cost: by `model.cost`, in `currency`; null if the job has no such prices.
    """

    cached_share: float
    rates: TokenRates
    cost: float | None = None
    currency: str = ""


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run. rows_in = rows_out + rows_quarantined. rows_partial: of `rows_out`, those that only some of
    several models could score; they are in the quarantine, too. rows_left_out: read besides; they do not match
    `input.where`.

    state: `published`, or `validated` where it was not to be published. publication: its number, else 0. reused_shards:
    those that were committed before. again: what made shards old that had a result. notes: what a person should know of
    how it was scored. warnings: what those gates say that did not pass and only warn. unreported: why Prefect's API
    does not know how the run ended. metrics: what the audit computed of outputs and labels. manifest: its URI.
    tables_behind: why tables of the job do not show what is published, a sentence each.
    """

    job: str
    run_id: str
    revision: int
    state: str
    publication: int
    rows_in: int
    rows_out: int
    rows_quarantined: int
    rows_partial: int
    rows_left_out: int
    shards: int
    reused_shards: int
    failed_attempts: int
    retries: int
    batches_cut: int
    deaths: int
    device: str
    again: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    tables_behind: tuple[str, ...]
    unreported: str
    metrics: Figures
    manifest: str
    seconds: Seconds
    account: Account | None
    engine: EngineFigures
    usage: UsageFigures
    cost: WorkersCost | None


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """What `nightjar approve` and `nightjar reject` did. at: UTC. publication: its number; 0 after a no.

    note: the person's. unresumed: why Prefect's run, which waits, could not be told.
    """

    job: str
    run_id: str
    revision: int
    approved: bool
    by: str
    note: str
    at: str
    publication: int
    tables_behind: tuple[str, ...] = ()
    unresumed: str = ""

    @property
    def words(self) -> str:
        """Who said what, for people."""
        return Decision("", self.approved, self.by, self.note, self.at).words


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationListed:
    """One publication: when and by what it was made, and what it changed for readers.

    latest: the run of the highest date. runs: the revision that readers see of each run.
    """

    publication: int
    at: str
    made_by: Origin
    note: str
    latest: str | None
    runs: Mapping[str, int]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(PublicationListed):
    """The publication after a rollback. With dry_run it is the earlier one that would be shown again."""

    dry_run: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a command failed. error: the class of the exception. job, run_id: empty until they are known.

    state: `failed`, `held` (another writer holds the run), `asks` (a person must say yes before it is published) or
    `interrupted`.
    """

    state: str
    error: str
    message: str
    job: str = ""
    run_id: str = ""


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
