"""The columns of a lake: those that most of its files have."""

from __future__ import annotations

import pyarrow as pa

from nightjar.inference.input.sources import normalisation

_KINDS = 100
"""So many different schemas are told apart; a lake has few."""


class UsualSchema:
    """The columns that most files have: one odd file, even the first, must not make all the others the odd ones."""

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
        """That of most files, as the first of them stores it; a column without nulls only if each of them says so."""
        return max(self._seen, key=lambda each: each.files).schema() if self._seen else None


class _Alike:
    """Files whose columns hold the same, however each writer stored and declared them."""

    def __init__(self, schema: pa.Schema, columns: pa.Schema) -> None:
        self.files = 1
        self._columns = columns
        self._ways = [schema]
        self._required = normalisation.without_nulls(schema)

    def add_equal(self, schema: pa.Schema) -> bool:
        """Count a file that says what one of these said, if it does; quickly, as most of a million do."""
        known = any(way.equals(schema) for way in self._ways)
        self.files += known
        return known

    def add_alike(self, schema: pa.Schema, columns: pa.Schema) -> bool:
        """Count a file with the same columns, if these are."""
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
    """The schemas seen so far: thousands of files that say the same share one, or wide ones would fill the memory."""

    def __init__(self) -> None:
        self._seen: list[pa.Schema] = []

    def shared(self, schema: pa.Schema) -> pa.Schema:
        """An equal one, metadata included, that is kept already; else this one."""
        for known in self._seen:
            if known.equals(schema, check_metadata=True):
                return known
        if len(self._seen) < _KINDS:
            self._seen.append(schema)
        return schema
