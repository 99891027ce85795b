"""Parquet files. A unit is a row group, and can be divided.

A reader cannot begin inside a row group. So a process that reads a part of one keeps the whole of it for the next part,
unless it is very large: then it decodes what stands before the part each time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_list, row_bytes
from nightjar.inference.errors import InputCorrupt
from nightjar.inference.input.schemas import normalised
from nightjar.inference.input.sources.fitting import check_columns
from nightjar.inference.input.sources.protocol import Description, Source
from nightjar.inference.job.where import Condition
from nightjar.inference.records import Piece
from nightjar.inference.storage.protocol import Entry, Storage, is_local

_KEPT_BYTES = 512 * 1024 * 1024
"""The largest decoded size of a row group that a process keeps in memory for its next part."""

_BATCHES = 64
"""The number of batches in which the rows before a part are decoded, whatever few rows are wanted behind them. The rows
within the first of so many parts of a row group are read without the others."""


class Parquet(Source):
    """The source of Parquet files."""

    name = "Parquet"
    suffixes = (".parquet", ".pq")
    divisible = True

    def __init__(self) -> None:
        self._kept: tuple[object, pa.Table] | None = None
        self._reading = Lock()

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
            width = row_bytes(file.schema_arrow)
            sizes = tuple(_decoded(group, width) for group in groups)
            return Description(normalised(file.schema_arrow), rows, sizes)

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema, most: int | None = None) -> pa.Table:
        with _opened(storage, piece.uri) as file:
            check_columns(piece.uri, file.schema_arrow, schema)
            return _in_the_new_calendar(piece.uri, file, self._read(file, piece, schema.names))

    def _read(self, file: pq.ParquetFile, piece: Piece, columns: list[str]) -> pa.Table:
        begin, end = piece.first_row, piece.first_row + piece.rows
        low, high = piece.row_groups
        edges = list(accumulate((file.metadata.row_group(index).num_rows for index in range(high)), initial=0))
        groups = [index for index in range(low, high) if edges[index] < end and begin < edges[index + 1]]
        if not groups:
            return pa.schema([file.schema_arrow.field(name) for name in columns]).empty_table()
        skip, held = begin - edges[groups[0]], edges[groups[-1] + 1] - edges[groups[0]]
        if (skip, piece.rows) == (0, held):
            return _read_groups(file, groups, columns)
        group = file.metadata.row_group(groups[0])
        # The first rows, as of a sample, are decoded alone.
        is_kept = len(groups) == 1 and (skip + piece.rows) * _BATCHES > held
        if is_kept and _decoded(group, row_bytes(file.schema_arrow)) <= _KEPT_BYTES:
            return self._read_group(file, piece, groups[0], columns).slice(skip, piece.rows)
        return _read_rows(file, groups, columns, skip, piece.rows)

    def parts(self, storage: Storage, piece: Piece, condition: Condition) -> Iterator[Piece]:
        """As `Source.parts`: each row group that the statistics in the footer do not rule out."""
        with storage.open(piece.uri) as source:
            whole = ds.ParquetFileFormat().make_fragment(source)
            # The condition may also be on columns of the path, which the file has not.
            wanted = condition.expression(whole.physical_schema.names)
            # The statistics of dates in the old calendar are in the old calendar, too.
            dated = any(is_.is_temporal(kind) for kind in condition.columns.types)
            if wanted is None or (dated and any(_old_calendars(whole.metadata))):
                yield piece
                return
            groups = {group.id: group.num_rows for group in whole.row_groups}
            try:
                found = {group.id for group in whole.subset(wanted, schema=whole.physical_schema).row_groups}
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
                found = set(groups)  # this file has other types; reading it will say so
        end = piece.first_row + piece.rows
        first = sum(rows for group, rows in groups.items() if group < piece.row_groups[0])
        for group in range(*piece.row_groups):
            low, high = max(first, piece.first_row), min(first + groups[group], end)
            first += groups[group]
            if group in found and low < high:
                yield replace(piece, first_row=low, rows=high - low, row_groups=(group, group + 1))

    def _read_group(self, file: pq.ParquetFile, piece: Piece, group: int, columns: list[str]) -> pa.Table:
        """Read one row group, or take the one read last if it has these columns. Threads that ask at once share it."""
        key = piece.uri, piece.size, piece.version, group
        with self._reading:
            kept = self._kept
            if kept is None or kept[0] != key or not set(columns) <= set(kept[1].column_names):
                self._kept = None  # so that there are never two in memory
                self._kept = kept = key, _read_groups(file, [group], columns)
            return kept[1].select(columns)


SOURCE = Parquet()


# Spark before 3.0 and Hive write dates in the Julian calendar, and mark the file: Arrow would read 1001-01-01 as
# 1001-01-07. Times are refused before 1900 already, because Spark computed their time zones in another way, too.
_SPARK = b"org.apache.spark."


def _old_calendars(metadata: pq.FileMetaData) -> tuple[bool, bool]:
    """Whether plain dates and times, and whether INT96 times, may be in the old calendar.

    Source: Spark's `DataSourceUtils.datetimeRebaseSpec` and `int96RebaseSpec`.
    """
    marks = metadata.metadata or {}
    # A file of Spark before 2.4.6 has no version.
    by_spark = any(name.startswith(_SPARK) for name in marks)
    version = marks.get(_SPARK + b"version", b"")
    hive = marks.get(b"writer.date.proleptic") == b"false"
    return (
        hive or _SPARK + b"legacyDateTime" in marks or (by_spark and version < b"3.0.0"),
        hive or _SPARK + b"legacyINT96" in marks or (by_spark and version < b"3.1.0"),
    )


def _in_the_new_calendar(uri: str, file: pq.ParquetFile, table: pa.Table) -> pa.Table:
    """Return the table that was read of a file.

    Raises:
        InputCorrupt: A column holds a date before 1582-10-15, or a time before 1900, in the old calendar.
    """
    plain, int96 = _old_calendars(file.metadata)
    if not (plain or int96):
        return table
    columns = (file.schema.column(index) for index in range(len(file.schema)))
    stored = {each.path.partition(".")[0] for each in columns if each.physical_type == "INT96"}
    for name in table.column_names:
        chunks = table[name].chunks if (int96 if name in stored else plain) else ()
        for moments in (each for chunk in chunks for each in _moments(chunk)):
            old = dt.date(1582, 10, 15) if is_.is_date(moments.type) else dt.datetime(1900, 1, 1)
            if pc.less(pc.min(moments), pa.scalar(old, moments.type)).as_py():
                raise InputCorrupt(
                    f"{uri}: column {name!r} holds values before {old:%Y-%m-%d} in the calendar of Spark before 3.0, "
                    "in which they are other days: write the file again with Spark 3 or newer and "
                    "spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED (int96RebaseModeInWrite for INT96), or "
                    "leave the column out of the job"
                )
    return table


def _moments(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the dates and times in an array, also those inside lists and structs."""
    kind = array.type
    if is_.is_date(kind) or is_.is_timestamp(kind):
        yield array
    elif is_.is_dictionary(kind):
        yield from _moments(array.dictionary)
    elif is_list(kind):
        yield from _moments(array.flatten())
    elif is_.is_map(kind) or is_.is_struct(kind):
        for inner in (array.keys, array.items) if is_.is_map(kind) else array.flatten():
            yield from _moments(inner)


def _read_groups(file: pq.ParquetFile, groups: list[int], columns: list[str]) -> pa.Table:
    try:
        # By the name "user.id" pyarrow also reads a part of a struct `user`, which is not wanted.
        return file.read_row_groups(groups, columns=columns, use_threads=True).select(columns)
    except pa.ArrowNotImplementedError:
        # A dictionary inside lists or structs differs in each row group, and one array cannot hold several.
        return pa.concat_tables(
            _read_rows(file, [group], columns, 0, file.metadata.row_group(group).num_rows) for group in groups
        )


def _decoded(group: pq.RowGroupMetaData, width: float) -> int:
    """Estimate a row group's bytes in memory: its size in the file is without repeated values. width: of a row."""
    return max(int(group.total_byte_size), int(group.num_rows * width))


def _read_rows(file: pq.ParquetFile, groups: list[int], columns: list[str], skip: int, rows: int) -> pa.Table:
    """Read `rows` rows, or fewer, after the first `skip`; in parts where one array cannot hold all text, 2 GiB."""
    size = max(1, rows, (skip + rows) // _BATCHES)
    while True:
        try:
            schema = file.schema_arrow
            batches = (batch.select(columns) for batch in file.iter_batches(size, groups, columns))
            wanted = pa.schema([schema.field(name) for name in columns])
            return pa.Table.from_batches(_rows(batches, skip, rows), wanted)
        except pa.ArrowNotImplementedError:
            if size == 1:
                raise
            # The length of the text is known only after reading, so halve the rows until they fit.
            size = (size + 1) // 2


def _rows(batches: Iterable[pa.RecordBatch], skip: int, rows: int) -> Iterator[pa.RecordBatch]:
    at = 0
    for batch in batches:
        low, high = max(0, skip - at), min(batch.num_rows, skip + rows - at)
        if low < high:
            yield batch.slice(low, high - low)
        at += batch.num_rows
        if at >= skip + rows:
            return


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
