"""JSON lines: one object a line, each a row. Blank lines are no rows, and do not count.

A unit is a range of bytes of a large file, with the lines that begin in it; a small or a compressed file is one unit.
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
"""A file's columns are told from the lines that begin in so many bytes of it: discovery must not read a whole lake."""

_UNIT_BYTES = 64 << 20
"""A larger file is cut at every so many bytes, so that several actors score it. It is part of what a plan says: with
another number the same unit has other lines, which is found by their count, and fails the shards of unfinished runs."""

_BLOCK_BYTES = 8 << 20
"""So much is parsed at once, and the rest of the last line: it bounds the memory that text and values take together."""

_EXPANDED = 8
"""So many times its size a compressed file is taken to have."""

_COMPRESSIONS = {"": None, ".gz": "gzip", ".zst": "zstd"}


class JsonLines(FileSource):
    """As `protocol.Source`.

    Numbers are int64 or double, and a text that looks like a time stays text. Keys that the job's columns do not have
    are left out; a key that a record lacks is null.
    """

    name = "JSON lines"
    suffixes = tuple(kind + packed for kind, packed in product((".jsonl", ".ndjson"), _COMPRESSIONS))

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Columns from the beginning; rows counted of a large file, and of one that is all beginning."""
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
        """A column is missing that no record has; of a file in units, that none in its beginning has."""
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
        """The last rows cost the whole piece. What a file that is not counted lacks, only `read` tells."""
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
    """The piece's lines in blocks: where and at which line, from there on, a block begins, and the block."""
    low, high = (bound * _UNIT_BYTES for bound in piece.row_groups) if _in_units(piece) else (0, None)
    where, line = f"{piece.uri}, from byte {low} on" if low else piece.uri, 1
    with _opened(storage, piece.uri) as file:
        for block in _blocks(file, low, high, size):
            yield where, line, block
            line += block.count(b"\n")


def _blocks(file: pa.NativeFile, low: int, high: int | None, size: int) -> Iterator[bytes]:
    """The lines that begin at bytes [low, high) of a file, whole, about `size` bytes of them at once."""
    at, held = max(0, low - 1), b""  # the byte before tells whether a line begins at `low`
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
    """The columns of the records that begin in the first bytes of a file, and how many records these are.

    Raises:
        InputCorrupt: a line is no record, or a column's values are of several types.
    """
    with _opened(storage, uri) as file:
        block = b"".join(_blocks(file, 0, _SAMPLE_BYTES, _SAMPLE_BYTES))
    table = _parsed(uri, 1, block, None) if block else pa.table({})
    return pa.schema([field.with_type(_plain(field.type)) for field in table.schema]), table.num_rows


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type with text where Arrow takes a text for a time: JSON has no times, and the next text may be none."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_plain(each.type)) for each in kind])
    return kind


def _parsed(where: str, line: int, block: bytes, schema: pa.Schema | None) -> pa.Table:
    """The records of a block of whole lines. where, line: of its first line, for messages. schema: None to find out.

    Raises:
        InputCorrupt: a line is no record.
        SchemaMismatch: a value is not of its column's type.
    """
    try:
        block.decode()
    except UnicodeDecodeError as error:
        number = line + block.count(b"\n", 0, error.start)
        raise InputCorrupt(f"{where}: line {number} is no UTF-8 text: {error.reason}") from error
    try:
        table = _read(block, schema)
    except pa.ArrowInvalid as error:
        raise _fault(where, line, block, schema, error) from error
    if table.num_rows != _records(block):
        raise _no_record(where, line, block) or InputCorrupt(
            f"{where}: {table.num_rows} rows in other than as many lines"
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
    """What is wrong in a block that cannot be parsed: at the first line up to which it cannot be."""
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
    """The first line that is not one JSON object, if there is one."""
    for number, text in enumerate(block.split(b"\n"), line):
        try:
            record = json.loads(text) if text.strip() else {}
        except ValueError as error:
            return InputCorrupt(f"{where}: line {number} is no JSON object: {error}")
        if not isinstance(record, dict):
            return InputCorrupt(f"{where}: line {number} is no JSON object, but {clip(json.dumps(record))}")
    return None


def _has_key(block: bytes, name: str) -> bool:
    return any(name in json.loads(line) for line in block.split(b"\n") if line.strip())


def _missing(uri: str, schema: pa.Schema, absent: set[str]) -> SchemaMismatch:
    name = next(name for name in schema.names if name in absent)
    return SchemaMismatch(f"{uri}: column {name!r} is missing: no record has it")
