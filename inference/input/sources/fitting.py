"""Checks that a file has the input's columns, and casts them to the types of the other files, or to the job's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from nightjar.inference import tensors
from nightjar.inference.arrow_types import is_list, is_text, type_name
from nightjar.inference.errors import SchemaMismatch
from nightjar.inference.input.listing import values_of
from nightjar.inference.input.schemas import decoded, difference, filled, fits, is_empty
from nightjar.inference.input.sources.protocol import Description, Source
from nightjar.inference.input.sources.rows import RowsRead, constant
from nightjar.inference.job.input import Input
from nightjar.inference.records import Piece
from nightjar.inference.storage.protocol import Entry, Storage

_MARK = {b"nightjar:declared": b"input.schema"}


class DigitsLost(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow has no types
    """A number, as it would be read, is not what was written."""

    def __init__(self) -> None:
        super().__init__("it would lose digits: declare the column's type in input.schema")


def mark_declared(field: pa.Field) -> pa.Field:
    """The field for a source to read, which says for messages that the job declares its type."""
    return field.with_metadata(_MARK)


def is_declared(field: pa.Field) -> bool:
    """Whether the job declares the field's type: values are then read as the job says."""
    return bool(field.metadata == _MARK)


def expected_type(field: pa.Field) -> str:
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
            raise SchemaMismatch(f"{uri}: column {_difference(found.field(name), wanted.field(name))}")


def _difference(found: pa.Field, wanted: pa.Field) -> str:
    """Says how a column differs; of a long type only the first place that differs."""
    path, here, there = difference(found.name, found.type, wanted.type)
    of = repr(found.name) if path == found.name else f"{found.name!r}: {path}"
    what = "missing" if here is None else type_name(here)
    if there is None:
        wants = "input.schema declares" if is_declared(wanted) else "most of the input has"
        return f"{of} is {what}, {wants} no such field"
    return f"{of} is {what}, {expected_type(wanted.with_type(there))}"


def fitted(uri: str, column: pa.ChunkedArray, field: pa.Field, whose: str) -> pa.ChunkedArray:
    """A file's column in the type of a field. whose: says for the message where this type comes from.

    Raises:
        SchemaMismatch: A value would change.
    """
    try:
        return cast_exactly(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaMismatch(
            f"{uri}: column {field.name!r} is {type_name(column.type)} here, and cannot be read without loss as "
            f"{type_name(field.type)}, which {whose}: {error}"
        ) from error


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
    if fits(column.type, kind):
        return column.cast(kind)
    # Arrow casts neither to nulls nor to a dictionary of numbers, so that nothing could be compared.
    own = filled(decoded(column.type), kind)
    column = column.cast(own) if own != column.type else column
    if is_text(column.type):
        return parsed_exactly(column, kind)
    cast = column.cast(kind)
    # Arrow checks whole numbers, but lets a float lose digits, and a time its hours.
    if not _same(column, cast.cast(column.type)):
        raise pa.ArrowInvalid("a value would change")
    return cast


def parsed_exactly(text: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """What texts say, as a type.

    Raises:
        ArrowInvalid: One says no value of the type, or a number too large for it.
    """
    values = text.cast(kind)
    if is_.is_floating(kind) and (infinite := infinities(values)):
        written = pc.match_substring_regex(text, "^[+-]?inf(inity)?$", ignore_case=True)
        if infinite > pc.sum(written).as_py():
            raise pa.ArrowInvalid("a number is too large")
    return values


def infinities(column: pa.Array | pa.ChunkedArray) -> int:
    """The number of infinite floats, also in lists and structs."""
    kind = column.type
    if is_.is_floating(kind):
        return pc.sum(pc.is_inf(column)).as_py() or 0
    if is_list(kind):
        return infinities(pc.list_flatten(column))
    fields = range(kind.num_fields) if is_.is_struct(kind) else ()
    return sum(infinities(pc.struct_field(column, [at])) for at in fields)


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


_WHOLE = 1 << 53
"""From this number on a float64 does not hold each whole number."""


def is_rounded(whole: int) -> bool:
    """Whether a float64, or its shortest text, which JavaScript writes, is another number than this whole number."""
    try:
        near = float(whole)
    except OverflowError:
        return True
    return int(near) != whole and int(Decimal(repr(near))) != whole


def has_large(column: pa.ChunkedArray | pa.Array) -> bool:
    """Whether there are floats, also in lists and structs, that may have been rounded from whole numbers."""
    kind = column.type
    if is_.is_floating(kind):
        low, high = pc.min_max(column).as_py().values()
        return low is not None and max(-low, high) >= _WHOLE
    if is_list(kind):
        return has_large(pc.list_flatten(column))
    return is_.is_struct(kind) and any(has_large(pc.struct_field(column, [at])) for at in range(kind.num_fields))


def with_declared(given: Input, uri: str, found: Description) -> Description:
    """A file's description with the declared columns: those of its path come last, whether the file has them or not.

    Raises:
        SchemaMismatch: The path does not give a declared column.
    """
    kinds, paths = given.column_types(), values_of(uri, given.partition_types())
    if not kinds and not paths:
        return found
    own = [each.with_type(kinds.get(each.name, each.type)) for each in found.schema if each.name not in paths]
    ours = [pa.field(name, value.type) for name, value in paths.items()]
    return replace(found, schema=pa.schema([*own, *ours], found.schema.metadata))


def read_as(
    storage: Storage,
    source: Source,
    given: Input,
    piece: Piece,
    wanted: pa.Schema,
    read: Callable[[pa.Schema], RowsRead],
) -> RowsRead:
    """The wanted columns of a piece: those of its path, and those of the file in the types of the other files, or of
    the job. read: reads the columns of a schema from the file.

    Raises:
        SchemaMismatch: The path does not give a declared column, or a value cannot be cast.
        InputCorrupt: As in `Source.columns`.
    """
    declared, paths = given.column_types(), values_of(piece.uri, given.partition_types())
    asked, rest = wanted, [each for each in wanted if each.name not in paths]
    if len(rest) < len(wanted) or declared.keys() & set(wanted.names):
        typed = source.unseen is None
        entry = Entry(piece.uri, piece.size, piece.version)
        there = source.columns(storage, entry) if typed or not rest else pa.schema([])
        own = {each.name: each for each in reversed(there)}
        for at, each in enumerate(rest):
            if each.name in declared:
                # The type is the file's own; the column is the one that was planned.
                rest[at] = own.get(each.name, each).with_metadata(each.metadata) if typed else mark_declared(each)
        # A table without columns has no rows: if all wanted columns come from the path, one of the file is read, too.
        asked = pa.schema(rest or sorted(there, key=_may_fail)[:1])
    found = read(asked)
    table = tensors.shaped(found.table)
    columns = []
    for field in wanted:
        if field.name in paths:
            column = constant(paths[field.name], table.num_rows)
        else:
            whose = "input.schema declares" if field.name in declared else "most of the input has"
            column = fitted(piece.uri, table[field.name], field, whose)
        if not field.nullable and column.null_count:
            raise SchemaMismatch(
                f"{piece.uri}: column {field.name!r} has nulls, in the other files it is declared without"
            )
        columns.append(column)
    return replace(found, table=pa.Table.from_arrays(columns, schema=wanted))


def _may_fail(column: pa.Field) -> bool:
    """Whether a row of a file without types might be lost for a value of this column, which nobody asked for."""
    return not is_text(column.type)
