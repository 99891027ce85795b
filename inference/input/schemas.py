"""The columns of a lake: those that most of its files have."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import reduce

import pyarrow as pa

from nightjar.inference.arrow_types import is_list
from nightjar.inference.input.sources import normalisation
from nightjar.inference.input.sources.normalisation import filled, fits, holds_empty

_KINDS = 100
"""The most different schemas that are counted, to bound the memory; a lake has few."""

_SHARE = 10
"""A wider type counts if one file of so many has it: 1.5 among whole numbers makes a column of floats, but not if only
one file in a thousand has it, which is then the odd one."""


class UsualSchema:
    """Finds the columns that most files have, so that one odd file, even the first, does not decide for the others."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, ...], _SameNames] = {}

    def add(self, schema: pa.Schema, unseen: pa.DataType | None = None) -> None:
        """Count one file. unseen: as in `Description`."""
        # Most of a million files are written alike.
        if any(group.add_equal(schema) for group in self._groups.values()):
            return
        names = tuple(sorted(schema.names))
        if names in self._groups or len(self._groups) < _KINDS:
            self._groups.setdefault(names, _SameNames(unseen)).add(schema)

    def schema(self) -> pa.Schema | None:
        """The columns of most files, each with its usual type. A column excludes nulls if it does in each file."""
        groups = self._groups.values()
        return max(groups, key=lambda group: group.readable()).schema() if groups else None


class _SameNames:
    """Files with columns of the same names, in any order. unseen: as in `Description`."""

    def __init__(self, unseen: pa.DataType | None) -> None:
        self.files = 0
        self._unseen = unseen
        self._ways: list[tuple[pa.Schema, int]] = []
        """The schemas, with the number of files of each."""
        self._others = defaultdict[str, Counter[pa.DataType]](Counter)
        """The types of each column in files beyond the first `_KINDS` ways."""
        self._other_rows = Counter[pa.DataType]()
        """The types of all columns of these files, as `_row_type`."""
        self._required: set[str] | None = None

    def add_equal(self, schema: pa.Schema) -> bool:
        """Count a file if its schema equals one seen before."""
        for index, (way, files) in enumerate(self._ways):
            if way.equals(schema):
                self._ways[index] = (way, files + 1)
                self.files += 1
                return True
        return False

    def add(self, schema: pa.Schema) -> None:
        """Count a file with another schema."""
        self.files += 1
        required = normalisation.required_columns(schema)
        self._required = required if self._required is None else self._required & required
        if len(self._ways) < _KINDS:
            self._ways.append((schema, 1))
            return
        if (row := _row_type(schema)) in self._other_rows or len(self._other_rows) < _KINDS:
            self._other_rows[row] += 1
        for column in schema:
            self._others[column.name][column.type] += 1

    def readable(self) -> int:
        """The number of these files without a column of another type than the usual one."""
        if self._unseen is not None:
            return self.files
        kinds = {column.name: column.type for column in self.schema()}
        odd = (files for way, files in self._ways if not all(fits(each.type, kinds[each.name]) for each in way))
        return self.files - sum(odd)

    def schema(self) -> pa.Schema:
        """The columns in the usual order, as the first file with that order has them, each with its usual type.

        Declared types are those that most files have together, so that some file has all of them.
        """
        orders, kinds = Counter[tuple[str, ...]](), defaultdict[str, Counter[pa.DataType]](Counter)
        for way, files in self._ways:
            orders[tuple(way.names)] += files
            for column in way:
                kinds[column.name][column.type] += files
        ((usual, _),) = orders.most_common(1)
        first = next(way for way, _ in self._ways if tuple(way.names) == usual)
        inferred, fields = self._unseen is not None, []
        row = None if inferred else self._usual_row()
        # By position: a file that is at fault may have two columns of one name.
        own = dict[str, pa.DataType]()
        if row is not None:
            own = {field.name: field.type for field in (row.field(index) for index in range(row.num_fields))}
        for column in first:
            counts = kinds[column.name] + self._others[column.name]
            if (kind := own.get(column.name)) is not None:
                counts = Counter({each: n for each, n in counts.items() if normalisation.value_type(each) == kind})
            fields.append(column.with_type(usual_type(counts) if inferred else _declared_type(column.type, counts)))
        schema = normalisation.with_nulls_except(pa.schema(fields, first.metadata), self._required or set())
        return without_unseen(schema, self._unseen)

    def _usual_row(self) -> pa.DataType | None:
        """The types, as `_row_type`, that most files declare; None if no file has values in all columns."""
        votes = self._other_rows.copy()
        for way, files in self._ways:
            votes[_row_type(way)] += files
        return _most_votes(votes)


def _row_type(schema: pa.Schema) -> pa.DataType:
    """The types of a file's values, as one type, whatever the order of the columns."""
    return normalisation.value_type(pa.struct(sorted(schema, key=lambda column: column.name)))


def _declared_type(own: pa.DataType, counts: Counter[pa.DataType]) -> pa.DataType:
    """The type of a column that most files declare, as the first of these stores it. own: that of the first file."""
    votes = Counter[pa.DataType]()
    for kind, files in counts.items():
        votes[normalisation.value_type(kind)] += files
    if (usual := _most_votes(votes)) is None:
        return reduce(filled, counts, own)
    return next(kind for kind in (own, *counts) if normalisation.value_type(kind) == usual)


def _most_votes(votes: Counter[pa.DataType]) -> pa.DataType | None:
    """The type of most votes; None without a type that has values in all places.

    A type with nulls alone, or with such a type inside, counts for the types that have values in its place.
    """
    partial = [kind for kind in votes if holds_empty(kind)]

    def files_for(kind: pa.DataType) -> int:
        return votes[kind] + sum(votes[each] for each in partial if filled(each, kind) == kind)

    return max((kind for kind in votes if kind not in partial), key=files_for, default=None)


def usual_type(counts: Counter[pa.DataType], share: int | None = _SHARE) -> pa.DataType:
    """The type of a column, from the types inferred in several files (or records), and the number of each.

    Types that can be widened to each other count together. The widest is taken that one in `share` files has; None for
    any.
    """
    families: list[Counter[pa.DataType]] = []
    for kind, files in counts.items():
        if not pa.types.is_null(kind):
            near = next((family for family in families if all(wider(kind, each) is not None for each in family)), None)
            if near is None:
                families.append(near := Counter())
            near[kind] += files
    if not families:
        return pa.null()
    most = max(families, key=Counter.total)
    enough = (kind for kind, files in most.items() if share is None or files * share >= most.total())
    return reduce(lambda one, other: wider(one, other) or one, enough)


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both, where one of the two does, but for a few numbers, which cost their rows:
    whole numbers and floats, dates and times, lists of these, structs with the fields of both. None if neither does.
    """
    if one == other:
        return one
    if is_list(one) and is_list(other):
        item = wider(one.value_type, other.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _wider_struct(one, other)
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    return next((wide for narrow, wide in _WIDER if {narrow, wide} == {one, other}), None)


def _wider_struct(one: pa.StructType, other: pa.StructType) -> pa.DataType | None:
    kinds = {field.name: field.type for field in one}
    for field in other:
        wide = wider(kinds.get(field.name, field.type), field.type)
        if wide is None:
            return None
        kinds[field.name] = wide
    return pa.struct([*kinds.items()])


_WIDER = (
    (pa.int64(), pa.uint64()),
    (pa.int64(), pa.float64()),
    (pa.uint64(), pa.float64()),
    (pa.date32(), pa.timestamp("us")),
)


def without_unseen(schema: pa.Schema, unseen: pa.DataType | None) -> pa.Schema:
    """The schema to read with: a column without values gets the type `unseen`, as in `Description`."""
    if unseen is None:
        return schema
    return pa.schema([field.with_type(unseen) if pa.types.is_null(field.type) else field for field in schema])


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
