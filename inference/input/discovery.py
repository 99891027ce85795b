"""Input uri → files, with row counts and fingerprints.

Nothing here decides what a shard is (see `plan`): a `Discovery` is the lake as it was found tonight.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import (
    Denied,
    InputCorrupt,
    JobError,
    Missing,
)
from nightjar.inference.input.files import input_files
from nightjar.inference.input.schemas import SharedSchemas, UsualSchema
from nightjar.inference.input.sources import unsupported
from nightjar.inference.input.sources.protocol import Description
from nightjar.inference.input.sources.reading import describe
from nightjar.inference.job.model import Job
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Entry, Storage

_READERS = 32
_WINDOW = 4096
_LISTINGS = 3

FILES = pa.schema(
    [
        ("uri", pa.string()),
        ("size", pa.int64()),
        ("version", pa.string()),
        ("rows", pa.list_(pa.int64())),
        ("sizes", pa.list_(pa.int64())),
        ("error", pa.string()),
    ]
)
"""One line per file; `rows` and `sizes` as in its `Description`; `error` when it could not, or may not, be read."""


@dataclass(frozen=True)
class Discovery:
    """The lake as it was found: `files` (schema `FILES`, sorted by uri) and the columns that most of them have.

    Of files with rows, if there are any; where as many have others, the first ones' columns.
    """

    files: pa.Table
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """Rows of every file that is counted."""
        return sum(max(rows, 0) for chunk in self.files["rows"].chunks for rows in chunk.flatten().to_pylist())

    @property
    def uncounted(self) -> int:
        """Files whose rows are not known before they are read."""
        return sum(chunk.flatten().to_pylist().count(UNKNOWN) for chunk in self.files["rows"].chunks)

    @property
    def unreadable(self) -> int:
        """Files that could not be read."""
        return int(self.files.num_rows - self.files["error"].null_count)

    @property
    def unread(self) -> str:
        """Which these are, by the first of them, and what becomes of them; empty where there are none."""
        if not self.unreadable:
            return ""
        why = self.files["error"].drop_null()[0].as_py()
        if self.unreadable == 1:
            return f"1 file cannot be read; its shard will fail: {why}. Replace or remove it"
        those = f"{self.unreadable:,} files cannot be read; their shards will fail"
        return f"{those}. The first: {why}. Replace or remove them"


def discover(storage: Storage, job: Job) -> Discovery:
    """List the input and look into every file.

    If a file was deleted in between, what replaces it may not be listed yet: then the input is listed again.

    Raises:
        JobError: there is nothing to score, no file is readable, or files vanish again and again; names `input.uri`.
        Denied: none of the files may be read.
        StorageError: any other fault of the storage: it says nothing of the file, and may pass.
    """
    vanished = ""
    for _ in range(_LISTINGS):
        found = _look(storage, job)
        if isinstance(found, Discovery):
            return found
        vanished = found
    raise JobError(
        f"input.uri: files vanish while they are looked at, {vanished} for one: something rewrites the input; repeat "
        "the command when it is done"
    )


def _look(storage: Storage, job: Job) -> Discovery | str:
    """What one listing finds; or the name of a file that was listed and is not there any more."""
    described = _described(storage, job, input_files(storage, job))
    usual, empty, unread = UsualSchema(), UsualSchema(), _AllUnread(job)
    batches: list[pa.RecordBatch] = []
    while window := list(islice(described, _WINDOW)):
        for entry, found in window:
            if found is None:
                return entry.uri
            if isinstance(found, _Unread):
                unread.add(found)
            else:
                # An empty file's types may be anyone's guess (pandas writes null): files with rows go first.
                (usual if any(found.rows) else empty).add(found.schema)
        lines = [_line(entry, found) for entry, found in window if found is not None]
        batches.append(pa.RecordBatch.from_pylist(lines, schema=FILES))
    files = pa.Table.from_batches(batches, schema=FILES)
    schema = usual.schema() or empty.schema()
    if schema is None:
        raise unread.error()
    discovery = Discovery(files, schema)
    if not discovery.rows and not discovery.uncounted and not discovery.unreadable:
        raise _no_rows(job, files.num_rows)
    return discovery


def usual_schema(storage: Storage, job: Job) -> pa.Schema | None:
    """The columns that most of the first few thousand files with rows have; None when none can be read."""
    usual = UsualSchema()
    for _, found in _described(storage, job, islice(input_files(storage, job), _WINDOW)):
        if isinstance(found, Description) and any(found.rows):
            usual.add(found.schema)
    return usual.schema()


def first_pieces(storage: Storage, job: Job, count: int) -> Iterator[Piece]:
    """The first unit with rows of each of the first so many files, read one after the other."""
    for entry, found in _described(storage, job, islice(input_files(storage, job), count), ahead=1):
        if isinstance(found, Description) and any(found.rows):
            unit = next(index for index, rows in enumerate(found.rows) if rows)
            yield Piece(entry.uri, entry.size, entry.version, 0, found.rows[unit], (unit, unit + 1))


def first_schema(storage: Storage, job: Job) -> pa.Schema:
    """The columns of the first file with rows: enough to check a job without looking into every file.

    Raises:
        JobError: there is nothing to score; names `input.uri`.
        Denied, StorageError: as `discover`.
    """
    unread, empty, schema = _AllUnread(job), 0, None
    for _, found in _described(storage, job, input_files(storage, job), ahead=1):
        if found is None:
            continue  # discovery lists anew
        if isinstance(found, _Unread):
            unread.add(found)
        elif any(found.rows):
            return found.schema
        else:
            empty, schema = empty + 1, schema or found.schema
    if schema is None:
        raise unread.error()
    if not unread.files:
        raise _no_rows(job, empty)
    return schema


def _no_rows(job: Job, files: int) -> JobError:
    which = f"the file {job.input.uri} holds" if files == 1 else f"the {files} files at {job.input.uri} hold"
    return JobError(f"input.uri: {which} no rows")


@dataclass(frozen=True, slots=True)
class _Unread:
    """Why a file has no description. denied: reading it is not allowed."""

    why: str
    denied: bool


@dataclass
class _AllUnread:
    """Files without a description, and what to say if there are no others."""

    job: Job
    files: int = 0
    denied: int = 0
    first: str = ""

    def add(self, unread: _Unread) -> None:
        """Count one file."""
        self.files, self.denied, self.first = self.files + 1, self.denied + unread.denied, self.first or unread.why

    def error(self) -> JobError | Denied:
        if not self.files:
            return JobError(f"input.uri: the files at {self.job.input.uri} were deleted after they had been listed")
        if self.denied == self.files:
            # Rather a wrong sign-in than so many files to blame.
            return Denied(self.first)
        advice = unsupported.advice(self.job.input.uri)
        return JobError(f"input.uri: no file can be read; the first: {self.first}" + (f". {advice}" if advice else ""))


def _described(
    storage: Storage, job: Job, entries: Iterator[Entry], ahead: int = _WINDOW
) -> Iterator[tuple[Entry, Description | _Unread | None]]:
    """The files in order with what is in them, None of one that is gone. Reads the first `ahead` at once, then more."""
    kinds = SharedSchemas()
    with ThreadPoolExecutor(_READERS) as pool:
        while window := list(islice(entries, ahead)):
            found = pool.map(lambda entry: _describe(storage, job, entry, kinds), window)
            yield from zip(window, found, strict=True)
            ahead = min(2 * ahead, _WINDOW)


def _describe(storage: Storage, job: Job, entry: Entry, kinds: SharedSchemas) -> Description | _Unread | None:
    """What is in a file, or why nobody can tell; None when the file is not there any more."""
    try:
        found = describe(storage, job, entry)
        return replace(found, schema=kinds.shared(found.schema))
    except Missing:
        return None
    except (InputCorrupt, Denied) as error:
        return _Unread(str(error), isinstance(error, Denied))


def _line(entry: Entry, found: Description | _Unread) -> dict[str, Any]:
    line: dict[str, Any] = {"uri": entry.uri, "size": entry.size, "version": entry.version}
    if isinstance(found, _Unread):
        return line | {"rows": [], "sizes": [], "error": found.why}
    return line | {"rows": found.rows, "sizes": found.sizes, "error": None}
