"""JSON lines: each line is one object and one row. Blank lines are not counted.

A unit is a range of bytes of a large file, and has the lines that begin in it. A small or a compressed file is one
unit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.json as pj

from nightjar.inference.errors import InputCorrupt, SchemaMismatch
from nightjar.inference.input.sources import lines, normalisation, packing
from nightjar.inference.input.sources.packing import Reading
from nightjar.inference.messages import clip
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Storage


class JsonLines(lines.TextSource):
    """The source of JSON lines.

    Numbers are int64 or double, and a text that looks like a time stays text. Keys that are not columns of the job are
    left out; a key that a record lacks is null.
    """

    name = "JSON lines"
    suffixes = packing.suffixes(".jsonl", ".ndjson")
    unseen = pa.null()

    def beginning(self, storage: Storage, uri: str) -> tuple[pa.Schema, int]:
        """Raises also if a column's values are of several types."""
        with packing.opened(storage, uri) as file:
            block = b"".join(lines.blocks(file, 0, lines.SAMPLE_BYTES, lines.SAMPLE_BYTES))
        table = _parsed(uri, 1, block, None) if block else pa.table({})
        return pa.schema([field.with_type(_plain(field.type)) for field in table.schema]), table.num_rows

    def units(self, file: Reading, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """As `TextSource.units`."""
        return lines.counted_units(file, size, _records)

    def tables(self, storage: Storage, piece: Piece, schema: pa.Schema, size: int) -> Iterator[pa.Table]:
        """As `TextSource.tables`."""
        schema = normalisation.admitting(schema, set())
        for found in lines.of_piece(storage, piece, size):
            yield _parsed(*found, schema)

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema) -> pa.Table:
        """A column is missing if no record has it; in a file of several units, if no record in its beginning has it."""
        schema = normalisation.admitting(schema, set())
        tables, absent = [schema.empty_table()], set(schema.names)
        for where, line, block in lines.of_piece(storage, piece, lines.BLOCK_BYTES):
            tables.append(table := _parsed(where, line, block, schema))
            absent -= {name for name in absent if table[name].null_count < len(table) or _has_key(block, name)}
        if lines.in_units(piece):
            absent = self._absent(storage, piece, schema)
        if absent and any(map(len, tables)):
            raise _missing(piece.uri, schema, absent)
        return pa.concat_tables(tables)

    def check_known(self, storage: Storage, piece: Piece, schema: pa.Schema) -> None:
        """If a file's rows are not counted, its beginning does not tell whether some record has a column."""
        if piece.rows != UNKNOWN and (absent := self._absent(storage, piece, schema)):
            raise _missing(piece.uri, schema, absent)

    def _absent(self, storage: Storage, piece: Piece, schema: pa.Schema) -> set[str]:
        return set(schema.names) - set(self.beginning(storage, piece.uri)[0].names)


SOURCE = JsonLines()


def _records(block: bytes) -> int:
    return sum(1 for line in block.split(b"\n") if line.strip())


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
    lines.check_utf8(where, line, block)
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
    records = [text + b"\n" for text in block.split(b"\n")]
    bad, error = lines.first_fault(records, partial(_read, schema=schema), error)
    at = f"{where}: line {line + bad}"
    for field in schema or ():
        value = json.loads(records[bad]).get(field.name)
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
