"""JSON lines: each line is one object and one row. Blank lines are not counted.

A unit is a range of bytes of a large file, and has the lines that begin in it. A small or a compressed file is one
unit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pyarrow as pa
import pyarrow.json as pj

from nightjar.inference.errors import InputCorrupt, SchemaMismatch
from nightjar.inference.input.sources import normalisation
from nightjar.inference.input.sources.protocol import Description, FileSource
from nightjar.inference.messages import clip
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Entry, Storage

_SAMPLE_BYTES = 1 << 20
"""The lines that begin in this many bytes decide a file's columns, because discovery must not read the whole lake."""

_UNIT_BYTES = 64 << 20
"""Bytes per unit: a larger file is cut at multiples of this, so that several actors can score it.

Do not change it: plans name units by their numbers. With another size a unit would have other lines; the count of lines
would show it, and the shards of unfinished runs would fail."""

_BLOCK_BYTES = 8 << 20
"""Bytes that are parsed at once, plus the rest of the last line. It bounds the memory for text and values together."""

_EXPANDED = 8
"""The assumed ratio of a compressed file's decoded size to its size."""

_COMPRESSIONS = {"": None, ".gz": "gzip", ".zst": "zstd"}


class JsonLines(FileSource):
    """The source of JSON lines.

    Numbers are int64 or double, and a text that looks like a time stays text. Keys that are not columns of the job are
    left out; a key that a record lacks is null.
    """

    name = "JSON lines"
    suffixes = tuple(kind + packed for kind, packed in product((".jsonl", ".ndjson"), _COMPRESSIONS))

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """The columns come from the beginning. Rows are counted if the file is large, or is no longer than the
        beginning.
        """
        schema, read = _beginning(storage, entry.uri)
        if _compression(entry.uri):
            return Description(schema, (UNKNOWN,), (entry.size * _EXPANDED,))
        if entry.size <= _UNIT_BYTES:
            return Description(schema, (read if entry.size <= _SAMPLE_BYTES else UNKNOWN,), (entry.size,))
        starts = range(0, entry.size, _UNIT_BYTES)
        with _opened(storage, entry.uri) as file:
            rows = tuple(sum(map(_records, _blocks(file, low, low + _UNIT_BYTES, _BLOCK_BYTES))) for low in starts)
        return Description(schema, rows, tuple(min(_UNIT_BYTES, entry.size - low) for low in starts))

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema) -> pa.Table:
        """A column is missing if no record has it; in a file of several units, if no record in its beginning has it."""
        schema = normalisation.admitting(schema, set())
        tables, absent = [schema.empty_table()], set(schema.names)
        for where, line, block in _of_piece(storage, piece, _BLOCK_BYTES):
            tables.append(table := _parsed(where, line, block, schema))
            absent -= {name for name in absent if table[name].null_count < len(table) or _has_key(block, name)}
        if _in_units(piece):
            absent = set(schema.names) - set(_beginning(storage, piece.uri)[0].names)
        if absent and any(map(len, tables)):
            raise _missing(piece.uri, schema, absent)
        return pa.concat_tables(tables)

    def sample(
        self, storage: Storage, piece: Piece, schema: pa.Schema, rows: int, *, last: bool
    ) -> tuple[pa.Table, int]:
        """The last rows cost reading the whole piece. If a file's rows are not counted, only `read` finds missing
        columns.
        """
        if last:
            table = self.read(storage, piece, schema)
            before = max(0, table.num_rows - rows)
            return table.slice(before), before
        if piece.rows != UNKNOWN and (absent := set(schema.names) - set(_beginning(storage, piece.uri)[0].names)):
            raise _missing(piece.uri, schema, absent)
        schema = normalisation.admitting(schema, set())
        tables = [schema.empty_table()]
        for found in _of_piece(storage, piece, _SAMPLE_BYTES):
            tables.append(_parsed(*found, schema))
            if sum(map(len, tables)) >= rows:
                break
        return pa.concat_tables(tables).slice(0, rows), 0


SOURCE = JsonLines()


def _compression(uri: str) -> str | None:
    return next((codec for end, codec in _COMPRESSIONS.items() if end and uri.lower().endswith(end)), None)


def _in_units(piece: Piece) -> bool:
    return not _compression(piece.uri) and piece.size > _UNIT_BYTES


@contextmanager
def _opened(storage: Storage, uri: str) -> Iterator[pa.NativeFile]:
    with storage.open(uri) as file:
        codec = _compression(uri)
        if codec is None:
            yield file
            return
        with pa.CompressedInputStream(file, codec) as unpacked:
            yield unpacked


def _of_piece(storage: Storage, piece: Piece, size: int) -> Iterator[tuple[str, int, bytes]]:
    """The piece's lines in blocks: a text for where the lines are counted from, the block's first line, and the
    block.
    """
    low, high = (bound * _UNIT_BYTES for bound in piece.row_groups) if _in_units(piece) else (0, None)
    where, line = f"{piece.uri}, from byte {low} on" if low else piece.uri, 1
    with _opened(storage, piece.uri) as file:
        for block in _blocks(file, low, high, size):
            yield where, line, block
            line += block.count(b"\n")


def _blocks(file: pa.NativeFile, low: int, high: int | None, size: int) -> Iterator[bytes]:
    """Yield the whole lines that begin at bytes [low, high) of a file, about `size` bytes at once."""
    at, held = max(0, low - 1), b""  # the byte before `low` tells whether a line begins there
    if low:
        file.seek(at)
    skipping = low > 0
    while data := file.read(size):
        held += data
        if skipping:
            begin = held.find(b"\n") + 1
            at, held, skipping = at + (begin or len(held)), held[begin:] if begin else b"", not begin
            if skipping:
                continue
        if high is not None and at >= high:
            return
        if high is not None and at + len(held) >= high:
            end = held.find(b"\n", high - 1 - at) + 1
            if end:
                yield held[:end]
                return
        elif end := held.rfind(b"\n") + 1:
            yield held[:end]
            at, held = at + end, held[end:]
    if held:
        yield held


def _records(block: bytes) -> int:
    return sum(1 for line in block.split(b"\n") if line.strip())


def _beginning(storage: Storage, uri: str) -> tuple[pa.Schema, int]:
    """The columns and the number of the records that begin in the first bytes of a file.

    Raises:
        InputCorrupt: A line is not a record, or a column's values are of several types.
    """
    with _opened(storage, uri) as file:
        block = b"".join(_blocks(file, 0, _SAMPLE_BYTES, _SAMPLE_BYTES))
    table = _parsed(uri, 1, block, None) if block else pa.table({})
    return pa.schema([field.with_type(_plain(field.type)) for field in table.schema]), table.num_rows


def _plain(kind: pa.DataType) -> pa.DataType:
    """Replace timestamps by text: JSON has no times, and where Arrow saw a time, the next text may not be one."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_plain(each.type)) for each in kind])
    return kind


def _parsed(where: str, line: int, block: bytes, schema: pa.Schema | None) -> pa.Table:
    """Parse a block of whole lines. where, line: of its first line, for messages. schema: None to infer it.

    Raises:
        InputCorrupt: A line is not a record.
        SchemaMismatch: A value is not of its column's type.
    """
    try:
        block.decode()
    except UnicodeDecodeError as error:
        number = line + block.count(b"\n", 0, error.start)
        raise InputCorrupt(f"{where}: line {number} is not UTF-8 text: {error.reason}") from error
    try:
        table = _read(block, schema)
    except pa.ArrowInvalid as error:
        raise _fault(where, line, block, schema, error) from error
    if table.num_rows != _records(block):
        raise _no_record(where, line, block) or InputCorrupt(
            f"{where}: {table.num_rows} rows were read from another number of lines"
        )
    return table


def _read(block: bytes, schema: pa.Schema | None) -> pa.Table:
    return pj.read_json(
        pa.BufferReader(block),
        pj.ReadOptions(block_size=len(block) + 1),
        pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore" if schema else "infer"),
    )


def _fault(
    where: str, line: int, block: bytes, schema: pa.Schema | None, error: pa.ArrowInvalid
) -> InputCorrupt | SchemaMismatch:
    """Find the first line of a block that cannot be parsed, and say what is wrong with it."""
    if (found := _no_record(where, line, block)) is not None:
        return found
    lines = block.split(b"\n")
    good, bad = 0, len(lines)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _read(b"\n".join(lines[:middle]) + b"\n", schema)
        except pa.ArrowInvalid as earlier:
            bad, error = middle, earlier
        else:
            good = middle
    at = f"{where}: line {line + bad - 1}"
    for field in schema or ():
        value = json.loads(lines[bad - 1]).get(field.name)
        if not _holds(field, value):
            said = clip(json.dumps(value))
            return SchemaMismatch(f"{at}: column {field.name!r} holds {said}, in the other files it is {field.type}")
    return InputCorrupt(f"{at}: not readable: {error}")


def _holds(field: pa.Field, value: object) -> bool:
    """Whether a column can hold a value."""
    try:
        _read(json.dumps({field.name: value}).encode(), pa.schema([field]))
    except pa.ArrowInvalid:
        return False
    return True


def _no_record(where: str, line: int, block: bytes) -> InputCorrupt | None:
    """The error of the first line that is not one JSON object, if there is such a line."""
    for number, text in enumerate(block.split(b"\n"), line):
        try:
            record = json.loads(text) if text.strip() else {}
        except ValueError as error:
            return InputCorrupt(f"{where}: line {number} is not a JSON object: {error}")
        if not isinstance(record, dict):
            return InputCorrupt(f"{where}: line {number} is not a JSON object, but {clip(json.dumps(record))}")
    return None


def _has_key(block: bytes, name: str) -> bool:
    return any(name in json.loads(line) for line in block.split(b"\n") if line.strip())


def _missing(uri: str, schema: pa.Schema, absent: set[str]) -> SchemaMismatch:
    name = next(name for name in schema.names if name in absent)
    return SchemaMismatch(f"{uri}: column {name!r} is missing: no record has it")
