"""The columns of a lake: those that most of its files have, whatever way their writers stored the values.

How values are stored is no reason to refuse a file. pandas, polars, DuckDB and Arrow write the same texts as `string`,
`large_string` or `string_view`. They number a dictionary with as few bits as one file needs, and declare that a column,
or what is inside of it, excludes nulls if a file happens to have none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import itemgetter

import pyarrow as pa
import pyarrow.types as is_

from nightjar.inference import tensors
from nightjar.inference.arrow_types import is_list, list_of

_LARGE = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}

_PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""The plain type that can hold every value of a view type."""


def normalised(schema: pa.Schema) -> pa.Schema:
    """The schema with 32-bit indices in dictionaries, plain types in place of view types, and tensors of Ray's columns
    in types with their shapes.
    """
    schema = tensors.recognised(schema)
    for index, field in enumerate(schema):
        kind = without_views(field.type)
        if is_.is_dictionary(kind):
            kind = pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
        # Types that are equal may name what is inside of a map otherwise: the file's own stays.
        field = field.with_type(kind) if kind != field.type else field
        schema = schema.set(index, field)
    return schema


def without_views(kind: pa.DataType) -> pa.DataType:
    """The type with plain types in place of view types, of which Arrow cannot take or filter values, and with items and
    fields that may be null.
    """
    if is_.is_dictionary(kind):
        return pa.dictionary(kind.index_type, without_views(kind.value_type), kind.ordered)
    if is_.is_list_view(kind) or is_.is_large_list_view(kind):
        return kind
    inner = inside(kind, lambda field: field.with_type(without_views(field.type)).with_nullable(True))
    return _PLAIN.get(kind, inner)


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values, however they are stored. Columns with the same one can be cast to each other."""
    if is_.is_dictionary(kind):
        return value_type(kind.value_type)

    def plain(field: pa.Field) -> pa.Field:
        return field.with_type(value_type(field.type)).with_nullable(True)

    if is_list(kind) and not is_.is_fixed_size_list(kind):
        return pa.list_(plain(kind.value_field))
    if is_.is_map(kind):
        return pa.map_(plain(kind.key_field).with_nullable(False), plain(kind.item_field))
    return _LARGE.get(kind) or inside(kind, plain)


def inside(kind: pa.DataType, field: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """The type with other fields: those of a struct, the items of a list, the keys and items of a map."""
    if is_list(kind):
        return list_of(kind, field(kind.value_field))
    if is_.is_map(kind):
        return pa.map_(field(kind.key_field).with_nullable(False), field(kind.item_field), kind.keys_sorted)
    if is_.is_struct(kind):
        return pa.struct([field(each) for each in kind])
    return kind


def is_empty(kind: pa.DataType) -> bool:
    """Whether a column of this type holds nulls alone."""
    return bool(is_.is_null(value_type(kind)))


def holds_empty(kind: pa.DataType) -> bool:
    """Whether the type, or one in it, has no value but null."""
    inner = (holds_empty(kind.field(index).type) for index in range(kind.num_fields)) if is_.is_nested(kind) else ()
    return is_empty(kind) or any(inner)


def filled(kind: pa.DataType, like: pa.DataType) -> pa.DataType:
    """The type with what is at the same place in `like` in place of null."""
    if is_empty(kind):
        return like
    if is_list(kind) and is_list(like):
        return list_of(kind, kind.value_field.with_type(filled(kind.value_type, like.value_type)))
    if is_.is_map(kind) and is_.is_map(like):
        item = kind.item_field.with_type(filled(kind.item_type, like.item_type))
        return pa.map_(kind.key_field, item, kind.keys_sorted)
    if is_.is_struct(kind) and is_.is_struct(like):
        theirs = {field.name: field.type for field in like}
        return pa.struct([each.with_type(filled(each.type, theirs.get(each.name, each.type))) for each in kind])
    return kind


def decoded(kind: pa.DataType) -> pa.DataType:
    """The type with values in place of dictionaries, which stand for them by number."""
    if is_.is_dictionary(kind):
        return kind.value_type
    return inside(kind, lambda field: field.with_type(decoded(field.type)))


def fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column has values of the wanted type, however they are stored, or none where it has the type null."""
    mine, theirs = value_type(found), value_type(wanted)
    return bool(mine == theirs or filled(mine, theirs) == theirs)


def difference(
    path: str, found: pa.DataType, wanted: pa.DataType
) -> tuple[str, pa.DataType | None, pa.DataType | None]:
    """The first place at which two types of the column `path` differ, and what each has there; None for nothing."""
    if is_.is_struct(found) and is_.is_struct(wanted):
        mine, theirs = ({field.name: field.type for field in kind} for kind in (found, wanted))
        for name in theirs | mine:
            here, there = mine.get(name), theirs.get(name)
            if here is None or there is None:
                return f"{path}.{name}", here, there
            if not fits(here, there):
                return difference(f"{path}.{name}", here, there)
    if is_list(found) and is_list(wanted) and not fits(found.value_type, wanted.value_type):
        return difference(f"{path}[]", found.value_type, wanted.value_type)
    return path, found, wanted


# ---- the columns of most files ------------------------------------------------------------------------------

_WAYS = 1000
"""The most different schemas that are counted, to bound the memory; a lake has few."""

_SHARE = 10
"""A wider type counts if one file of so many has it: 1.5 among whole numbers makes a column of floats, but not if only
one file in a thousand has it, which is then the odd one."""

Join = Callable[[pa.DataType, pa.DataType], pa.DataType | None]
"""The type as which values of both types are read; None if there is none."""


@dataclass
class _Way:
    """A schema, and the number of files that have it."""

    schema: pa.Schema
    files: int = 0


class UsualSchema:
    """Finds the columns that most files have, so that one odd file, even the first, does not decide for the others."""

    def __init__(self) -> None:
        self._ways: dict[pa.Schema, _Way] = {}
        self._unseen: pa.DataType | None = None

    def add(self, schema: pa.Schema, unseen: pa.DataType | None = None) -> None:
        """Count one file. unseen: as in `Source`."""
        key = schema.remove_metadata()
        if key in self._ways or len(self._ways) < _WAYS:
            self._ways.setdefault(key, _Way(schema)).files += 1
            self._unseen = unseen

    def schema(self) -> pa.Schema | None:
        """The columns of most files, each with its usual type."""
        groups = defaultdict[tuple[str, ...], list[_Way]](list)
        for way in self._ways.values():
            groups[tuple(sorted(way.schema.names))].append(way)
        return max(map(self._usual, groups.values()), key=itemgetter(1), default=(None, 0))[0]

    def _usual(self, ways: Sequence[_Way]) -> tuple[pa.Schema, int]:
        """The columns of files that have columns of the same names, and how many of these files can be read so. The
        order is the usual one, as the first file with that order has it.
        """
        orders = Counter[tuple[str, ...]]()
        kinds = defaultdict[str, Counter[pa.DataType]](Counter)
        for way in ways:
            orders[tuple(way.schema.names)] += way.files
            for column in way.schema:
                kinds[column.name][column.type] += way.files
        ((usual, _),) = orders.most_common(1)
        first = next(way.schema for way in ways if tuple(way.schema.names) == usual)
        join, share = (stored_alike, None) if self._unseen is None else (wider, _SHARE)
        types = {name: usual_type(counts, join, share) for name, counts in kinds.items()}
        required = set.intersection(*({field.name for field in way.schema if not field.nullable} for way in ways))
        schema = pa.schema(
            [column.with_type(types[column.name]).with_nullable(column.name not in required) for column in first],
            first.metadata,
        )
        read = (
            way.files
            for way in ways
            if self._unseen is not None or all(fits(each.type, types[each.name]) for each in way.schema)
        )
        return without_unseen(schema, self._unseen), sum(read)


def usual_type(counts: Counter[pa.DataType], join: Join, share: int | None = None) -> pa.DataType:
    """The type of a column, from its types in several files (or records), and the number of each.

    Types that can be joined count together. Of the most frequent ones those are joined that one in `share` files has;
    None for all.
    """
    families: list[Counter[pa.DataType]] = []
    for kind, files in counts.items():
        if not is_.is_null(kind):
            near = next((family for family in families if all(join(kind, each) is not None for each in family)), None)
            if near is None:
                families.append(near := Counter())
            near[kind] += files
    if not families:
        return pa.null()
    most = max(families, key=Counter.total)
    enough = (kind for kind, files in most.items() if share is None or files * share >= most.total())
    # The types of whole values first: the column is stored as one of these.
    return reduce(lambda one, other: join(one, other) or one, sorted(enough, key=holds_empty))


def stored_alike(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """A `Join` of types that files declare: the first one, if both have the same values however they are stored. A type
    with nulls alone inside fits those that have values in their place.
    """
    both = filled(one, other) if holds_empty(one) else one
    return both if fits(other, both) else None


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """A `Join` of types that are inferred: the type that holds the values of both, but for a few numbers, which cost
    their rows: whole numbers and floats, dates and times, lists of these, structs with the fields of both.
    """
    if {one, other} == {pa.date32(), _TIMES}:
        return _TIMES
    ways = [pa.schema([("", kind)]) for kind in (one, other)]
    try:
        return pa.unify_schemas(ways, promote_options="permissive").field(0).type
    except pa.ArrowTypeError:
        return None


_TIMES = pa.timestamp("us")
"""The type of times without a zone where types are inferred. To Arrow it is no wider type of dates."""


def without_unseen(schema: pa.Schema, unseen: pa.DataType | None) -> pa.Schema:
    """The schema to read with: a column without values gets the type `unseen`, as in `Source`."""
    if unseen is None:
        return schema
    return pa.schema([field.with_type(unseen) if pa.types.is_null(field.type) else field for field in schema])
