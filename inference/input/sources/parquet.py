"""Parquet files: footers for discovery, whole row groups for scoring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from nightjar.inference.arrow_types import value_bytes
from nightjar.inference.errors import (
    InputChanged,
    InputCorrupt,
    Missing,
    SchemaMismatch,
)
from nightjar.inference.input.sources import normalisation
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.local import storage_error
from nightjar.inference.storage.protocol import Storage, is_local
from nightjar.inference.storage.versions import untouched

SUFFIXES = (".parquet", ".pq")
_TEXT_BYTES = 16
"""What a value of no fixed length is taken to be at least."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says of itself: its normalised schema; per row group its rows and its decoded bytes, estimated."""

    schema: pa.Schema
    rows: tuple[int, ...]
    sizes: tuple[int, ...]


def read_footer(storage: Storage, uri: str) -> Footer:
    """A file's footer.

    Raises:
        InputCorrupt: the file is no readable Parquet file.
        StorageError: it is not there, may not be read, or the storage is at fault.
    """
    with _opened(storage, uri) as file:
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        rows = tuple(group.num_rows for group in groups)
        encoded = tuple(group.total_byte_size for group in groups)
        if min((*rows, *encoded), default=0) < 0 or sum(rows) != file.metadata.num_rows:
            raise InputCorrupt(f"{uri}: not a readable Parquet file: its footer contradicts itself on how many rows")
        # Repeated values take next to nothing in a file: its own sizes are no measure of them.
        kinds = (field.type for field in file.schema_arrow)
        width = sum(value_bytes(kind, text=_TEXT_BYTES, items=1, indices=True) for kind in kinds)
        sizes = tuple(max(size, int(count * width)) for size, count in zip(encoded, rows, strict=True))
        return Footer(normalisation.normalised(file.schema_arrow), rows, sizes)


def read_piece(storage: Storage, piece: Piece, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`, in its order, for the piece's rows in file order.

    Raises:
        InputChanged: the file is not the planned one, changed while it was read, or could not be read then.
        InputCorrupt: its bytes cannot be decoded, or hold another number of rows.
        SchemaMismatch: a column is missing or holds values of another type.
        StorageError: the file may not be read, or the storage is at fault.
    """
    _check_unchanged(storage, piece)
    if piece.rows == UNKNOWN:
        read_footer(storage, piece.uri)  # says what is wrong with it, if that is still so
        raise InputChanged(f"{piece.uri}: could not be read when it was planned, and can be now; run again to plan it")
    with _opened(storage, piece.uri) as file:
        _check_columns(piece.uri, file.schema_arrow, schema)
        table = _read_groups(file, list(range(*piece.row_groups)), schema.names)
    _check_unchanged(storage, piece)
    if table.num_rows != piece.rows:
        raise InputCorrupt(f"{piece.uri}: the footer promised {piece.rows} rows, {table.num_rows} could be read")
    return _fitted(piece.uri, table.select(schema.names), schema)


def _read_groups(file: pq.ParquetFile, groups: list[int], columns: list[str]) -> pa.Table:
    try:
        return file.read_row_groups(groups, columns=columns, use_threads=True)
    except pa.ArrowNotImplementedError:
        # A dictionary inside lists or structs is another one in each row group, which no array can hold.
        return pa.concat_tables(_read_group(file, group, columns) for group in groups)


def _read_group(file: pq.ParquetFile, group: int, columns: list[str]) -> pa.Table:
    """One row group, in pieces where its lists and structs hold more text, 2 GiB, than an array can."""
    rows = file.metadata.row_group(group).num_rows
    while True:
        try:
            return pa.Table.from_batches(file.iter_batches(rows, [group], columns))
        except pa.ArrowNotImplementedError:
            if rows == 1:
                raise
            # How long the text of so many rows is, only reading it shows.
            rows = (rows + 1) // 2


def _fitted(uri: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same columns, stored and declared as the schema has them."""
    for field in schema:
        if not field.nullable and table[field.name].null_count:
            raise SchemaMismatch(f"{uri}: column {field.name!r} has nulls, in the other files it is declared without")
    try:
        return table.cast(schema) if table.schema != schema else table
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(f"{uri}: cannot be read as the other files are: {error}") from error


@contextmanager
def _opened(storage: Storage, uri: str) -> Iterator[pq.ParquetFile]:
    try:
        with (
            storage.open(uri) as source,
            pq.ParquetFile(
                source,
                # Fetching ahead pays across a network; on a local disk it is one more copy.
                pre_buffer=not is_local(uri),
                page_checksum_verification=True,
                # Spark's old timestamps: as nanoseconds those after 2262, 9999-12-31 say, would wrap around silently.
                coerce_int96_timestamp_unit="us",
            ) as file,
        ):
            yield file
    except (pa.ArrowMemoryError, pa.ArrowCancelled):
        raise
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputCorrupt(f"{uri}: not a readable Parquet file: {error}") from error
    except OSError as error:
        # Arrow reports undecodable bytes as OSError without an errno; a real I/O error has one.
        if error.errno is not None:
            raise storage_error(error, uri) from error
        raise InputCorrupt(f"{uri}: not a readable Parquet file: {error}") from error


def _check_unchanged(storage: Storage, piece: Piece) -> None:
    try:
        now = storage.stat(piece.uri)
    except Missing:
        raise InputChanged(f"{piece.uri}: deleted since it was planned; run again to plan without it") from None
    if now.size != piece.size or not untouched(now.version, piece.version):
        how = f"size {piece.size} → {now.size}"
        if now.size == piece.size:
            how = "its size is the same"
            how += "; each machine must read the same file, not a copy of its own" if is_local(piece.uri) else ""
        raise InputChanged(f"{piece.uri}: changed since it was planned ({how}); run again to score what it holds now")


def _check_columns(uri: str, found: pa.Schema, wanted: pa.Schema) -> None:
    for name, count in _counts(found.names, wanted.names).items():
        if count != 1:
            raise SchemaMismatch(f"{uri}: column {name!r} is {'missing' if not count else 'there twice'}")
        if normalisation.values(found.field(name).type) != normalisation.values(wanted.field(name).type):
            raise SchemaMismatch(
                f"{uri}: column {name!r} is {found.field(name).type}, "
                f"in the other files it is {wanted.field(name).type}"
            )


def _counts(found: Sequence[str], wanted: Sequence[str]) -> dict[str, int]:
    return {name: found.count(name) for name in wanted}


def read_sample(storage: Storage, piece: Piece, schema: pa.Schema, rows: int, *, last: bool = False) -> pa.Table:
    """The first rows of a piece, or its last ones, at most `rows`, for trying a model out."""
    with _opened(storage, piece.uri) as file:
        _check_columns(piece.uri, file.schema_arrow, schema)
        groups = list(range(*piece.row_groups))
        if last:
            table = _read_groups(file, groups[-1:], schema.names)
            table = table.slice(max(0, table.num_rows - rows))
        else:
            batch = next(file.iter_batches(batch_size=rows, row_groups=groups, columns=schema.names), None)
            table = schema.empty_table() if batch is None else pa.Table.from_batches([batch]).slice(0, rows)
    return _fitted(piece.uri, table.select(schema.names), schema)
