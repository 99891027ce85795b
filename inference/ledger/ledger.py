"""The append-only log of one revision, for readers: what is done, and who may write (`epochs`).

Segments `ledger/00000001.jsonl` are created only if absent and never rewritten, so the creator of number n+1 owns it.
The first line of a segment names its format, epoch and writer; each further line is one record (`lines`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from nightjar.inference.errors import Damaged, Held
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
    Removed,
    Revoked,
    Split,
    decode,
)
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.ledger.remarks import Remarks
from nightjar.inference.records import Failed, Receipt, encode
from nightjar.inference.storage.protocol import Storage, at_once, is_local, join, numbered, read_control


@dataclass(frozen=True, slots=True)
class Segment:
    """One append, as read back."""

    number: int
    """The number of the segment, from 1 and without a gap."""

    epoch: int
    """The epoch in which the segment was written."""

    nonce: str
    """The nonce of the writer, as in `Holder`."""

    append: str
    """A random text that tells the writer whether a segment is its own."""

    lines: tuple[Line, ...]
    """The lines after the header, without kinds that this version does not know; none if only the lease was kept."""


@dataclass(slots=True)
class State:
    """The result of a replay. It grows by one id per committed shard, and by failures."""

    number: int = 0
    """The number of the last segment; 0 without any."""

    epoch: int = 0
    """The epoch of the last segment; 0 without any."""

    holder: Holder | None = None
    """Who holds the epoch; None after the epoch was closed."""

    openers: list[tuple[int, Holder]] = field(default_factory=list)
    """Each epoch, in order, and who opened it."""

    planned: Planned | None = None
    """The newest plan; None before the first."""

    committed: set[str] = field(default_factory=set)
    """The shards with a receipt that is not revoked."""

    failures: dict[str, list[Failed]] = field(default_factory=dict)
    """Shard → its failed attempts and its revocations, the oldest first."""

    splits: dict[str, str] = field(default_factory=dict)
    """Packed shard that was split → why."""

    revoked: dict[str, int] = field(default_factory=dict)
    """Shard → the segment that revoked its receipt, because the audit found its parts damaged."""

    question: Question | None = None
    """What a person is asked, of the results that are there now; None if nothing."""

    decision: Decision | None = None
    """The answer to the question; None without one."""

    intent: Intent | None = None
    """The publication that was tried last; None before the revision's publication has begun."""

    published: PublishedAs | None = None
    """The snapshot that shows the revision; None before the ledger has it."""

    ended: Ended | None = None
    """How the last flow run that recorded its end ended; valid while nobody holds the revision."""

    remarks: dict[str, Remarks] = field(default_factory=dict)
    """Fingerprint → remarks about results with that fingerprint."""

    about: Remarks = field(default_factory=Remarks)
    """The remarks for the plan's fingerprint."""

    progress: Progress = field(default_factory=Progress)
    """How far the run is."""

    removed: str = ""
    """The logical time of a run that is being deleted; else empty."""

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
            case Removed():
                self._forget(line.date)
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

    def _forget(self, date: str) -> None:
        """Nothing of the revision counts from here on, but who writes it: whoever deletes it."""
        blank = State(self.number, self.epoch, self.holder, self.openers, removed=date)
        for each in fields(self):
            setattr(self, each.name, getattr(blank, each.name))

    def _ask(self, question: Question | None) -> None:
        """Ask this from here on. What was asked before is void, and so is its answer: the results may be others."""
        self.question, self.decision = question, None


_FORMAT = 3
"""The only format that is read. Increase this number with a change of the records, not for a new kind of record."""


class Ledger:
    """The ledger for readers: anybody may replay it."""

    def __init__(self, storage: Storage, revision_uri: str) -> None:
        self.storage = storage
        self.uri = join(revision_uri, "ledger")

    def segment_uri(self, number: int) -> str:
        """The URI of segment `number`."""
        return join(self.uri, f"{number:08d}.jsonl")

    def numbers(self, after: int = 0) -> list[int]:
        """Segment numbers beyond `after`, ascending."""
        return list(numbered(self.storage, self.uri, ".jsonl", after=self.segment_uri(after)))

    def read(self, number: int) -> Segment:
        """One segment."""
        return read_control(
            self.storage,
            self.segment_uri(number),
            lambda raw: _decode(self.segment_uri(number), number, raw),
            "a ledger segment",
            "restore it, or score the run anew in another output.uri",
        )

    def write(self, segment: Segment) -> None:
        """Create a segment.

        Raises:
            AlreadyExists: There is a segment with this number.
        """
        header = {"format": _FORMAT, "epoch": segment.epoch, "writer": segment.nonce, "append": segment.append}
        records = (header, *map(encode, segment.lines))
        lines = [json.dumps(record, separators=(",", ":"), ensure_ascii=False) for record in records]
        self.storage.create(self.segment_uri(segment.number), "\n".join(lines).encode(errors="backslashreplace"))

    def segments(self, after: int = 0) -> Iterator[Segment]:
        """Segments beyond `after` in order, with a bounded number of them in memory."""
        return self.those(self.numbers(after))

    def those(self, numbers: Sequence[int]) -> Iterator[Segment]:
        """The segments of these numbers, with a bounded number of them in memory."""
        if is_local(self.uri):
            # Decoding takes most of the time then, and Python decodes in one thread at a time.
            return map(self.read, numbers)
        return at_once(self.read, numbers)

    def receipts(self, state: State) -> Iterator[Receipt]:
        """The committed receipt of every shard: the first one, or the first one after a revocation.

        state: a replay of this ledger; segments are read up to it. They are not listed, because their numbers have no
        gap.
        """
        seen: set[str] = set()
        for segment in self.those(range(1, state.number + 1)):
            for line in segment.lines:
                if not isinstance(line, Receipt) or segment.number <= state.revoked.get(line.shard, 0):
                    continue
                if line.shard not in seen:
                    seen.add(line.shard)
                    yield line

    def newest(self, after: int) -> Segment | None:
        """The newest segment beyond `after`; None if there is none. Workers use it for their checks."""
        numbers = self.numbers(after)
        return self.read(numbers[-1]) if numbers else None


def _decode(uri: str, number: int, raw: bytes) -> Segment:
    # Not `splitlines`, because JSON does not escape every line break inside a string.
    header, *records = map(json.loads, raw.decode().split("\n"))
    if (found := header["format"]) != _FORMAT:
        remedy = "use a newer Nightjar" if found > _FORMAT else "use another output.uri"
        raise Damaged(f"{uri}: a ledger of format {found}, and this version reads only format {_FORMAT}: {remedy}")
    lines = tuple(line for line in map(decode, records) if line is not None)
    return Segment(number, header["epoch"], header["writer"], header["append"], lines)


def replay(ledger: Ledger, state: State | None = None) -> State:
    """The state after all segments; continues `state` if it is given.

    Raises:
        Held: The segments that `state` was made of are deleted since.
    """
    state = state or State()
    numbers = ledger.numbers(max(state.number - 1, 0))
    if state.number and numbers[:1] != [state.number]:
        raise Held(f"{ledger.uri} was deleted while this command read it; repeat the command to see what is left")
    for segment in ledger.those(numbers[1:] if state.number else numbers):
        state.apply(segment)
    return state
