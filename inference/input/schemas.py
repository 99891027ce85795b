"""The columns of a lake: those that most of its files have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce

import pyarrow as pa

from nightjar.inference.arrow_types import is_list
from nightjar.inference.input.sources import normalisation
from nightjar.inference.input.sources.normalisation import filled, holds_empty

_KINDS = 100
"""The most different schemas that are counted, to bound the memory; a lake has few."""

_SHARE = 10
"""A wider type counts if one file of so many has it: 1.5 among whole numbers makes a column of floats, but not if only
one file in a thousand has it, which is then the odd one."""


class UsualSchema:
    """Finds the columns that most files have, so that one odd file, even the first, does not decide for the others."""

    def __init__(self) -> None:
        self._seen: list[_Alike | _Inferred] = []

    def add(self, schema: pa.Schema, unseen: pa.DataType | None = None) -> None:
        """Count one file. unseen: as in `Description`."""
        if any(known.add_equal(schema) for known in self._seen):
            return
        if unseen is not None:
            if not any(known.add_named(schema) for known in self._seen) and len(self._seen) < _KINDS:
                self._seen.append(_Inferred(schema, unseen))
            return
        columns = pa.schema(sorted(normalisation.columns(schema), key=lambda each: each.name))
        if any(known.add_alike(schema, columns) for known in self._seen):
            return
        if len(self._seen) < _KINDS:
            self._seen.append(_Alike(schema, columns))

    def schema(self) -> pa.Schema | None:
        """The schema of most files, as the first of them stores it. A column excludes nulls if it does in each file."""
        if not self._seen:
            return None
        files = [each.files + sum(other.files for other in self._seen if each.takes_in(other)) for each in self._seen]
        usual = self._seen[files.index(max(files))]
        return usual.schema([other for other in self._seen if usual.takes_in(other)])


class _Counted:
    """Files that count together. Each way to write them is a schema, with the number of its files."""

    def __init__(self, schema: pa.Schema) -> None:
        self.files = 1
        self._ways: list[tuple[pa.Schema, int]] = [(schema, 1)]

    def add_equal(self, schema: pa.Schema) -> bool:
        """Count a file if its schema equals one seen before. This is the fast path, for most of a million files."""
        for index, (way, files) in enumerate(self._ways):
            if way.equals(schema):
                self._ways[index] = (way, files + 1)
                self.files += 1
                return True
        return False

    def _add(self, schema: pa.Schema) -> None:
        self.files += 1
        if len(self._ways) < _KINDS:
            self._ways.append((schema, 1))


class _Alike(_Counted):
    """Files with the same columns, in whatever order, and however each writer stored and declared them.

    Files with a column of the type null are apart. They count for files whose columns have all types.
    """

    def __init__(self, schema: pa.Schema, columns: pa.Schema) -> None:
        super().__init__(schema)
        self._columns = columns
        self._partial = any(map(holds_empty, columns.types))
        self._required = normalisation.without_nulls(schema)

    def add_alike(self, schema: pa.Schema, columns: pa.Schema) -> bool:
        """Count a file if its columns are the same. columns: sorted by their names."""
        if self._partial != any(map(holds_empty, columns.types)) or not self._agrees(columns):
            return False
        self._columns = _filled(self._columns, columns)
        self._required &= normalisation.without_nulls(schema)
        self._add(schema)
        return True

    def add_named(self, schema: pa.Schema) -> bool:
        """Types that are declared are never reconciled with types that are inferred."""
        return False

    def takes_in(self, other: _Alike | _Inferred) -> bool:
        """Whether the other files count for these, whose columns have all types."""
        return isinstance(other, _Alike) and other._partial and not self._partial and self._agrees(other._columns)

    def _agrees(self, columns: pa.Schema) -> bool:
        """Whether the columns are the same, but for those of the type null."""
        mine = self._columns
        if mine.equals(columns):
            return True
        return bool(mine.names == columns.names and _filled(mine, columns).equals(_filled(columns, mine)))

    def schema(self, taken_in: Sequence[_Alike | _Inferred]) -> pa.Schema:
        """The schema of the first file with the usual order. taken_in: other files that count for these."""
        ways, orders = [way for way, _ in self._ways], Counter[tuple[str, ...]]()
        for way, files in self._ways:
            orders[tuple(way.names)] += files
        usual, _ = orders.most_common(1)[0]
        first = next(way for way in ways if tuple(way.names) == usual)
        for way in (*ways, self._columns) if self._partial else ():
            first = _filled(first, way)
        required = self._required.intersection(*(each._required for each in taken_in if isinstance(each, _Alike)))
        return normalisation.admitting(first, required)


def _filled(columns: pa.Schema, like: pa.Schema) -> pa.Schema:
    """The columns with the types that they have in `like` in place of null."""
    theirs = dict(zip(like.names, like.types, strict=True))
    return pa.schema([each.with_type(filled(each.type, theirs[each.name])) for each in columns], columns.metadata)


class _Inferred(_Counted):
    """Files with columns of the same names, whose types were inferred from values. Each column is decided by itself."""

    def __init__(self, schema: pa.Schema, unseen: pa.DataType) -> None:
        super().__init__(schema)
        self._unseen = unseen
        self._names = frozenset(schema.names)

    def add_alike(self, schema: pa.Schema, columns: pa.Schema) -> bool:
        """As `_Alike.add_named`."""
        return False

    def add_named(self, schema: pa.Schema) -> bool:
        """Count a file if its columns have the same names, in any order."""
        if self._names != frozenset(schema.names):
            return False
        self._add(schema)
        return True

    def takes_in(self, other: _Alike | _Inferred) -> bool:
        """As `_Alike.takes_in`."""
        return False

    def schema(self, taken_in: Sequence[_Alike | _Inferred]) -> pa.Schema:
        """As `_Alike.schema`."""
        first, _ = self._ways[0]
        usual = pa.schema([field.with_type(self._usual_type(field.name)) for field in first])
        return without_unseen(usual, self._unseen)

    def _usual_type(self, name: str) -> pa.DataType:
        counts = Counter[pa.DataType]()
        for way, files in self._ways:
            counts[way.field(name).type] += files
        return usual_type(counts)


def usual_type(counts: Counter[pa.DataType]) -> pa.DataType:
    """The type of a column, from the types inferred in several files, and the number of files of each.

    Types that can be widened to each other count together; the widest that enough files have is taken.
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
    enough = (kind for kind, files in most.items() if files * _SHARE >= most.total())
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
