"""The files that may have rows that match `input.where`, by what their paths say, and of a table what it says of each:
others are not even opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pyarrow as pa

from nightjar.inference.errors import InputChanged, JobError, SchemaMismatch
from nightjar.inference.input.partitions import values_of
from nightjar.inference.input.sources.reading import source_of
from nightjar.inference.job.model import Job
from nightjar.inference.job.where import Condition, on_some
from nightjar.inference.messages import counted
from nightjar.inference.storage.protocol import Entry, Storage


class Possible:
    """The input's files without those that cannot match. left_out: the number of those, so far."""

    def __init__(self, storage: Storage, job: Job, entries: Iterator[Entry]) -> None:
        """
        Raises:
            JobError: The condition does not fit the types of the columns from the path. Names `input.where`.
        """
        self.left_out = 0
        self._storage, self._job, self._entries = storage, job, entries
        self._bound = cache(self._of_table)
        self._kinds = job.input.partition_types()
        kinds = pa.schema(list(self._kinds.items()))
        self._condition: Condition | None = on_some(job.input.where, kinds) if job.input.where else None

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        for entry in self._entries:
            if self._may_match(entry.uri) and self._may_have(entry):
                return entry
            self.left_out += 1
        raise StopIteration

    def error(self) -> JobError | None:
        """The error for an input of which no file is left."""
        if not self.left_out:
            return None
        return JobError(
            f"input.where: none of {counted(self.left_out, 'file')} at {self._job.input.shown} can match "
            f"{self._job.input.where!r}, by what {'their paths say' if self._kinds else 'the table says of them'}"
        )

    def _may_match(self, uri: str) -> bool:
        if self._condition is None:
            return True
        try:
            values = values_of(uri, self._kinds)
        except SchemaMismatch:
            return True  # what is wrong with this path is told when the file is described
        return not self._condition.excludes(values)

    def _may_have(self, entry: Entry) -> bool:
        if not self._job.input.where:
            return True
        try:
            return source_of(self._job, entry.uri).may_match(self._storage, entry, self._bound)
        except InputChanged:
            return True  # this, too

    def _of_table(self, schema: pa.Schema) -> Condition | None:
        """The condition on columns that are compared as the table has them: in no other type, and not of the path."""
        own = [each for each in schema if each.name not in {*self._job.input.declared, *self._kinds}]
        return on_some(self._job.input.where, pa.schema(own)) if self._job.input.where and own else None
