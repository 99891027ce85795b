"""Columns that the job declares: `input.partitions`, from a file's path, and `input.schema`, with types of the job's.

A source knows nothing of them. It is asked for other columns, of which the job's columns are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference import tensors
from nightjar.inference.arrow_types import is_text, value_bytes
from nightjar.inference.errors import SchemaMismatch
from nightjar.inference.input.partitions import constant, values_of
from nightjar.inference.input.sources.fitting import cast_exactly, fitted, marked
from nightjar.inference.input.sources.protocol import Description, Source
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.job.input import Input
from nightjar.inference.job.outputtypes import type_name
from nightjar.inference.storage.protocol import Entry, Storage


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


@dataclass(frozen=True)
class Asked:
    """What a source is asked for, so that `made` makes the columns of `wanted` of it.

    paths: the values of the wanted columns that come from the path. cast: the wanted columns whose types the file does
    not have.
    """

    uri: str
    wanted: pa.Schema
    schema: pa.Schema
    paths: Mapping[str, pa.Scalar] = field(default_factory=dict)
    cast: frozenset[str] = frozenset()

    def made(self, read: RowsRead) -> RowsRead:
        """The wanted columns, from the rows that the source read.

        Raises:
            SchemaMismatch: A value cannot be cast, or is not the one in the path.
        """
        table = tensors.shaped(read.table) if self.cast else read.table
        for name in self.cast:
            at, wanted = table.column_names.index(name), self.wanted.field(name)
            table = table.set_column(at, wanted, self._cast(table.column(at), wanted))
        for name, value in self.paths.items():
            column = constant(value, table.num_rows)
            if name in table.column_names:
                self._check_same(name, table[name], value, read)
                table = table.set_column(table.column_names.index(name), name, column)
            else:
                table = table.append_column(name, column)
        table = fitted(self.uri, table, self.wanted)
        if self.schema is not self.wanted:
            # What a source was told of a column for its messages ends here.
            table = pa.Table.from_arrays(table.columns, schema=self.wanted)
        return replace(read, table=table)

    def _cast(self, column: pa.ChunkedArray, wanted: pa.Field) -> pa.ChunkedArray:
        try:
            return cast_exactly(column, wanted.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise SchemaMismatch(
                f"{self.uri}: column {wanted.name!r} is {type_name(column.type)} here, and cannot be read without "
                f"loss as {type_name(wanted.type)}, which input.schema declares: {error}"
            ) from error

    def _check_same(self, name: str, column: pa.ChunkedArray, value: pa.Scalar, read: RowsRead) -> None:
        """Check that a column which the file has, too, has the value of the path in each row."""
        said = f"{self.uri}: column {name!r} comes from the path (input.partitions), and the file has it, too"
        try:
            found = cast_exactly(column, value.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatch(f"{said}, as {type_name(column.type)} and not {type_name(value.type)}") from error
        same = pc.is_null(found) if not value.is_valid else pc.fill_null(pc.equal(found, value), False)
        # A row that cannot be read has only nulls, and fails by itself.
        for at in pc.indices_nonzero(pc.invert(same)).to_pylist():
            if at not in read.failures:
                raise SchemaMismatch(f"{said}, with another value: {found[at]}, where the path says {value}")


def asked(storage: Storage, source: Source, given: Input, entry: Entry, wanted: pa.Schema) -> Asked:
    """What to ask a source for, to read the wanted columns of a file.

    Raises:
        SchemaMismatch: The path does not give a declared column.
        InputCorrupt: As in `Source.columns`.
    """
    kinds = {name for name in given.column_types() if name in wanted.names}
    paths = {
        name: value for name, value in values_of(entry.uri, given.partition_types()).items() if name in wanted.names
    }
    if not kinds and not paths:
        return Asked(entry.uri, wanted, wanted)
    found = source.columns(storage, entry) if paths or source.typed else pa.schema([])
    own = {each.name: each for each in reversed(found)}
    fields = []
    for each in wanted:
        if each.name in paths:
            fields += [own[each.name]] if each.name in own else []
        elif each.name in kinds:
            # The type is the file's own; the column is the one that was planned.
            mine = own.get(each.name, each).with_metadata(each.metadata) if source.typed else marked(each)
            fields.append(mine)
        else:
            fields.append(each)
    # A table without columns has no rows: where all wanted columns come from the path, one of the file's is read, too.
    schema = pa.schema(fields or sorted(found, key=_width if source.typed else _may_fail)[:1])
    return Asked(entry.uri, wanted, schema, paths, frozenset(kinds if source.typed else ()))


def _width(column: pa.Field) -> float:
    """How much it costs to read a column, compared with others of the file."""
    return value_bytes(column.type, text=1 << (20 if pa.types.is_binary(column.type) else 10), items=1 << 10)


def _may_fail(column: pa.Field) -> bool:
    """Whether a row of an untyped file might be lost for a value of this column, which nobody asked for."""
    return not is_text(column.type)
