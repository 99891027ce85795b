"""Checks that a file has the input's columns, and casts them to the types of the other files."""

from __future__ import annotations

import pyarrow as pa

from nightjar.inference import tensors
from nightjar.inference.errors import SchemaMismatch
from nightjar.inference.input.sources import normalisation


def check_columns(uri: str, found: pa.Schema, wanted: pa.Schema) -> None:
    """Check that a file has each wanted column once, with values of its type.

    Raises:
        SchemaMismatch: It has not.
    """
    found = tensors.recognised(found)
    for name in wanted.names:
        if (count := found.names.count(name)) != 1:
            raise SchemaMismatch(f"{uri}: column {name!r} is {'missing' if not count else 'there twice'}")
        if normalisation.values(found.field(name).type) != normalisation.values(wanted.field(name).type):
            raise SchemaMismatch(
                f"{uri}: column {name!r} is {found.field(name).type}, "
                f"in the other files it is {wanted.field(name).type}"
            )


def fitted(uri: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast the table to `schema`.

    Raises:
        SchemaMismatch: A column has nulls that the schema excludes, or values that cannot be cast.
    """
    table = tensors.shaped(table.select(schema.names))
    for field in schema:
        if not field.nullable and table[field.name].null_count:
            raise SchemaMismatch(f"{uri}: column {field.name!r} has nulls, in the other files it is declared without")
    try:
        return table.cast(schema) if table.schema != schema else table
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(f"{uri}: cannot be read as the other files are: {error}") from error
