"""Columns of a table that keep a number under any name, and which column of a file is which of these.

A file has the names that its columns had when it was written. A field in a column is found as the column itself is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_list, list_of
from nightjar.inference.input.sources.bindings import path

_NUMBER = b"PARQUET:field_id"
"""The key of a column's number in the metadata of a Parquet file's column."""


@dataclass(frozen=True)
class Column:
    """A column of a table, or a field in one; also the element of a list, and the key and the value of a map.

    names: those that it has in files that were added to the table without being written for it; they have no numbers.
    default: of rows that are older than the column. fields: those in it, in order.
    """

    name: str
    number: int
    names: frozenset[str]
    default: object
    fields: tuple[Column, ...]

    @property
    def path(self) -> str:
        """The number, and those of the fields in it: what the values of the column are found by."""
        return path(self.number, (each.path for each in self.fields))


def matched(own: Iterable[pa.Field], columns: tuple[Column, ...]) -> list[Column | None]:
    """For each field of a file the table's; None if the table has it no longer. If one of them has a number, those
    without are none of the table's.
    """
    fields = list(own)
    numbers = {each.number: each for each in columns}
    if any(_NUMBER in (field.metadata or {}) for field in fields):
        return [numbers.get(int((field.metadata or {}).get(_NUMBER, -1))) for field in fields]
    names = {name: each for each in columns for name in each.names}
    return [names.get(field.name) for field in fields]


def renamed(kind: pa.DataType, column: Column, *, whole: bool) -> pa.DataType:
    """The type of a file's column, where the fields in it have the names that they have in the table. whole: with the
    fields that the table has no longer, under names that it has not.
    """
    inner = column.fields
    if is_.is_struct(kind):
        fields = list(kind)
        found = [
            _field(field, each, each.name, whole=whole) if each else field.with_name(f"\0{index}")
            for index, (field, each) in enumerate(zip(fields, matched(fields, inner), strict=True))
            if each or whole
        ]
        return pa.struct(found)
    if is_.is_map(kind) and len(inner) == 2:
        key, item = kind.key_field, kind.item_field
        return pa.map_(_field(key, inner[0], key.name, whole=whole), _field(item, inner[1], item.name, whole=whole))
    if is_list(kind) and len(inner) == 1:
        return list_of(kind, _field(kind.value_field, inner[0], kind.value_field.name, whole=whole))
    return kind


def _field(field: pa.Field, column: Column, name: str, *, whole: bool) -> pa.Field:
    return field.with_name(name).with_type(renamed(field.type, column, whole=whole))
