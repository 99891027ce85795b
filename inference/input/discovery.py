"""From the input's uri to its files, with row counts and versions.

A `Discovery` is the lake as it was found tonight. `plan` decides what a shard is.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.input.described import WINDOW, AllUnread, Unread, described, no_rows
from nightjar.inference.input.files import input_files
from nightjar.inference.input.possible import Possible
from nightjar.inference.input.schemas import UsualSchema
from nightjar.inference.input.sources.protocol import Description
from nightjar.inference.input.sources.reading import import_edited
from nightjar.inference.job.model import Job
from nightjar.inference.records import UNKNOWN
from nightjar.inference.storage.protocol import Entry, Storage, snapshot_of

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

    @property
    def unreadable(self) -> int:
        """Number of files that could not be read."""
        return int(self.files.num_rows - self.files["error"].null_count)

    @property
    def unread(self) -> str:
        """A message about the files that cannot be read, which names the first; empty if there are none."""
        if not self.unreadable:
            return ""
        why = self.files["error"].drop_null()[0].as_py()
        if self.unreadable == 1:
            return f"1 file cannot be read; its shard will fail: {why}. Replace or remove it"
        those = f"{self.unreadable:,} files cannot be read; their shards will fail"
        return f"{those}. The first: {why}. Replace or remove them"


def discover(storage: Storage, job: Job) -> Discovery:
    """List the input and look into every file.

    If a file was deleted after it was listed, the input is listed again, because the listing may lack the file's
    replacement.

    Raises:
        JobError: There is nothing to score, no file is readable, or files vanish again and again. Names `input.uri`. Or
            the user's own source cannot be imported. Names `input.format`.
        Denied: Reading is not allowed for any of the files.
        StorageError: Any other fault of the storage. It says nothing about the file, and may pass.
    """
    import_edited(job)
    vanished = ""
    for _ in range(_LISTINGS):
        found = _look(storage, job)
        if isinstance(found, Discovery):
            return found
        vanished = found
    raise JobError(
        f"input.uri: files vanish while they are looked at, for example {vanished}: something rewrites the input; "
        "repeat the command when it is done"
    )


def _look(storage: Storage, job: Job) -> Discovery | str:
    """The result of one listing; or the name of a file that was listed and does not exist any more."""
    entries = Possible(storage, job, input_files(storage, job))
    looked = described(storage, job, entries)
    usual, empty, unread = UsualSchema(), UsualSchema(), AllUnread(job)
    batches: list[pa.RecordBatch] = []
    while window := list(islice(looked, WINDOW)):
        for entry, found in window:
            if found is None:
                return entry.uri
            if isinstance(found, Unread):
                unread.add(found)
            else:
                # The types of an empty file may be a guess (pandas writes null), so files with rows have priority.
                (usual if found.has_say else empty).add(found.schema, found.unseen)
        lines = [_line(entry, found) for entry, found in window if found is not None]
        batches.append(pa.RecordBatch.from_pylist(lines, schema=FILES))
    files = pa.Table.from_batches(batches, schema=FILES)
    if (schema := usual.schema()) is None and (schema := empty.schema()) is None:
        raise entries.error() or unread.error()
    discovery = Discovery(files, schema, entries.left_out)
    if not discovery.rows and not discovery.uncounted and not discovery.unreadable:
        raise no_rows(job, files.num_rows, files["uri"][0].as_py())
    return discovery


def _line(entry: Entry, found: Description | Unread) -> dict[str, Any]:
    line: dict[str, Any] = {"uri": entry.uri, "size": entry.size, "version": entry.version}
    if isinstance(found, Unread):
        return line | {"rows": [], "sizes": [], "error": found.why}
    return line | {"rows": found.rows, "sizes": found.sizes, "error": None}
