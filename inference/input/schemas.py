"""The columns of a lake: those that most of its files have."""

from __future__ import annotations

import pyarrow as pa

from nightjar.inference.input.sources import normalisation

_KINDS = 100
"""The most different schemas that are counted, to bound the memory; a lake has few."""


class UsualSchema:
    """Finds the columns that most files have, so that one odd file, even the first, does not decide for the others."""

    def __init__(self) -> None:
        self._seen: list[_Alike] = []

    def add(self, schema: pa.Schema) -> None:
        """Count one file."""
        if any(known.add_equal(schema) for known in self._seen):
            return
        columns = normalisation.columns(schema)
        if any(known.add_alike(schema, columns) for known in self._seen):
            return
        if len(self._seen) < _KINDS:
            self._seen.append(_Alike(schema, columns))

    def schema(self) -> pa.Schema | None:
        """The schema of most files, as the first of them stores it. A column excludes nulls only if it does in each
        file.
        """
        return max(self._seen, key=lambda each: each.files).schema() if self._seen else None


class _Alike:
    """Files with the same columns, however each writer stored and declared them."""

    def __init__(self, schema: pa.Schema, columns: pa.Schema) -> None:
        self.files = 1
        self._columns = columns
        self._ways = [schema]
        self._required = normalisation.without_nulls(schema)

    def add_equal(self, schema: pa.Schema) -> bool:
        """Count a file if its schema equals one seen before. This is the fast path, for most of a million files."""
        known = any(way.equals(schema) for way in self._ways)
        self.files += known
        return known

    def add_alike(self, schema: pa.Schema, columns: pa.Schema) -> bool:
        """Count a file if its columns are the same."""
        if not self._columns.equals(columns):
            return False
        self.files += 1
        self._required &= normalisation.without_nulls(schema)
        if len(self._ways) < _KINDS:
            self._ways.append(schema)
        return True

    def schema(self) -> pa.Schema:
        return normalisation.admitting(self._ways[0], self._required)


class SharedSchemas:
    """Schemas shared between files: thousands of copies of the same wide schema would fill the memory."""

    def __init__(self) -> None:
        self._seen: list[pa.Schema] = []

    def shared(self, schema: pa.Schema) -> pa.Schema:
        """Return an equal schema (with equal metadata) that was seen before, else this one."""
        for known in self._seen:
            if known.equals(schema, check_metadata=True):
                return known
        if len(self._seen) < _KINDS:
            self._seen.append(schema)
        return schema
