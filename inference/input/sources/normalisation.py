"""Schema normalisation: what of a schema is only how its writer stored the values, and no reason to refuse a file.

pandas, polars, DuckDB and Arrow write the same texts as `string`, `large_string` or `string_view`, number a dictionary
with as few bits as one file needs, and declare a column without nulls wherever a file happens to hold none.
"""

from __future__ import annotations

import pyarrow as pa

_LARGE = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}

PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""The plain type that holds whatever a view type does."""


def normalised(schema: pa.Schema) -> pa.Schema:
    """The schema with every dictionary numbered by 32 bits: the next file, or row group, may have more values."""
    for index, field in enumerate(schema):
        kind = field.type
        if pa.types.is_dictionary(kind) and kind.index_type != pa.int32():
            wide = pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
            schema = schema.set(index, field.with_type(wide))
    return schema


def values(kind: pa.DataType) -> pa.DataType:
    """The type of the values, one for all the ways to store them. Two columns of the same one can be cast."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return values(kind.value_type)
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_list_view(kind) or is_.is_large_list_view(kind):
        return pa.list_(_field(kind.value_field))
    if is_.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field), kind.list_size)
    if is_.is_struct(kind):
        return pa.struct([_field(kind.field(index)) for index in range(kind.num_fields)])
    if is_.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field))
    return _LARGE.get(kind, kind)


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(values(field.type))


def columns(schema: pa.Schema) -> pa.Schema:
    """Names and values of the columns alone: equal for schemas that say the same."""
    return pa.schema([pa.field(field.name, values(field.type)) for field in schema])


def without_nulls(schema: pa.Schema) -> set[str]:
    """The columns that are declared to hold no null."""
    return {field.name for field in schema if not field.nullable}


def admitting(schema: pa.Schema, required: set[str]) -> pa.Schema:
    """The schema in which no columns but these are declared to hold no null."""
    for index, field in enumerate(schema):
        if not field.nullable and field.name not in required:
            schema = schema.set(index, field.with_nullable(True))
    return schema
