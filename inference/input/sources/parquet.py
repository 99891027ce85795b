"""Parquet files. A unit is a row group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from nightjar.inference.arrow_types import value_bytes
from nightjar.inference.errors import InputCorrupt
from nightjar.inference.input.sources import normalisation
from nightjar.inference.input.sources.fitting import check_columns
from nightjar.inference.input.sources.protocol import Description, FileSource
from nightjar.inference.records import Piece
from nightjar.inference.storage.protocol import Entry, Storage, is_local

_TEXT_BYTES = 16
"""The least number of bytes assumed for a value of no fixed length."""


class Parquet(FileSource):
    """As `protocol.Source`."""

    name = "Parquet"
    suffixes = (".parquet", ".pq")

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Only the footer is read."""
        with _opened(storage, entry.uri) as file:
            groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
            rows = tuple(group.num_rows for group in groups)
            encoded = tuple(group.total_byte_size for group in groups)
            if min((*rows, *encoded), default=0) < 0 or sum(rows) != file.metadata.num_rows:
                raise InputCorrupt(
                    f"{entry.uri}: not a readable Parquet file: its footer contradicts itself on how many rows"
                )
            # Repeated values take almost no space in a file, so the sizes in its footer say little about decoded sizes.
            kinds = (field.type for field in file.schema_arrow)
            width = sum(value_bytes(kind, text=_TEXT_BYTES, items=1, indices=True) for kind in kinds)
            sizes = tuple(max(size, int(count * width)) for size, count in zip(encoded, rows, strict=True))
            return Description(normalisation.normalised(file.schema_arrow), rows, sizes)

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema) -> pa.Table:
        """Whole row groups."""
        with _opened(storage, piece.uri) as file:
            check_columns(piece.uri, file.schema_arrow, schema)
            return _read_groups(file, list(range(*piece.row_groups)), schema.names)

    def sample(
        self, storage: Storage, piece: Piece, schema: pa.Schema, rows: int, *, last: bool
    ) -> tuple[pa.Table, int]:
        """The last rows cost reading their whole row group."""
        with _opened(storage, piece.uri) as file:
            check_columns(piece.uri, file.schema_arrow, schema)
            groups = list(range(*piece.row_groups))
            if last:
                table = _read_groups(file, groups[-1:], schema.names)
                table = table.slice(max(0, table.num_rows - rows))
                return table, piece.rows - table.num_rows
            batch = next(file.iter_batches(batch_size=rows, row_groups=groups, columns=schema.names), None)
            return schema.empty_table() if batch is None else pa.Table.from_batches([batch]).slice(0, rows), 0


SOURCE = Parquet()


def _read_groups(file: pq.ParquetFile, groups: list[int], columns: list[str]) -> pa.Table:
    try:
        return file.read_row_groups(groups, columns=columns, use_threads=True)
    except pa.ArrowNotImplementedError:
        # A dictionary inside lists or structs differs in each row group, and one array cannot hold several.
        return pa.concat_tables(_read_group(file, group, columns) for group in groups)


def _read_group(file: pq.ParquetFile, group: int, columns: list[str]) -> pa.Table:
    """Read one row group, in parts if its lists and structs have more text than one array can hold, 2 GiB."""
    rows = file.metadata.row_group(group).num_rows
    while True:
        try:
            return pa.Table.from_batches(file.iter_batches(rows, [group], columns))
        except pa.ArrowNotImplementedError:
            if rows == 1:
                raise
            # The length of the text is known only after reading, so halve the rows until they fit.
            rows = (rows + 1) // 2


@contextmanager
def _opened(storage: Storage, uri: str) -> Iterator[pq.ParquetFile]:
    with (
        storage.open(uri) as source,
        pq.ParquetFile(
            source,
            # Fetching ahead is faster over a network; on a local disk it is only one more copy.
            pre_buffer=not is_local(uri),
            page_checksum_verification=True,
            # Spark's old timestamps (INT96): in nanoseconds a date after 2262, such as 9999-12-31, would silently wrap.
            coerce_int96_timestamp_unit="us",
        ) as file,
    ):
        yield file
