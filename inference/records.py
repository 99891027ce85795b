"""The frozen records that cross process boundaries, and their JSON form.

A `Piece` is whole units of one file. A `Shard` is the pieces that are scored, committed, retried and reported together.
A worker sends the events (`Started`, `Preparing`, `Prepared`, `Crumb`, `Receipt`, `Failed`, `Seen`) while it works on
a shard. The ledger keeps them in the same JSON form.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from nightjar.inference.jsonform import SELDOM, Float32, Int32, of_json, to_json
from nightjar.inference.messages import clip
from nightjar.inference.usage import NO_USAGE, NOTHING_SPENT, Spent, Usage

UNREADABLE = -1
"""Row count of a piece whose file could not be read when it was planned."""

UNKNOWN = -2
"""Row count of a piece whose rows can be counted only by reading the whole file. The piece is the whole file."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of one file: whole units, or a part of one unit."""

    uri: str
    """The absolute URI of the file."""

    size: int
    """Bytes of the file."""

    version: str
    """The version of the file, as in `storage.Entry`."""

    first_row: int
    """The index in the file of the first row."""

    rows: int
    """The number of rows, or `UNREADABLE`, or `UNKNOWN`."""

    row_groups: tuple[Int32, Int32]
    """The range of the units that hold the rows, (first, last + 1); (0, 0) if unreadable. Plans and ledgers use this
    name for the units of every format."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The unit of work, commit, retry and report. id: a hash of its pieces and of the fingerprint of what scores it."""

    id: str
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """Number of input rows; `UNREADABLE` or `UNKNOWN` if that of any piece is."""
        rows = [piece.rows for piece in self.pieces]
        return next((no_count for no_count in (UNREADABLE, UNKNOWN) if no_count in rows), sum(rows))

    @property
    def label(self) -> str:
        """A name for people: the file's name, and if they are known its rows, (first, last + 1)."""
        first = self.pieces[0]
        name = first.uri.rsplit("/", 1)[-1]
        if len(self.pieces) > 1:
            return f"{name} and {len(self.pieces) - 1} more"
        return f"{name}[{first.first_row}:{first.first_row + first.rows}]" if first.rows >= 0 else name


def as_line(record: Any) -> dict[str, Any]:
    """A frozen record's fields, one level deep; `dataclasses.asdict` copies deeply and is ten times slower."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def shard_of(pieces: tuple[Piece, ...], fingerprint: str) -> Shard:
    """Make the shard of these pieces. Its id is 80 bits of a SHA-256 of the pieces and the scoring fingerprint."""
    content = json.dumps([fingerprint, [as_line(piece) for piece in pieces]], sort_keys=True)
    return Shard(hashlib.sha256(content.encode()).hexdigest()[:20], pieces)


def split(shard: Shard, fingerprint: str) -> tuple[Shard, ...]:
    """Split a packed shard into one shard per file, so that a bad file fails only its own rows."""
    return tuple(shard_of((piece,), fingerprint) for piece in shard.pieces)


@dataclass(frozen=True, slots=True)
class Part:
    """One output file, written once."""

    name: str
    """The name of the file, relative to the revision."""

    rows: int
    """Rows of the file."""

    size: int
    """Bytes of the file."""

    checksum: str
    """The xxh3-128 of the file's bytes."""


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row that no attempt could score."""

    row: int
    """The index of the row in the table."""

    error: str
    """The name of the exception's class."""

    message: str
    """The message of the exception, clipped to the length for an event."""

    traceback: str
    """The last lines of the traceback; only for the quarantine file."""

    raw: str = ""
    """The text of a row that could not be read, or its beginning; only for the quarantine file."""

    model: str = ""
    """The name of the model that could not score the row, if the job has several; '' if the row is lost to all of
    them."""

    where: str = ""
    """The user's line that raised, as `messages.raised_at` has it."""

    @property
    def said(self) -> str:
        """The error with its place, for people."""
        return f"{self.error}: {self.message}{self.where}"


@dataclass(frozen=True, slots=True)
class Started:
    """A worker began an attempt. If the worker dies after this event, this shard is charged."""

    shard: str
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True)
class Preparing:
    """A worker of the CPU stage began to read and prepare a shard. If it dies before `Prepared`, the shard is charged.

    Events of the two stages may arrive in any order.
    """

    shard: str
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A shard is prepared, and waits for an actor of the model. Nobody works on it, so no death is charged to it."""

    shard: str
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True)
class Crumb:
    """What a worker is doing in an attempt. A suspect's is sent before rows go to the predictor, and after the last.

    The predictor has rows [row, row + rows) of `uri`.
    """

    shard: str
    """The id of the shard."""

    uri: str = ""
    """The URI of the file that is read or scored; '' while a part is written."""

    row: int = -1
    """The index in the file of the row that the worker has come to; -1 for none."""

    rows: int = 0
    """Rows that the predictor has; 0 if it has none, or rows of several files, of which `row` is in the first."""

    model: str = field(default="", metadata=SELDOM)
    """The name of the model that has the rows, if the job has several."""

    attempt: int = 0
    """The number of the attempt, from 1."""

    @property
    def where(self) -> str:
        """The position as text, for a message."""
        by = f" with the model {self.model!r}" if self.model else ""
        if not self.rows and self.row >= 0:
            return f"{by} at a batch of several files that begins with row {self.row} of {self.uri}"
        if not self.rows:
            return f" while {self.uri} was read or written" if self.uri else " while a part was written"
        last = "" if self.rows == 1 else f" to {self.row + self.rows - 1}"
        return f"{by} at row{'s' if last else ''} {self.row}{last} of {self.uri}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The counters of shards that are done. rows_in = rows_out + rows_quarantined."""

    rows_in: int = 0
    """Rows that were read and match `input.where`."""

    rows_out: int = 0
    """Rows in the output."""

    rows_quarantined: int = 0
    """Rows that are in the quarantine alone."""

    rows_partial: int = 0
    """Rows of `rows_out` that are in the quarantine, too: some of several models could not score them."""

    rows_left_out: int = 0
    """Rows that were read and do not match `input.where`."""

    batches_cut: int = 0
    """Micro-batches that raised and were scored in parts."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: count + getattr(other, name) for name, count in self.by_name.items()})

    def __sub__(self, other: Counts) -> Counts:
        return Counts(**{name: count - getattr(other, name) for name, count in self.by_name.items()})

    @property
    def by_name(self) -> dict[str, Any]:
        """The counters by name, without what else a record with counters has."""
        return {name: getattr(self, name) for name in Counts.__dataclass_fields__}

    @property
    def rows_in_quarantine(self) -> int:
        """The rows in the quarantine, each once, whether they are written as well or not."""
        return self.rows_quarantined + self.rows_partial


NO_COUNTS = Counts()
"""Nothing is done."""


@dataclass(frozen=True, slots=True)
class Receipt(Counts):
    """An attempt's output is durable."""

    shard: str
    """The shard's id."""

    attempt: Int32
    """The number of the attempt, from 1."""

    epoch: Int32
    """The epoch of the writer for whom the worker scored."""

    worker: str
    """`host:pid` of the worker's process."""

    data: Part | None
    """The data part, which may have no row."""

    quarantine: Part | None
    """The quarantine part; None if no row is in it."""

    seconds: Float32
    """Wall time of the attempt."""

    started_at: float
    """When the attempt began, in seconds since 1970."""

    retries: Int32 = 0
    """Requests to the storage that were repeated."""

    adopted_from: str = ""
    """The revision that the result was taken from, as `Revision.name`; empty if it was scored."""

    rows_reused: int = field(default=0, metadata=SELDOM)
    """Rows whose outputs were all taken from an earlier night."""

    rows_partly_reused: int = field(default=0, metadata=SELDOM)
    """Rows of which the outputs of some models were taken from an earlier night, and those of others were scored."""

    reused_from: str = field(default="", metadata=SELDOM)
    """The revision that outputs of rows were taken from, as `Revision.name`."""

    keyed: bool = field(default=False, metadata=SELDOM)
    """Whether the keys of the rows lie beside the data part."""

    ceilings: tuple[Int32, ...] = field(default=(), metadata=SELDOM)
    """Of each model, in the job's order, the rows of a micro-batch to which lack of memory forced the worker; 0 where
    it sufficed. Empty if it sufficed for all."""

    usage: Usage = field(default=NO_USAGE, metadata=SELDOM)
    """What language models took."""

    spent: Spent = field(default=NOTHING_SPENT, metadata=SELDOM)
    """The seconds of the worker's scoring thread."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt failed."""

    shard: str
    """The id of the shard."""

    attempt: int
    """The number of the attempt, from 1."""

    cause: str
    """One word, by which failures are counted: the exception's class, or `ProcessDied`, `Stalled`, `PartDamaged`."""

    message: str
    """A sentence for people."""

    terminal: bool = False
    """Whether another try cannot help."""

    died: bool = False
    """Whether the process was lost, so that the attempt itself could not report."""

    uri: str = ""
    """The URI of the file where the attempt failed, or of the shard's first file; '' if not known."""

    row: int = -1
    """The index in the file of the row where the attempt failed; -1 if not known."""

    rows: int = 0
    """Rows from `row` on that the predictor had when the process died; 0 if not known."""

    worker: str = ""
    """`host:pid` of the worker's process; '' if the audit revoked a receipt."""

    model: str = field(default="", metadata=SELDOM)
    """The name of the model that had the rows, if the job has several."""

    spent_s: float = field(default=0.0, metadata=SELDOM)
    """The seconds that the worker's scoring thread spent on the attempt, if the worker lived."""


def death(at: Crumb, cause: str, message: str, worker: str) -> Failed:
    """The failure of an attempt whose process ended while it did this."""
    return Failed(
        at.shard,
        at.attempt,
        cause,
        clip(f"{message}{at.where}"),
        died=True,
        uri=at.uri,
        row=at.row if at.rows else -1,
        rows=at.rows,
        worker=worker,
        model=at.model,
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """A predictor used something that the identity does not cover."""

    kind: str
    """A key of the table of sentences in `witness.seen`."""

    name: str
    """A path, the name of a variable, or host:port; never a value."""

    by: str = ""
    """The nearest line of the user's code, as "predict.py:12"; '' if there is none, as in a library's own thread."""

    more: bool = field(default=False, metadata=SELDOM)
    """The record stands for further things of this kind that are not kept: in the folder `name`, or anywhere if ''."""


Event = Started | Preparing | Prepared | Crumb | Receipt | Failed | Seen

_TYPES: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(Event)}


def encode(record: Any) -> dict[str, Any]:
    """An event, or a line of a ledger, as a JSON object; the key `t` has its type."""
    return {"t": type(record).__name__.lower(), **to_json(record)}


def decode(record: Mapping[str, Any]) -> Event:
    """The inverse of `encode`."""
    event: Event = of_json(_TYPES[record["t"]], record)
    return event


def replay_command(job_path: str, run: Sequence[str], shard: Shard, file: str, row: int, model: str = "") -> str:
    """The command that scores one row again, alone. run: as `WorkerSpec.run`. row: its index in the file.

    model: the name of the one of several models that scores it; '' for all.
    """
    which = [*(("--file", file) if len(shard.pieces) > 1 else ()), *(("--model", model) if model else ())]
    return shlex.join(["nightjar", "replay", job_path, *run, "--shard", shard.id, "--row", str(row), *which])
