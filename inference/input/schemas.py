"""The columns of a lake: those that most of its files have."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import itemgetter

import pyarrow as pa

from nightjar.inference.arrow_types import is_list
from nightjar.inference.input.sources import normalisation
from nightjar.inference.input.sources.normalisation import filled, fits, holds_empty

_WAYS = 1000
"""The most different schemas that are counted, to bound the memory; a lake has few."""

_SHARE = 10
"""A wider type counts if one file of so many has it: 1.5 among whole numbers makes a column of floats, but not if only
one file in a thousand has it, which is then the odd one."""


@dataclass
class _Way:
    """A schema, and the number of files that have it. unseen: as in `Source`."""

    schema: pa.Schema
    unseen: pa.DataType | None
    files: int = 0


class UsualSchema:
    """Finds the columns that most files have, so that one odd file, even the first, does not decide for the others."""

    def __init__(self) -> None:
        self._ways: dict[pa.Schema, _Way] = {}

    def add(self, schema: pa.Schema, unseen: pa.DataType | None = None) -> None:
        """Count one file. unseen: as in `Source`."""
        key = schema.remove_metadata()
        if key in self._ways or len(self._ways) < _WAYS:
            self._ways.setdefault(key, _Way(schema, unseen)).files += 1

    def schema(self) -> pa.Schema | None:
        """The columns of most files, each with its usual type. A column excludes nulls if it does in each file."""
        groups = defaultdict[tuple[str, ...], list[_Way]](list)
        for way in self._ways.values():
            groups[tuple(sorted(way.schema.names))].append(way)
        return max(map(_usual, groups.values()), key=itemgetter(1), default=(None, 0))[0]


def _usual(ways: Sequence[_Way]) -> tuple[pa.Schema, int]:
    """The columns of files that have columns of the same names, and how many of these files can be read so.

    The order is the usual one, as the first file with that order has it. Types are the usual ones, column by column.
    """
    unseen, files = ways[0].unseen, sum(way.files for way in ways)
    orders = Counter[tuple[str, ...]]()
    kinds = defaultdict[str, Counter[pa.DataType]](Counter)
    for way in ways:
        orders[tuple(way.schema.names)] += way.files
        for column in way.schema:
            kinds[column.name][column.type] += way.files
    ((usual, _),) = orders.most_common(1)
    first = next(way.schema for way in ways if tuple(way.schema.names) == usual)
    fields = []
    for column in first:
        counts = kinds[column.name]
        fields.append(column.with_type(_declared_type(column.type, counts) if unseen is None else usual_type(counts)))
    required = set.intersection(*({field.name for field in way.schema if not field.nullable} for way in ways))
    schema = normalisation.with_nulls_except(pa.schema(fields, first.metadata), required)
    if unseen is not None:
        return without_unseen(schema, unseen), files
    types = {column.name: column.type for column in schema}
    odd = (way.files for way in ways if not all(fits(each.type, types[each.name]) for each in way.schema))
    return schema, files - sum(odd)


def _declared_type(own: pa.DataType, counts: Counter[pa.DataType]) -> pa.DataType:
    """The type of a column that most files declare, as the first of these stores it. own: that of the first file.

    A type with nulls alone, or with such a type inside, counts for the types that have values in its place.
    """
    votes = Counter[pa.DataType]()
    for kind, files in counts.items():
        votes[normalisation.value_type(kind)] += files
    partial = [kind for kind in votes if holds_empty(kind)]

    def files_for(kind: pa.DataType) -> int:
        return votes[kind] + sum(votes[each] for each in partial if filled(each, kind) == kind)

    usual = max((kind for kind in votes if kind not in partial), key=files_for, default=None)
    if usual is None:
        return reduce(filled, counts, own)
    return next(kind for kind in (own, *counts) if normalisation.value_type(kind) == usual)


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
    """The schema to read with: a column without values gets the type `unseen`, as in `Source`."""
    if unseen is None:
        return schema
    return pa.schema([field.with_type(unseen) if pa.types.is_null(field.type) else field for field in schema])
