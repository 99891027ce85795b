"""The state of a ledger: the only fold over its lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from nightjar.inference.ledger.endings import Ended
from nightjar.inference.ledger.holders import Holder
from nightjar.inference.ledger.lines import (
    Closed,
    Decision,
    Intent,
    Line,
    Opened,
    Planned,
    Published,
    PublishedAs,
    Question,
    Revoked,
    Split,
)
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.ledger.remarks import Remarks
from nightjar.inference.records import Failed, Receipt


@dataclass(frozen=True, slots=True)
class Segment:
    """One append, as read back."""

    number: int
    epoch: int
    nonce: str
    append: str
    lines: tuple[Line, ...]


@dataclass(slots=True)
class State:
    """The result of a replay. It grows by one id per committed shard, and by failures.

    revoked: shard → the segment that revoked its receipt, because the audit found its parts damaged. ended: how the
    last flow run that recorded its end ended; it is valid while nobody holds the revision. remarks: fingerprint →
    remarks about results with that fingerprint. about: the remarks for the plan's fingerprint. progress: how far the
    run is. question: what a person is asked, of the results that are there now. decision: the answer to it.
    """

    number: int = 0
    epoch: int = 0
    holder: Holder | None = None
    openers: list[tuple[int, Holder]] = field(default_factory=list)
    planned: Planned | None = None
    committed: set[str] = field(default_factory=set)
    failures: dict[str, list[Failed]] = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)
    question: Question | None = None
    decision: Decision | None = None
    intent: Intent | None = None
    published: PublishedAs | None = None
    ended: Ended | None = None
    remarks: dict[str, Remarks] = field(default_factory=dict)
    about: Remarks = field(default_factory=Remarks)
    progress: Progress = field(default_factory=Progress)

    def apply(self, segment: Segment) -> None:
        """Fold one segment in, in order."""
        self.number, self.epoch = segment.number, segment.epoch
        for line in segment.lines:
            self.fold(line)

    def fold(self, line: Line) -> None:
        """Fold one line in."""
        match line:
            case Receipt():
                self.committed.add(line.shard)
                self._ask(None)
            case Failed():
                if isinstance(line, Revoked):
                    self.committed.discard(line.shard)
                    self.revoked[line.shard] = self.number
                    self._ask(None)
                self.failures.setdefault(line.shard, []).append(line)
            case Split():
                self.splits[line.shard] = line.why
            case Planned():
                self.planned = line
                self._ask(None)
                self.about = self.remarks.setdefault(line.fingerprint, Remarks())
            case Opened():
                self.holder = line.writer
                self.openers.append((self.epoch, self.holder))
                if line.writer.task == "validate" and not self.approved:
                    self._ask(None)  # it judges anew
            case Closed():
                self.holder = None
            case Question():
                self._ask(line)
            case Decision():
                if self.question is not None and self.question.published.checksum == line.checksum:
                    self.decision = line
            case Intent():
                self.intent = line
            case PublishedAs():
                self.published = line
            case Ended():
                self.ended = line
            case _:
                pass
        self.about.fold(line)
        self.progress.fold(line)

    @property
    def approved(self) -> bool:
        """Whether a person has said yes to what is asked."""
        return self.decision is not None and self.decision.approved

    def approves(self, published: Published) -> bool:
        """Whether a person has said yes to exactly this."""
        return self.approved and self.question is not None and self.question.published == published

    def _ask(self, question: Question | None) -> None:
        """Ask this from here on. What was asked before is void, and so is its answer: the results may be others."""
        self.question, self.decision = question, None
