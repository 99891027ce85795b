"""The first files of the input: enough to check a job before every file is looked into."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa

from nightjar.inference.input.described import WINDOW, AllUnread, Unread, described, no_rows
from nightjar.inference.input.files import input_files
from nightjar.inference.input.possible import Possible
from nightjar.inference.input.schemas import UsualSchema, without_unseen
from nightjar.inference.input.sources.inside import holds_empty
from nightjar.inference.input.sources.protocol import Description
from nightjar.inference.job.model import Job
from nightjar.inference.records import Piece
from nightjar.inference.storage.protocol import Entry, Storage


class Beginning:
    """The input, listed once and read as far as asked. Unreadable and deleted files are left to discovery."""

    def __init__(self, storage: Storage, job: Job) -> None:
        self._job = job
        self._entries = Possible(storage, job, input_files(storage, job))
        self._unseen = described(storage, job, self._entries, ahead=1)
        self._seen: list[tuple[Entry, Description | Unread | None]] = []

    def schema(self) -> pa.Schema:
        """The columns of the first file with rows; where none has any, of the first file that can be read. If the first
        file with rows has no value in a column, these are the columns of `usual_schema`.

        Raises:
            JobError: There is nothing to score. Names `input.uri`.
            Denied, StorageError: As in `discover`.
        """
        unread, empty, first, schema = AllUnread(self._job), 0, "", None
        for entry, found in self._files():
            if isinstance(found, Unread):
                unread.add(found)
            elif found is not None and found.has_say:
                partial = found.unseen is None and any(map(holds_empty, found.schema.types))
                usual = self.usual_schema() if partial else None
                return usual or without_unseen(found.schema, found.unseen)
            elif found is not None:
                empty, first = empty + 1, first or entry.uri
                schema = without_unseen(found.schema, found.unseen) if schema is None else schema
        if schema is None:
            raise self._entries.error() or unread.error()
        if not unread.files:
            raise no_rows(self._job, empty, first)
        return schema

    def usual_schema(self) -> pa.Schema | None:
        """The columns that most of the first few thousand files with rows have; None if none of them can be read."""
        usual = UsualSchema()
        for _, found in islice(self._files(), WINDOW):
            if isinstance(found, Description) and found.has_say:
                usual.add(found.schema, found.unseen)
        return usual.schema()

    @property
    def uris(self) -> list[str]:
        """The uris of the files that were looked into so far."""
        return [entry.uri for entry, _ in self._seen]

    def pieces(self, count: int) -> Iterator[Piece]:
        """The first unit with rows of each of the first `count` files; a file is read when its turn comes."""
        for entry, found in islice(self._files(), min(count, WINDOW)):
            if isinstance(found, Description) and found.has_say:
                unit = next(index for index, rows in enumerate(found.rows) if rows)
                yield Piece(entry.uri, entry.size, entry.version, 0, found.rows[unit], (unit, unit + 1))

    def _files(self) -> Iterator[tuple[Entry, Description | Unread | None]]:
        """From the first file on. Only so many as are asked for again are kept."""
        yield from self._seen
        for found in self._unseen:
            if len(self._seen) < WINDOW:
                self._seen.append(found)
            yield found
