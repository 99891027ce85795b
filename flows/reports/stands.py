"""How runs stand: one, a list of them, and the nights side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nightjar.inference.history.run_status import Metric, RunFigures
from nightjar.inference.history.run_tables import Incident, ShardLine
from nightjar.inference.ledger.endings import Ended
from nightjar.inference.output.targets import TableShown, late_tables
from nightjar.inference.validation.evaluations import LateEvaluation
from nightjar.inference.validation.gates import marked


@dataclass(frozen=True, slots=True)
class FailedShard:
    """A shard without a result: how often it was tried, and the cause (a word) and message of the last attempt."""

    shard: str
    attempts: int
    cause: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """How a run stands, why, and what to do about it.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus(Explained):
    """How far a run is. A run that never began has revision 0 and no shards.

    holder: who writes it now. sign_of_life: what is known of that writer, if the run goes on. published_revision: the
    one readers see, if they see one of this run. instead: the run that latest/, dates/ and tables show for the date of
    this one, if that is another; else empty. publication: the newest publication of the output, whatever it shows.
    published: the last of the runs that readers see. tables: the job's output.tables; one whose publication is lower
    does not show yet what readers of the files see. rows_out, rows_quarantined, rows_partial, committed: of the shards
    that are done. failures: the first of the failed shards. warnings: of a published revision, what those gates said
    that did not pass and only warn. seconds: how long the night took, as in
    `history`. evaluation: the newest one by labels that came later, of the revision that readers
    see, or else of this one.
    """

    job: str
    job_file: str
    run_id: str
    revision: int = 0
    holder: str | None = None
    sign_of_life: str = ""
    published_revision: int | None = None
    instead: str = ""
    publication: int = 0
    published: tuple[str, ...] = ()
    tables: tuple[TableShown, ...] = ()
    shards: int = 0
    committed: int = 0
    rows_out: int = 0
    rows_quarantined: int = 0
    rows_partial: int = 0
    seconds: float | None = None
    summary: str = ""
    again: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    failed_shards: int = 0
    failures: tuple[FailedShard, ...] = ()
    evaluation: LateEvaluation | None = None

    @property
    def late_tables(self) -> tuple[TableShown, ...]:
        """The tables that do not show what readers of the files see, or cannot be asked."""
        return late_tables(self.tables, self.publication, bool(self.published))


@dataclass(frozen=True, kw_only=True)
class RunListed(RunFigures, Explained):
    __doc__ = RunFigures.__doc__  # the JSON Schema has it


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShown(RunStatus):
    """How far a run is, and the first of its shards (without a result, then retried, then slowest) and incidents."""

    shards_shown: tuple[ShardLine, ...] = ()
    incidents: tuple[Incident, ...] = ()


@dataclass(frozen=True, slots=True)
class NightListed:
    """One night of a job. date: empty if the run never began. revision: the newest one, whose figures these are.

    state: as in `RunStatus`. publication: its number, else 0. metric: the first figure by which nights are compared.
    seconds: how long the last command took. approved, warned: as in `RunListed`.
    """

    date: str
    run_id: str
    revision: int
    state: str
    publication: int
    rows: int
    quarantined: int
    metric: Metric | None
    seconds: float | None
    approved: int = 0
    warned: int = 0

    @property
    def marks(self) -> str:
        """That it did not pass all gates, as the end of a sentence; empty if it did."""
        return marked(self.approved, self.warned)


@dataclass(frozen=True, slots=True)
class ReportWritten:
    """The page of a night that `nightjar report` wrote. state: as in `RunStatus`. page: its URI."""

    job: str
    run_id: str
    revision: int
    state: str
    page: str
