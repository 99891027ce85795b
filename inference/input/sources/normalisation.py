"""Schema normalisation: removes differences that come only from how a writer stored the values.

Such differences are no reason to refuse a file. pandas, polars, DuckDB and Arrow write the same texts as `string`,
`large_string` or `string_view`. They number a dictionary with as few bits as one file needs, and declare that a column,
or what is inside of it, excludes nulls if a file happens to have none.
"""

from __future__ import annotations

from collections.abc import Callable

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
        if pa.types.is_dictionary(kind):
            kind = pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
        if kind != field.type:
            schema = schema.set(index, field.with_type(kind))
    return schema


def without_views(kind: pa.DataType) -> pa.DataType:
    """The type with plain types in place of view types, of which Arrow cannot take or filter values, and with items and
    fields that may be null.
    """
    if is_.is_dictionary(kind):
        return pa.dictionary(kind.index_type, without_views(kind.value_type), kind.ordered)
    if is_.is_list_view(kind) or is_.is_large_list_view(kind):
        return kind
    inner = _inside(kind, lambda field: field.with_type(without_views(field.type)).with_nullable(True))
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
    return _LARGE.get(kind) or _inside(kind, plain)


def _inside(kind: pa.DataType, field: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """The type with other fields: those of a struct, the items of a list, the keys and items of a map."""
    if is_list(kind):
        return list_of(kind, field(kind.value_field))
    if is_.is_map(kind):
        return pa.map_(field(kind.key_field).with_nullable(False), field(kind.item_field), kind.keys_sorted)
    if is_.is_struct(kind):
        return pa.struct([field(each) for each in kind])
    return kind


def with_nulls_except(schema: pa.Schema, required: set[str]) -> pa.Schema:
    """The schema in which only the columns `required` are declared to have no nulls."""
    for index, field in enumerate(schema):
        if not field.nullable and field.name not in required:
            schema = schema.set(index, field.with_nullable(True))
    return schema


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
    return _inside(kind, lambda field: field.with_type(decoded(field.type)))


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
