"""The lines of a ledger: a frozen record for each kind. In JSON the kind is under `t`, followed by the fields.

Of the workers' events (`records.Event`) the ledger keeps receipts, failures and what was seen. Its other lines are
defined here and in `endings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from nightjar.inference.jsonform import SELDOM, of_json
from nightjar.inference.ledger.endings import Ended, FailedGate, utc
from nightjar.inference.ledger.holders import Holder
from nightjar.inference.records import NO_COUNTS, Counts, Failed, Receipt, Seen


@dataclass(frozen=True, slots=True)
class Opened:
    """An epoch begins. writer: who writes from here on."""

    writer: Holder


@dataclass(frozen=True, slots=True)
class Closed:
    """The epoch ends, and the next writer need not wait until the lease has lapsed."""


@dataclass(frozen=True, slots=True)
class Doing:
    """A long part of a step begins: `load` (the model) or `score`."""

    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan is valid from here on."""

    file: str
    """The name of the plan's file."""

    fingerprint: str
    """The fingerprint of what scores the shards."""

    date: str
    """The logical date."""

    shards: int = 0
    """Shards of the plan."""

    rows: int = 0
    """Rows of the plan, as far as they are known."""

    done_shards: int = 0
    """Shards that are committed already."""

    counts: Counts = field(default=NO_COUNTS, metadata=SELDOM)
    """The counters of the shards that are committed already."""

    uncounted: int = field(default=0, metadata=SELDOM)
    """Shards whose rows are not known before they are read."""

    identity: str = ""
    """The name of the file that says what scores the shards."""

    adopts: str = ""
    """The revision from which results are taken over, as `Revision.name`; empty for none."""

    rows_from: str = field(default="", metadata=SELDOM)
    """The revision from which outputs of rows are taken, as `Revision.name`; empty for none."""

    again: tuple[str, ...] = ()
    """Why shards with a result are scored again."""

    snapshot: str = field(default="", metadata=SELDOM)
    """The snapshot of the table that is the input; empty for files."""

    described: float = field(default=1.0, metadata=SELDOM)
    """The share of the rows whose columns are described, the same for all shards of a run."""

    limit: int = field(default=0, metadata=SELDOM)
    """`--limit`; 0 without."""


@dataclass(frozen=True, slots=True)
class Split:
    """A packed shard failed. From here on each of its files is a shard. why: the reason. into: the number of new
    shards.
    """

    shard: str
    why: str
    into: int


@dataclass(frozen=True, slots=True)
class Revoked(Failed):
    """A receipt is revoked, because the audit found its parts damaged. counts: the receipt's."""

    counts: Counts = NO_COUNTS


@dataclass(frozen=True, slots=True)
class Packages:
    """The packages, by name, with which preflight loaded the model, here or where results were taken over from."""

    loaded: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Preflight:
    """Preflight's notes, a sentence each."""

    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """A run's published revision."""

    revision: int
    """The number of the revision."""

    manifest: str
    """The name of the manifest, relative to the output."""

    checksum: str
    """The xxh3-128 of the manifest's bytes."""

    date: str
    """The run's logical time: a day as `2026-11-28`, or an instant in UTC as `2026-11-28T0530`."""


@dataclass(frozen=True, slots=True)
class Intent:
    """The number that the writer will try next, and what it will publish there."""

    number: int
    published: Published


@dataclass(frozen=True, slots=True)
class PublishedAs:
    """The snapshot with this number shows the revision."""

    number: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A person's answer."""

    checksum: str
    """The checksum of the manifest that the answer is about."""

    approved: bool
    """Whether the answer is a yes."""

    by: str
    """Who answered, as that person gave it."""

    note: str
    """A note, as that person gave it; empty for none."""

    at: str
    """When the person answered, in UTC, as ISO 8601."""

    @property
    def words(self) -> str:
        """Who said what, for people."""
        said = f"{'approved' if self.approved else 'rejected'} by {self.by} at {self.at}"
        return f"{said}: {self.note}" if self.note else said


def question_name(checksum: str) -> str:
    """The name of a question, in a command line. checksum: of the manifest that a yes publishes."""
    return checksum[:8]


@dataclass(frozen=True, slots=True)
class Question:
    """A person must say yes before this is published, because gates did not pass that say `on_fail: ask`."""

    published: Published
    """What a yes publishes."""

    gates: tuple[FailedGate, ...]
    """The gates that ask."""

    at: str
    """When the run asked, in UTC, as ISO 8601."""

    until: str
    """From when on no answer counts as a no, in UTC, as ISO 8601."""

    flow_run: str = ""
    """Prefect's id of the run that asks, or any id of its command."""

    @property
    def name(self) -> str:
        """What tells it from the questions that this run asked before, or asks after it was repeated."""
        return question_name(self.published.checksum)

    @property
    def lapsed(self) -> bool:
        """Whether the time for an answer is over."""
        return utc() >= self.until

    def no(self, decision: Decision | None) -> str:
        """Why a run that asked this is not published, for people. decision: None if nobody answered in time."""
        gates = " ".join(f"{gate.name}: {gate.sentence}" for gate in self.gates)
        said = decision.words if decision else f"nobody approved it until {self.until}, which counts as a no"
        return f"{said}. What was asked: {gates}"


@dataclass(frozen=True, slots=True)
class Removed:
    """The run is being deleted: nothing of this revision and of those before it may be used any more. date: the run's
    logical date.
    """

    date: str


Line = (
    Receipt
    | Failed
    | Seen
    | Opened
    | Closed
    | Doing
    | Planned
    | Split
    | Revoked
    | Packages
    | Preflight
    | Question
    | Decision
    | Intent
    | PublishedAs
    | Ended
    | Removed
)

_KINDS: dict[str, type[Line]] = {kind.__name__.lower(): kind for kind in get_args(Line)}


def decode(found: Mapping[str, Any]) -> Line | None:
    """The inverse of `records.encode`; None for a kind that a newer version added.

    Raises:
        LookupError, TypeError, AttributeError: It is not a line.
    """
    kind = _KINDS.get(found["t"])
    line: Line | None = of_json(kind, found) if kind else None
    return line
