"""Arrow IPC files and streams, and Feather, which is an Arrow IPC file.

A unit of a file is a record batch. A stream has no list of its batches, and is one unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.ipc as ipc

from nightjar.inference.arrow_types import row_bytes, value_bytes
from nightjar.inference.errors import InputCorrupt
from nightjar.inference.input.schemas import normalised
from nightjar.inference.input.sources.fitting import check_columns
from nightjar.inference.input.sources.protocol import Description, Source
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Entry, Storage

_FILE = b"ARROW1"
_STREAM = b"\xff\xff\xff\xff"
_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Arrow(Source):
    """The source of Arrow files and streams."""

    name = "Arrow"
    suffixes = (".arrow", ".feather", ".ipc")

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Of each batch of a file only the narrowest column is read: with it come the batch's rows."""
        with _opened(storage, entry.uri) as file:
            schema = _reader(file, []).schema
            if _is_stream(file):
                return Description(normalised(schema), (UNKNOWN,), (entry.size,))
            reader = _reader(file, [_narrowest(schema)] if len(schema) else [])
            rows = tuple(reader.get_batch(index).num_rows for index in range(reader.num_record_batches))
            width = max(row_bytes(schema), entry.size / max(1, sum(rows)))
            sizes = tuple(int(count * width) for count in rows)
            return Description(normalised(schema), rows, sizes)

    def columns(self, storage: Storage, entry: Entry) -> pa.Schema:
        with _opened(storage, entry.uri) as file:
            return normalised(_reader(file, []).schema)

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema, most: int | None = None) -> pa.Table:
        """Whole record batches. Columns that are not asked for are not read."""
        batches = []
        with _opened(storage, piece.uri) as file:
            found = _reader(file, []).schema
            check_columns(piece.uri, found, schema)
            reader = _reader(file, [found.get_field_index(name) for name in schema.names])
            is_stream, units = isinstance(reader, ipc.RecordBatchStreamReader), range(*piece.row_groups)
            for batch in reader if is_stream else map(reader.get_batch, units):
                # Arrow trusts what the file says of its values: a wrong offset would end the process.
                batch.validate(full=True)
                batches.append(batch)
        return pa.Table.from_batches(batches).select(schema.names) if batches else schema.empty_table()


SOURCE = Arrow()


@contextmanager
def _opened(storage: Storage, uri: str) -> Iterator[pa.NativeFile]:
    """Open a file or a stream.

    Raises:
        InputCorrupt: It is neither, a stream that was cut off, or holds a length that no memory has.
    """
    with storage.open(uri) as file:
        start = _at(file, 0, len(_FILE))
        if start.startswith(_STREAM):
            # Arrow takes a stream that ends between two batches for a whole one.
            if _at(file, max(0, file.size() - len(_STREAM_END)), len(_STREAM_END)) != _STREAM_END:
                raise InputCorrupt(
                    f"{uri}: the end of the stream is missing: it was cut off, or its writer was not closed"
                )
        elif start != _FILE:
            raise InputCorrupt(f"{uri}: is neither an Arrow file nor a stream")
        try:
            yield file
        except pa.ArrowMemoryError as error:
            # Lengths are stored as numbers, and a damaged one may be larger than any memory.
            raise InputCorrupt(f"{uri}: holds a length for which there is not enough memory: {error}") from error


def _at(file: pa.NativeFile, at: int, size: int) -> bytes:
    file.seek(at)
    return bytes(file.read(size))


def _is_stream(file: pa.NativeFile) -> bool:
    return _at(file, 0, len(_STREAM)) == _STREAM


def _reader(file: pa.NativeFile, fields: list[int]) -> ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader:
    opened = ipc.open_stream if _is_stream(file) else ipc.open_file
    file.seek(0)
    return opened(file, options=ipc.IpcReadOptions(included_fields=fields))


def _narrowest(schema: pa.Schema) -> int:
    return min(range(len(schema)), key=lambda at: value_bytes(schema.field(at).type, text=1 << 10, items=1 << 10))
