"""What workers print, as it lies in a revision's `logs/`: parts of JSON lines, each written once by one process.

A part's name begins with the time it was written at, so that a listing is in order; its first line names format,
epoch and worker. Each further line is one that was printed. Two processes may have kept the same lines (a worker, and
whoever looked after it was gone): where a line lay in its stream tells them from each other, and it is read once. The
next command's worker may have the same name: host and process id come again, an epoch does not.
"""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

from nightjar.inference.errors import StorageError
from nightjar.inference.ledger.holders import is_dead
from nightjar.inference.ledger.ledger import (
    LEASE_S,
    Ledger,
    State,
    replay,
)
from nightjar.inference.records import Failed, known
from nightjar.inference.storage.protocol import Storage, join

LAST = 5
"""So many of a failed shard's last lines stand beside it."""

STREAMS = ("out", "err")
NOTE = "note"
"""The stream of what Nightjar itself says: what was left out, or could not be kept."""

LOOK_S = 1.0
_FORMAT = 1
_READERS = 16
_PARTS = 8
_SHARDS = 16
"""Of one worker the newest parts are read, for so many shards at most: a page must not take long."""

_APART_S = 120.0
"""How far the clocks of workers, and the time between naming a part and its being there, may lie apart."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line. at: seconds since 1970, of when it was seen. offset: where it began in its stream, in bytes.

    shard: what was being scored, empty before the first and in preflight. stream: `out`, `err`, or `note`.
    worker, epoch: whose it is; its part says it.
    """

    at: float
    stream: str
    text: str
    shard: str = ""
    attempt: int = 0
    offset: int = 0
    worker: str = ""
    epoch: int = 0


def folder(revision: str) -> str:
    """Where a revision's parts lie."""
    return join(revision, "logs")


def write(storage: Storage, revision: str, epoch: int, worker: str, lines: Iterable[Line]) -> None:
    """One part.

    Raises:
        StorageError: it could not be written.
    """
    header = {"format": _FORMAT, "epoch": epoch, "worker": worker}
    said = [header, *({**asdict(line), "worker": None, "epoch": None} for line in lines)]
    text = "\n".join(json.dumps({k: v for k, v in each.items() if v is not None}) for each in said)
    now = dt.datetime.now(dt.UTC)
    name = f"{_stamp(now)}_{_key(worker)}_{uuid.uuid4().hex[:8]}.jsonl"
    storage.create(join(folder(revision), name), text.encode())


def _stamp(moment: dt.datetime) -> str:
    return moment.strftime("%Y%m%dT%H%M%S.") + f"{moment.microsecond // 1000:03d}"


def _key(worker: str) -> str:
    return worker.replace(":", "-").replace("/", "-")


@dataclass
class Reading:
    """A revision's lines as they come: each call of `new` gives those that were not there before."""

    storage: Storage
    revision: str
    _seen: set[str] = field(default_factory=set)
    _offsets: dict[tuple[int, str, str], set[int]] = field(default_factory=dict)
    _after: str = ""

    def new(self) -> Iterator[Line]:
        """Lines of parts that were not read yet, part by part."""
        entries = self.storage.list(folder(self.revision), after=self._after)
        names = [entry.uri for entry in entries if entry.uri not in self._seen and entry.uri.endswith(".jsonl")]
        with ThreadPoolExecutor(_READERS) as pool:
            for start in range(0, len(names), _READERS * 2):
                for lines in pool.map(self._read, names[start : start + _READERS * 2]):
                    yield from filter(self._is_first, lines)
        self._seen.update(names)
        if names:
            self._forget(max(names))

    def _read(self, uri: str) -> list[Line]:
        return read_part(self.storage, uri)

    def _is_first(self, line: Line) -> bool:
        seen = self._offsets.setdefault((line.epoch, line.worker, line.stream), set())
        if line.stream == NOTE or line.offset not in seen:
            seen.add(line.offset)
            return True
        return False

    def _forget(self, newest: str) -> None:
        """List from a little before the newest on: a night with many parts is not listed anew at each look."""
        stamp = newest.rsplit("/", 1)[-1].partition("_")[0]
        moment = dt.datetime.strptime(stamp, "%Y%m%dT%H%M%S.%f").replace(tzinfo=dt.UTC)
        self._after = join(folder(self.revision), _stamp(moment - dt.timedelta(seconds=_APART_S)))
        self._seen = {uri for uri in self._seen if uri > self._after}


def follow(storage: Storage, revision: str, lease_s: float = LEASE_S) -> Iterator[Line]:
    """Lines as they come, until nobody writes the revision any more, or for three leases nobody seems to."""
    ledger, state, reading = Ledger(storage, revision), State(), Reading(storage, revision)
    number, moved = 0, time.monotonic()
    while True:
        replay(ledger, state)
        if state.number != number:
            number, moved = state.number, time.monotonic()
        ended = _has_ended(state) or time.monotonic() - moved > 3 * lease_s
        yield from reading.new()
        if ended:
            return
        time.sleep(LOOK_S)


def _has_ended(state: State) -> bool:
    return is_dead(state.holder) if state.holder is not None else bool(state.openers)


def read_part(storage: Storage, uri: str) -> list[Line]:
    """One part's lines.

    Raises:
        StorageError: it is away, or damaged, or of a newer version.
    """
    try:
        header, *lines = map(json.loads, storage.read(uri).decode().split("\n"))
        if header["format"] > _FORMAT:
            raise ValueError(f"format {header['format']}")
        return [known(Line, {**line, "worker": header["worker"], "epoch": header["epoch"]}) for line in lines]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{uri}: no log that this version can read; it was damaged, or a newer version wrote it"
        ) from error


def tail(storage: Storage, revision: str, count: int = LAST) -> list[str]:
    """The last lines of the newest part, of whatever worker."""
    names = [entry.uri for entry in storage.list(folder(revision)) if entry.uri.endswith(".jsonl")]
    return [line.text for line in read_part(storage, names[-1])[-count:]] if names else []


def last_lines(
    storage: Storage, revision: str, failures: Mapping[str, Sequence[Failed]], count: int = LAST
) -> dict[str, list[str]]:
    """The last lines that were printed in these shards' last attempts, of those that printed any.

    Bounded: of the first shards, from the newest parts of the workers that they failed on.
    """
    looked = {shard: said[-1] for shard, said in list(failures.items())[:_SHARDS] if said}
    if not looked:
        return {}
    names = [entry.uri for entry in storage.list(folder(revision))]
    wanted: set[str] = set()
    for worker in {failed.worker for failed in looked.values() if failed.worker}:
        wanted.update([name for name in names if f"_{_key(worker)}_" in name][-_PARTS:])
    found: dict[str, list[Line]] = {}
    reading = Reading(storage, revision)
    with ThreadPoolExecutor(_READERS) as pool:
        for lines in pool.map(reading._read, sorted(wanted)):
            for line in filter(reading._is_first, lines):
                failed = looked.get(line.shard)
                if failed is not None and (line.worker, line.attempt) == (failed.worker, failed.attempt):
                    found.setdefault(line.shard, []).append(line)
    # A repeated command counts attempts from one again.
    newest = {shard: max(line.epoch for line in lines) for shard, lines in found.items()}
    return {
        shard: [line.text for line in lines if line.epoch == newest[shard]][-count:] for shard, lines in found.items()
    }
