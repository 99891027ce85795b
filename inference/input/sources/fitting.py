"""Checks that a file has the input's columns, and casts them to the types of the other files, or to the job's own."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from nightjar.inference import tensors
from nightjar.inference.arrow_types import is_list, is_text
from nightjar.inference.errors import SchemaMismatch
from nightjar.inference.input.sources import normalisation
from nightjar.inference.input.sources.inside import decoded, difference, filled, fits, is_empty
from nightjar.inference.job.outputtypes import type_name

_MARK = {b"nightjar:declared": b"input.schema"}


def marked(field: pa.Field) -> pa.Field:
    """The field for a source to read, which says for messages that the job declares its type."""
    return field.with_metadata(_MARK)


def is_declared(field: pa.Field) -> bool:
    """Whether the job declares the field's type: values are then read as the job says."""
    return bool(field.metadata == _MARK)


def told(field: pa.Field) -> str:
    """Says for messages which type a column should have, and why."""
    if is_declared(field):
        return f"input.schema declares {type_name(field.type)}"
    return f"in most of the input it is {type_name(field.type)}"


def check_columns(uri: str, found: pa.Schema, wanted: pa.Schema) -> None:
    """Check that a file has each wanted column once, with values of its type or with nulls alone.

    Raises:
        SchemaMismatch: It has not.
    """
    found = tensors.recognised(found)
    for name in wanted.names:
        if (count := found.names.count(name)) != 1:
            raise SchemaMismatch(f"{uri}: column {name!r} is {'missing' if not count else 'there twice'}")
        if not fits(found.field(name).type, wanted.field(name).type):
            raise SchemaMismatch(f"{uri}: column {_said(found.field(name), wanted.field(name))}")


def _said(found: pa.Field, wanted: pa.Field) -> str:
    """Says how a column differs; of a long type only the first place that differs."""
    path, here, there = difference(found.name, found.type, wanted.type)
    of = repr(found.name) if path == found.name else f"{found.name!r}: {path}"
    what = "missing" if here is None else type_name(here)
    if there is None:
        wants = "input.schema declares" if is_declared(wanted) else "most of the input has"
        return f"{of} is {what}, {wants} no such field"
    return f"{of} is {what}, {told(wanted.with_type(there))}"


def fitted(uri: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast the table to `schema`.

    Raises:
        SchemaMismatch: A column has nulls that the schema excludes, or values that cannot be cast.
    """
    table = tensors.shaped(table.select(schema.names))
    for field in schema:
        if not field.nullable and table[field.name].null_count:
            raise SchemaMismatch(f"{uri}: column {field.name!r} has nulls, in the other files it is declared without")
    table = _with_typed_nulls(table, schema)
    try:
        return table.cast(schema) if table.schema != schema else table
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaMismatch(f"{uri}: cannot be read as the other files are: {error}") from error


def _with_typed_nulls(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns of nulls alone in their types in `schema`: Arrow casts them not to all types."""
    for index, field in enumerate(table.schema):
        if is_empty(field.type):
            table = table.set_column(index, field.name, pa.nulls(table.num_rows, schema.field(index).type))
    return table


def cast_exactly(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a column, if no value changes by it. Text is parsed, and may have been written in several ways.

    Raises:
        ArrowInvalid, ArrowNotImplementedError: A value changes, or there is no such cast.
    """
    if column.type == kind:
        return column
    if isinstance(column.type, pa.FixedShapeTensorType) and isinstance(kind, pa.FixedShapeTensorType):
        return _tensors(column, kind)
    if is_empty(column.type):
        return pa.chunked_array([pa.nulls(len(column), kind)], kind)
    # Arrow casts neither to nulls nor to a dictionary of numbers, so that nothing could be compared.
    own = filled(decoded(column.type), kind)
    column = column.cast(own) if own != column.type else column
    cast = column.cast(kind)
    # Arrow checks whole numbers, but lets a float lose digits, and a time its hours.
    if not is_text(normalisation.values(column.type)) and not _same(column, cast.cast(column.type)):
        raise pa.ArrowInvalid("a value would change")
    return cast


def _tensors(column: pa.ChunkedArray, kind: pa.FixedShapeTensorType) -> pa.ChunkedArray:
    """Arrow casts no tensors, but the lists in which they are stored."""
    if (column.type.shape, column.type.permutation) != (kind.shape, kind.permutation):
        raise pa.ArrowInvalid("tensors of another shape")
    stored = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    cast = cast_exactly(stored, kind.storage_type)
    return pa.chunked_array([pa.ExtensionArray.from_storage(kind, chunk) for chunk in cast.chunks], kind)


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Whether two columns of one type, with nulls in the same rows, have the same values. NaN equals NaN."""
    if one.equals(other):
        return True
    if is_.is_float16(one.type):
        return _same(one.cast(pa.float32()), other.cast(pa.float32()))
    if is_.is_floating(one.type):
        equal = pc.or_(pc.equal(one, other), pc.and_(pc.is_nan(one), pc.is_nan(other)))
        return bool(pc.all(equal, min_count=0).as_py())
    if is_list(one.type):
        return _same(pc.list_flatten(one), pc.list_flatten(other))
    if is_.is_struct(one.type):
        names = (field.name for field in one.type)
        return all(_same(pc.struct_field(one, name), pc.struct_field(other, name)) for name in names)
    return False
