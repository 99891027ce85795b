"""What crosses process boundaries: frozen records, and their one JSON form.

A `Piece` is whole units of one file; a `Shard` is the pieces scored, committed, retried and
reported together. The events (`Started`, `Crumb`, `Receipt`, `Failed`, `Noticed`) are what a worker says while it
works on one. The same JSON form travels from the worker and lies in the ledger.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

T = TypeVar("T")

Int32 = Annotated[int, "int32"]
Float32 = Annotated[float, "float32"]
"""Numbers that take four bytes in a file of records, where others take eight: `arrow_types.record_schema`."""

UNREADABLE = -1
"""Row count of a piece whose file could not be read when it was planned."""

UNKNOWN = -2
"""Row count of a piece whose file can be read, but not counted without reading all of it: one piece, the whole file."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole units of one file, consecutive, in order.

    uri: absolute. size: bytes. version: as in `storage.Entry`. first_row: index in the file of the first
    row. rows: how many, or `UNREADABLE`, or `UNKNOWN`. row_groups: the units, (first, past the last), under the name
    that they have in every plan and ledger; (0, 0) when unreadable.
    """

    uri: str
    size: int
    version: str
    first_row: int
    rows: int
    row_groups: tuple[Int32, Int32]


@dataclass(frozen=True, slots=True)
class Shard:
    """The unit of work, commit, retry and report. `id` is its content × what scores it."""

    id: str
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """Input rows; `UNREADABLE` or `UNKNOWN` when any piece's are."""
        rows = [piece.rows for piece in self.pieces]
        return next((no_count for no_count in (UNREADABLE, UNKNOWN) if no_count in rows), sum(rows))

    @property
    def label(self) -> str:
        """For people: the file's name and units."""
        first = self.pieces[0]
        name = first.uri.rsplit("/", 1)[-1]
        if len(self.pieces) > 1:
            return f"{name} and {len(self.pieces) - 1} more"
        low, high = first.row_groups
        return f"{name}[{low}:{high}]" if high else name


def as_line(record: Any) -> dict[str, Any]:
    """A frozen record's fields, one level deep: `dataclasses.asdict` copies deeply, and is ten times slower."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def shard_of(pieces: tuple[Piece, ...], fingerprint: str) -> Shard:
    """The shard of these pieces under a scoring fingerprint. The id is 80 bits of SHA-256."""
    content = json.dumps([fingerprint, [as_line(piece) for piece in pieces]], sort_keys=True)
    return Shard(hashlib.sha256(content.encode()).hexdigest()[:20], pieces)


def split(shard: Shard, fingerprint: str) -> tuple[Shard, ...]:
    """One shard per file of a packed shard, so that a bad file costs only itself."""
    return tuple(shard_of((piece,), fingerprint) for piece in shard.pieces)


@dataclass(frozen=True, slots=True)
class Part:
    """One output file, written once. `name` is relative to the revision; `checksum` is xxh3-128 of its bytes."""

    name: str
    rows: int
    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row that no attempt could score.

    row: index in the table. error: name of the exception's class. message: clipped to an event's length.
    traceback: its last lines, for the quarantine file only.
    """

    row: int
    error: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Started:
    """A worker began an attempt: from here on a death is charged to this shard."""

    shard: str
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True)
class Crumb:
    """Left by a suspect before rows [row, row + rows) of `uri` go to the predictor; rows = 0: none do any more."""

    shard: str
    uri: str
    row: int
    rows: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """An attempt's output is durable. rows_in = rows_out + rows_quarantined.

    seconds: wall time of the attempt. retries: faults overcome in place. batch_rows: micro-batch size
    used when memory forced it below the job's, else 0. cuts: micro-batches that raised and were scored in parts.
    """

    shard: str
    attempt: Int32
    epoch: Int32
    worker: str
    rows_in: int
    rows_out: int
    rows_quarantined: int
    data: Part | None
    quarantine: Part | None
    seconds: Float32
    started_at: float
    retries: Int32 = 0
    batch_rows: Int32 = 0
    adopted_from: str = ""
    cuts: Int32 = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt failed. `cause` is a word for counting, `message` a sentence for reading.

    terminal: trying again cannot help. uri, row: where, if known (row -1: not known).
    died: the process was lost, so the attempt's own words are missing.
    """

    shard: str
    attempt: int
    cause: str
    message: str
    terminal: bool = False
    died: bool = False
    uri: str = ""
    row: int = -1
    rows: int = 0
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Noticed:
    """A worker's predictor used something that identity does not cover; fields as in `witness.Seen`."""

    kind: str
    name: str
    by: str
    worker: str
    more: int = 0


Event = Started | Crumb | Receipt | Failed | Noticed

_TYPES: dict[str, type[Any]] = {cls.__name__.lower(): cls for cls in (Started, Crumb, Receipt, Failed, Noticed)}


def encode(event: Event) -> dict[str, Any]:
    """The event as a JSON object, its type under `t`."""
    record = {"t": type(event).__name__.lower(), **as_line(event)}
    for key in ("data", "quarantine"):
        if record.get(key) is not None:
            record[key] = as_line(record[key])
    return record


def decode(record: dict[str, Any]) -> Event:
    """The inverse of `encode`. Unknown keys of a newer version are ignored."""
    fields = dict(record)
    for key in ("data", "quarantine"):
        if fields.get(key) is not None:
            fields[key] = known(Part, fields[key])
    event: Event = known(_TYPES[record["t"]], fields)
    return event


def known(cls: type[T], fields: Mapping[str, Any]) -> T:
    """A frozen record of these fields; unknown ones, of a newer version, are left out."""
    names: Mapping[str, Any] = vars(cls)["__dataclass_fields__"]
    return cls(**{key: value for key, value in fields.items() if key in names})


def replay_command(job_path: str, run: Sequence[str], shard: Shard, file: str, row: int) -> str:
    """What scores one row again, alone. run: as `WorkerSpec.run`. row: its index in the file."""
    which = ("--file", file) if len(shard.pieces) > 1 else ()
    return shlex.join(["nightjar", "replay", job_path, *run, "--shard", shard.id, "--row", str(row), *which])
