"""The append-only log of one revision: what is done, and who may write.

Segments `ledger/00000001.jsonl` are created if absent and never rewritten, so whoever creates number n+1
owns it. The first line of a segment names its format, epoch and writer; each further line is one record. A writer
whose next number exists reads it back: its own nonce means that the answer to its create was lost and the
append succeeded; another's means that it has been replaced, and it stops. A create whose outcome is unknown
is tried again with the same number and bytes, which can only succeed once.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from nightjar.inference.errors import (
    AlreadyExists,
    Fenced,
    Held,
    NightjarError,
    StorageError,
)
from nightjar.inference.ledger import endings
from nightjar.inference.ledger.holders import Holder, is_dead
from nightjar.inference.ledger.lines import Closed, Opened, encode
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.ledger.remarks import Remarks
from nightjar.inference.records import (
    Failed,
    Receipt,
    decode,
    known,
)
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.storage.retrying import RetryingStorage

LEASE_S = 10.0
"""A writer from which no segment appears for this long, on the observer's own clock, may be replaced."""

_FORMAT = 1
"""Raised when an older version would read a segment wrongly, not when it may leave a new kind of record alone."""

_READERS = 16
_KEPT_BYTES = 2 << 20
"""So much of a ledger is kept in memory once it was read, as JSON: no segment ever changes. The rest is read again."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """One append, as read back."""

    number: int
    epoch: int
    nonce: str
    append: str
    records: tuple[Record, ...]


class _Kept:
    """The first segments of a ledger that were read, as many as there is room for."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._size = 0
        self._lock = threading.Lock()

    def get(self, number: int) -> Segment | None:
        return self._segments.get(number)

    def add(self, segment: Segment, size: int) -> None:
        with self._lock:
            if segment.number not in self._segments and self._size + size <= _KEPT_BYTES:
                self._segments[segment.number] = segment
                self._size += size


class Ledger:
    """The readers' side: anybody may replay. What one of them has read of a small ledger, it does not read again."""

    def __init__(self, storage: Storage, revision_uri: str, before: Ledger | None = None) -> None:
        """before: the same ledger, read already through another storage."""
        self.storage = storage
        self.uri = join(revision_uri, "ledger")
        self._kept: _Kept = before._kept if before is not None else _Kept()

    def segment_uri(self, number: int) -> str:
        """Where segment `number` lies."""
        return join(self.uri, f"{number:08d}.jsonl")

    def numbers(self, after: int = 0) -> list[int]:
        """Segment numbers beyond `after`, ascending."""
        entries = self.storage.list(self.uri, after=self.segment_uri(after))
        return [int(entry.uri.rsplit("/", 1)[-1].removesuffix(".jsonl")) for entry in entries]

    def read(self, number: int) -> Segment:
        """One segment."""
        if (kept := self._kept.get(number)) is not None:
            return kept
        uri = self.segment_uri(number)
        try:
            # Not `splitlines`: JSON leaves some line breaks inside a string as they are.
            raw = self.storage.read(uri)
            header, *records = map(json.loads, raw.decode().split("\n"))
            if header.get("format", _FORMAT) > _FORMAT:
                raise ValueError(f"format {header['format']}")
            segment = Segment(number, header["epoch"], header["writer"], header["append"], tuple(records))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise StorageError(
                f"{uri}: not a ledger segment this version can read; it was damaged, or a newer version wrote it: "
                "restore it, or continue the run with that version"
            ) from error
        self._kept.add(segment, len(raw))
        return segment

    def write(self, segment: Segment) -> None:
        """Create a segment.

        Raises:
            AlreadyExists: there is one of this number.
        """
        header = {"format": _FORMAT, "epoch": segment.epoch, "writer": segment.nonce, "append": segment.append}
        lines = [json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in (header, *segment.records)]
        raw = "\n".join(lines).encode(errors="backslashreplace")
        self.storage.create(self.segment_uri(segment.number), raw)
        self._kept.add(segment, len(raw))

    def segments(self, after: int = 0) -> Iterator[Segment]:
        """Segments beyond `after` in order, a bounded number of them in memory."""
        return self._read_all(self.numbers(after))

    def _read_all(self, numbers: Sequence[int]) -> Iterator[Segment]:
        with ThreadPoolExecutor(_READERS) as pool:
            for start in range(0, len(numbers), _READERS * 2):
                yield from pool.map(self.read, numbers[start : start + _READERS * 2])

    def receipts(self, state: State) -> Iterator[Receipt]:
        """The committed receipt of every shard: the first one wins, of those after its revocation.

        state: a replay of this ledger, up to which it is read. It is not listed for that: its numbers have no gap.
        """
        seen: set[str] = set()
        for segment in self._read_all(range(1, state.number + 1)):
            for record in segment.records:
                if record["t"] != "receipt" or segment.number <= state.revoked.get(record["shard"], 0):
                    continue
                if record["shard"] not in seen:
                    seen.add(record["shard"])
                    receipt = decode(record)
                    assert isinstance(receipt, Receipt)
                    yield receipt

    def newest(self, after: int) -> Segment | None:
        """The newest segment beyond `after`; None when there is none. For workers' checks."""
        numbers = self.numbers(after)
        return self.read(numbers[-1]) if numbers else None


@dataclass(slots=True)
class State:
    """What a replay knows. Grows by a shard's id per committed shard, and by failures.

    revoked: shard → the segment that took its receipt back, because the audit found its parts damaged.
    ended: how the last flow run that kept it ended; of use while nobody holds the revision. remarks: by fingerprint,
    what to know of the results scored under it; about: those of the plan. progress: how far the run is.
    """

    number: int = 0
    epoch: int = 0
    holder: Holder | None = None
    openers: list[tuple[int, Holder]] = field(default_factory=list)
    planned: Record | None = None
    committed: set[str] = field(default_factory=set)
    failures: dict[str, list[Failed]] = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)
    intent: Record | None = None
    published: Record | None = None
    ended: endings.Ended | None = None
    remarks: dict[str, Remarks] = field(default_factory=dict)
    about: Remarks = field(default_factory=Remarks)
    progress: Progress = field(default_factory=Progress)

    def apply(self, segment: Segment) -> None:
        """Fold one segment in, in order."""
        self.number, self.epoch = segment.number, segment.epoch
        for record in segment.records:
            self.fold(record)

    def fold(self, record: Record) -> None:
        """Fold one record in. Records of a type from a newer version are left alone."""
        match record["t"]:
            case "receipt":
                self.committed.add(record["shard"])
            case "failed":
                self._fail(record)
            case "revoked":
                self.committed.discard(record["shard"])
                self.revoked[record["shard"]] = self.number
                self._fail({**record, "t": "failed"})
            case "split":
                self.splits[record["shard"]] = record["why"]
            case "planned":
                self.planned = record
                self.about = self.remarks.setdefault(record["fingerprint"], Remarks())
            case "opened":
                self.holder = known(Holder, record["writer"])
                self.openers.append((self.epoch, self.holder))
            case "closed":
                self.holder = None
            case "intent":
                self.intent = record
            case "published":
                self.published = record
            case "ended":
                self.ended = endings.of_record(record)
            case _:
                pass
        self.about.fold(record)
        self.progress.fold(record)

    def _fail(self, record: Record) -> None:
        failed = decode(record)
        assert isinstance(failed, Failed)
        self.failures.setdefault(failed.shard, []).append(failed)


def replay(ledger: Ledger, state: State | None = None) -> State:
    """The state after every segment; continues a state already read."""
    state = state or State()
    for segment in ledger.segments(state.number):
        state.apply(segment)
    return state


class LedgerWriter:
    """One epoch. Appends from any thread; keeps the lease alive between appends."""

    def __init__(self, ledger: Ledger, writer: Holder, state: State, lease_s: float = LEASE_S) -> None:
        self.ledger = ledger
        self.writer = writer
        self.state = state
        self.epoch = state.epoch
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._stopped: NightjarError | None = None
        self._last = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, daemon=True, name="nightjar-lease")

    @property
    def number(self) -> int:
        """The newest segment this writer knows."""
        return self.state.number

    def append(self, records: list[Record]) -> None:
        """Make the records durable, then fold them into the state.

        Raises:
            Fenced: another writer replaced this one; nothing of `records` was committed.
        """
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            try:
                segment = _create(self.ledger, self.state.number + 1, self.epoch, self.writer, records)
            except NightjarError as error:
                # Whether this append was seen is unknown or refused: this epoch must not write again.
                self._stopped = error
                raise
            self.state.apply(segment)
            self._last = time.monotonic()

    def check(self) -> None:
        """Raise what stopped this writer, if anything did."""
        if self._stopped is not None:
            raise self._stopped

    def start(self) -> LedgerWriter:
        """Begin keeping the lease alive."""
        self._thread.start()
        return self

    def stop(self, *, release: bool, ending: endings.Ended | None = None) -> None:
        """End the lease. `release` lets the next writer in at once; else the same flow run's next task follows.

        ending: how the run ended with it, if it did; kept with the release.
        """
        self._done.set()
        self._thread.join()
        if release and self._stopped is None:
            # Whoever replaced this writer needs no release; whoever misses it waits for the lease to lapse.
            with contextlib.suppress(Fenced, StorageError):
                self.append([*([ending.as_record()] if ending else []), encode(Closed())])

    def _keep_alive(self) -> None:
        while not self._done.wait(self._lease_s / 20):
            if time.monotonic() - self._last < self._lease_s / 4:
                continue
            try:
                self.append([])
            except NightjarError:
                return  # kept in `_stopped`: the next append or check raises it where the work is


def _create(ledger: Ledger, number: int, epoch: int, writer: Holder, records: list[Record]) -> Segment:
    """Create a segment, or find that it was created for us, or that somebody else has it."""
    segment = Segment(number, epoch, writer.nonce, uuid.uuid4().hex[:12], tuple(records))
    try:
        ledger.write(segment)
    except AlreadyExists:
        found = ledger.read(number)
        if (found.nonce, found.append) != (segment.nonce, segment.append):
            raise Fenced(_replaced(found)) from None
        return found
    return segment


def _replaced(found: Segment) -> str:
    who = next((str(known(Holder, r["writer"])) for r in found.records if r["t"] == "opened"), f"writer {found.nonce}")
    return f"this writer was replaced at ledger segment {found.number} by {who}; it stops and changes nothing more"


def open_epoch(
    storage: Storage,
    revision_uri: str,
    writer: Holder,
    *,
    lease_s: float = LEASE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    seen: tuple[Ledger, State] | None = None,
) -> LedgerWriter:
    """Become the revision's writer, succeeding one that closed, died, or let its lease lapse.

    seen: this ledger and its replay, where it was read already: it is followed from there on, and the state with it.

    Raises:
        Held: another writer lives; the message says who.
    """
    before, so_far = seen or (None, None)
    ledger = Ledger(RetryingStorage(storage), revision_uri, before)
    state = replay(ledger, so_far)
    if (
        state.holder is not None
        and not _may_succeed(state.holder, writer)
        and shows_life(ledger, state, lease_s, clock, sleep)
    ):
        raise Held(_held(state))
    try:
        segment = _create(ledger, state.number + 1, state.epoch + 1, writer, [encode(Opened(writer))])
    except Fenced:
        # Somebody opened, or went on, between our look and our create.
        state = replay(ledger, state)
        raise Held(_held(state)) from None
    state.apply(segment)
    return LedgerWriter(ledger, writer, state, lease_s).start()


def _may_succeed(holder: Holder, me: Holder) -> bool:
    return is_dead(holder) or (bool(me.flow_run) and holder.flow_run == me.flow_run)


def shows_life(
    ledger: Ledger,
    state: State,
    lease_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether another segment of the holder appears within a lease; False at once when it is known to be gone.

    Continues `state`. By this process's clock alone: the holder's may be set to anything.
    """
    deadline = clock() + lease_s
    seen = state.number
    while clock() < deadline and state.holder is not None and not is_dead(state.holder):
        sleep(min(0.2, lease_s / 20))
        replay(ledger, state)
        if state.number != seen and state.holder is not None:
            return True
    return False


def _held(state: State) -> str:
    return (
        f"this run is being written by {state.holder or 'another writer'}. "
        "Wait for it, or end that process and repeat the command: it continues where the other stopped."
    )
