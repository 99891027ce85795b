"""What workers print, in a revision's `logs/`: parts of JSON lines, each written once by one process.

A part's name begins with its time of writing, so that a listing is in order. Its first line names format, epoch and
worker. Each further line is one printed line. A line may be in two parts, if the answer to a write was lost or its
worker died meanwhile. The next command's worker may have the same name, because host and process id may occur again;
but an epoch does not.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from nightjar.inference.errors import StorageError
from nightjar.inference.jsonform import SELDOM, of_json, to_json
from nightjar.inference.records import Failed
from nightjar.inference.storage.protocol import Storage, at_once, join

LAST = 5
"""The number of last lines that are shown with a failed shard."""

STREAMS = ("out", "err")
NOTE = "note"
"""The stream for Nightjar's own remarks: what was left out, or could not be kept."""

_FORMAT = 1
_PARTS = 8
_SHARDS = 16
"""The most parts per worker (the newest) and the most shards that are read, because a page must not take long."""


@dataclass(frozen=True, slots=True)
class Line:
    """One printed line."""

    at: float
    """When its shard had been scored, or when the line was kept if that was earlier; in seconds since 1970."""

    stream: str
    """`out`, `err` or `note`."""

    text: str
    """The text without its line end, shortened if it is long, with secrets masked."""

    shard: str = ""
    """The shard that was being scored; empty before the first shard and in preflight."""

    attempt: int = 0
    """The number of the shard's attempt, from 1; 0 without a shard."""

    left_out: int = field(default=0, metadata=SELDOM)
    """The number of lines in whose place a note stands."""

    worker: str = field(default="", metadata=SELDOM)
    """`host:pid` of the process that printed; in a part its first line has the name for all."""

    epoch: int = field(default=0, metadata=SELDOM)
    """The epoch of the writer for whom the process worked; in a part its first line has the epoch for all."""


def folder(revision: str) -> str:
    """The folder with the parts of a revision's logs."""
    return join(revision, "logs")


def write(storage: Storage, revision: str, epoch: int, worker: str, lines: Iterable[Line]) -> None:
    """Write one part.

    Raises:
        StorageError: It could not be written.
    """
    header = {"format": _FORMAT, "epoch": epoch, "worker": worker}
    text = "\n".join(map(json.dumps, [header, *map(to_json, lines)]))
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S.%f")
    name = f"{stamp}_{_key(worker)}_{uuid.uuid4().hex[:8]}.jsonl"
    storage.create(join(folder(revision), name), text.encode())


def _key(worker: str) -> str:
    return worker.replace(":", "-").replace("/", "-")


def all_lines(storage: Storage, revision: str) -> Iterator[Line]:
    """The lines of all parts of a revision, part by part."""
    names = [entry.uri for entry in storage.list(folder(revision)) if entry.uri.endswith(".jsonl")]
    for lines in at_once(partial(read_log, storage), names):
        yield from lines


def read_log(storage: Storage, uri: str) -> list[Line]:
    """Read the lines of one part.

    Raises:
        StorageError: The storage is away, or the part is damaged or of a newer version.
    """
    try:
        header, *lines = map(json.loads, storage.read(uri).decode().split("\n"))
        if header["format"] > _FORMAT:
            raise ValueError(f"format {header['format']}")
        return [of_json(Line, {**line, "worker": header["worker"], "epoch": header["epoch"]}) for line in lines]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{uri}: not a log that this version can read; it was damaged, or a newer version wrote it"
        ) from error


def last_lines(
    storage: Storage, revision: str, failures: Mapping[str, Sequence[Failed]], count: int = LAST
) -> dict[str, list[str]]:
    """The last printed lines of these shards' last attempts: of the first shards, and their workers' newest parts."""
    looked = {shard: said[-1] for shard, said in list(failures.items())[:_SHARDS] if said}
    if not looked:
        return {}
    names = [entry.uri for entry in storage.list(folder(revision))]
    wanted: set[str] = set()
    for worker in {failed.worker for failed in looked.values() if failed.worker}:
        wanted.update([name for name in names if f"_{_key(worker)}_" in name][-_PARTS:])
    found: dict[str, list[Line]] = {}
    for lines in at_once(partial(read_log, storage), sorted(wanted)):
        for line in lines:
            failed = looked.get(line.shard)
            if failed is not None and (line.worker, line.attempt) == (failed.worker, failed.attempt):
                found.setdefault(line.shard, []).append(line)
    # A repeated command counts attempts from one again.
    newest = {shard: max(line.epoch for line in lines) for shard, lines in found.items()}
    return {
        shard: [line.text for line in lines if line.epoch == newest[shard]][-count:] for shard, lines in found.items()
    }
