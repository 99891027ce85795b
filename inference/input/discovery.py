"""From the input's uri to its files, with row counts and versions.

A `Discovery` is the lake as it was found tonight. `plan` decides what a shard is.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import (
    Denied,
    InputCorrupt,
    JobError,
    Missing,
    SchemaMismatch,
    SourceFailed,
)
from nightjar.inference.input.files import PossibleFiles
from nightjar.inference.input.schemas import UsualSchema, holds_empty
from nightjar.inference.input.sources.protocol import Description
from nightjar.inference.input.sources.reading import describe, import_again, source_of
from nightjar.inference.job.model import Job
from nightjar.inference.messages import counted
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Entry, Storage, snapshot_of

_READERS = 32
"""Files that are looked into at the same time: a look is a request or two, and mostly waiting."""

WINDOW = 512
"""The most files whose descriptions are in memory at a time: each has its own schema."""

_UNREAD = InputCorrupt, SchemaMismatch, SourceFailed, Denied, Missing
"""Why a file has no description. It may have been deleted after it was listed."""

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
"""One line per file. `rows` and `sizes`: as in `Description`. `error`: why the file cannot be read, else null."""


@dataclass(frozen=True)
class Discovery:
    """The lake as it was found. files: schema `FILES`, sorted by uri. schema: the columns that most files have.
    left_out: the number of other files, which cannot match `input.where`, by what their paths or the table say.

    Only files with rows count for the schema, if there are any. In a tie the columns of the first files win.
    """

    files: pa.Table
    schema: pa.Schema
    left_out: int = 0

    @property
    def rows(self) -> int:
        """Number of rows in the files whose rows are known."""
        return sum(max(rows, 0) for chunk in self.files["rows"].chunks for rows in chunk.flatten().to_pylist())

    @property
    def uncounted(self) -> int:
        """Number of files whose rows are not known before they are read."""
        return sum(chunk.flatten().to_pylist().count(UNKNOWN) for chunk in self.files["rows"].chunks)

    @property
    def snapshot(self) -> str:
        """The snapshot of the table whose files these are; empty if the input is no table."""
        return snapshot_of(self.files["version"][0].as_py()).partition(" ")[0] if self.files.num_rows else ""

    def pieces(self, count: int) -> Iterator[Piece]:
        """The first unit with rows of each of the first `count` files; fewer if one has none, or cannot be read."""
        for line in self.files.slice(0, count).to_pylist():
            unit = next((index for index, rows in enumerate(line["rows"]) if rows), None)
            if unit is not None:
                yield Piece(line["uri"], line["size"], line["version"], 0, line["rows"][unit], (unit, unit + 1))

    @property
    def unreadable(self) -> int:
        """Number of files that could not be read."""
        return int(self.files.num_rows - self.files["error"].null_count)

    @property
    def unread(self) -> str:
        """A message about the files that cannot be read, which names the first; empty if there are none."""
        if not self.unreadable:
            return ""
        first = self.files["error"].drop_null()[0].as_py()
        return f"{counted(self.unreadable, 'file')} cannot be read, and will fail; the first: {first}"


def discover(storage: Storage, job: Job) -> Discovery:
    """List the input and look into every file.

    Raises:
        JobError: There is nothing to score, or no file is readable. Names `input.uri`. Or the user's own source cannot
            be imported. Names `input.format`.
        StorageError: Any other fault of the storage. It says nothing about the file, and may pass.
    """
    import_again(job)
    return _look(storage, job)


def discover_first(storage: Storage, job: Job, files: int = 8) -> Discovery:
    """About so many of the first files. More are looked into while none has rows, or none a value in some column.

    Raises:
        JobError, StorageError: As `discover`.
    """
    return _look(storage, job, files)


def _look(storage: Storage, job: Job, first: int | None = None) -> Discovery:
    """first: as the files of `discover_first`."""
    possible = PossibleFiles(storage, job)
    entries = iter(possible)
    usual, empty, bad, settled = UsualSchema(), UsualSchema(), "", False
    batches: list[pa.RecordBatch] = []
    with ThreadPoolExecutor(_READERS) as pool:
        while window := list(islice(entries, first or WINDOW)):
            lines = list[dict[str, Any]]()
            for entry, found in zip(window, pool.map(partial(_described, storage, job), window), strict=True):
                line = {"uri": entry.uri, "size": entry.size, "version": entry.version, "rows": [], "sizes": []}
                if isinstance(found, Description):
                    # The types of an empty file may be a guess (pandas writes null), so files with rows have priority.
                    unseen = source_of(job, entry.uri).unseen
                    (usual if found.has_say else empty).add(found.schema, unseen)
                    settled = settled or unseen is not None or not any(map(holds_empty, found.schema.types))
                    line |= {"rows": found.rows, "sizes": found.sizes}
                else:
                    line["error"] = str(found)
                    bad = bad or str(found)
                lines.append(line)
            batches.append(pa.RecordBatch.from_pylist(lines, schema=FILES))
            if first and usual.schema() and (settled or len(batches) * first >= WINDOW):
                break
    files = pa.Table.from_batches(batches, schema=FILES)
    if (schema := usual.schema()) is None and (schema := empty.schema()) is None:
        raise possible.error() or JobError(f"{job.input.key}: no file can be read; the first: {bad}")
    discovery = Discovery(files, schema, possible.left_out)
    if not discovery.rows and not discovery.uncounted and not discovery.unreadable:
        raise JobError(f"{job.input.key}: no rows in {counted(files.num_rows, 'file')} at {job.input.shown}")
    return discovery


def _described(storage: Storage, job: Job, entry: Entry) -> Description | Exception:
    try:
        return describe(storage, job, entry)
    except _UNREAD as error:
        return error.with_traceback(None)
