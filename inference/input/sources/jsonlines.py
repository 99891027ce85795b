"""JSON lines: each line is one object and one row. Blank lines are not counted."""

from __future__ import annotations

import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from nightjar.inference.arrow_types import type_name
from nightjar.inference.errors import InputCorrupt, SchemaMismatch
from nightjar.inference.input.schemas import inside, usual_type, wider
from nightjar.inference.input.sources import lines
from nightjar.inference.input.sources.fitting import (
    DigitsLost,
    expected_type,
    has_large,
    infinities,
    is_declared,
    is_rounded,
)
from nightjar.inference.input.sources.lines import LineError, in_parts, not_utf8, parsed_rows
from nightjar.inference.input.sources.rows import RowFault, RowsRead, Unreadable
from nightjar.inference.messages import clip
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Storage

_LONG = re.compile(rb"\d{16}")
"""The digits of whole numbers that a float may not hold."""

_DEEPEST = 64
"""The most levels of nesting of a record of which types are inferred: Arrow writes no deeper ones between processes,
and of ten thousands of levels its inference ends the process."""

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
"""A text, which may hold brackets."""


def _parsed(where: str, line: int, block: bytes, schema: pa.Schema, lost: Unreadable) -> pa.Table:
    """Parse a block of whole lines. where, line: of the first. lost: gets unreadable lines, null rows here."""
    numbers, records = _numbered(line, block)

    def failed(row: int, error: LineError) -> None:
        lost.add(row, _fault(f"{where}: line {numbers[row]}", records[row], schema, error), records[row])

    return parsed_rows(records, partial(_together, schema=schema), failed, schema)


def _numbered(line: int, block: bytes) -> tuple[list[int], list[bytes]]:
    """The numbers of a block's records, and the records. line: the number of the block's first line."""
    found = [(number, text) for number, text in enumerate(io.BytesIO(block).readlines(), line) if text.strip()]
    return [number for number, _ in found], [text for _, text in found]


def _together(records: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
    """Raises UnicodeDecodeError or ArrowInvalid if a line is not a record, or a value is not of its column's type."""
    block = b"".join(records)
    block.decode()
    # Arrow takes a line `null` for a row of nulls, and one at the beginning of a block ends the process. It reads on
    # over the end of a line, too: no object does, if each line begins and ends as one.
    surely = block.count(b"}\n{") == len(records) - 1 and _may_be_object(block)
    if not surely and not all(map(_may_be_object, records)):
        raise pa.ArrowInvalid("a line is not an object")
    table = _read(block, schema)
    if table.num_rows != len(records):
        raise pa.ArrowInvalid(f"{table.num_rows} rows were read from {len(records)} lines")
    return table


def _may_be_object(record: bytes) -> bool:
    text = record.removeprefix(lines.BOM).strip()
    return text.startswith(b"{") and text.endswith(b"}")


def _is_too_deep(record: bytes) -> bool:
    if record.count(b"[") + record.count(b"{") <= _DEEPEST:
        return False
    codes = np.frombuffer(_TEXT.sub(b"", record), np.uint8)
    steps = np.isin(codes, [*b"[{"]).astype(int) - np.isin(codes, [*b"]}"])
    return bool(np.cumsum(steps).max(initial=0) > _DEEPEST)


def _read(block: bytes, schema: pa.Schema | None) -> pa.Table:
    if schema is None and any(map(_is_too_deep, block.split(b"\n"))):
        raise pa.ArrowInvalid("nested too deeply")
    asked = None if schema is None else pa.schema([each.with_type(_read_as(each.type)) for each in schema])
    # In this thread: one block is no faster in Arrow's own threads, which may hold it when an error has been raised.
    table = pj.read_json(
        pa.BufferReader(block),
        pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
        pj.ParseOptions(explicit_schema=asked, unexpected_field_behavior="infer" if asked is None else "ignore"),
    )
    if schema is None:
        return table
    if large := [each for each in schema if not is_declared(each) and has_large(table[each.name])]:
        objects = [_object(line) for line in block.split(b"\n") if _LONG.search(line)]
        if any(_loses(each.get(field.name), field.type) for each in objects for field in large):
            raise DigitsLost
    if asked == schema:
        return table
    cast = table.select(schema.names).cast(schema)
    if any(infinities(cast[name]) > infinities(table[name]) for name in schema.names):
        raise pa.ArrowInvalid("a number is too large")
    return cast


@cache
def _refused(kind: pa.DataType) -> str:
    """Why Arrow cannot read values of a type from JSON; empty if it can."""
    try:
        _read(b"{}", pa.schema([("value", kind)]))
    except pa.ArrowNotImplementedError as error:
        return str(error)
    return ""


def _read_as(kind: pa.DataType) -> pa.DataType:
    """The type as which Arrow reads values to cast, also those inside lists and structs: dates and times as text, lists
    of a fixed length as lists, floats as float64, of which none is too large unseen.
    """
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_temporal(kind):
        return pa.string()
    kind = pa.list_(kind.value_field) if pa.types.is_fixed_size_list(kind) else kind
    return inside(kind, lambda field: field.with_type(_read_as(field.type)))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Replace timestamps by text: JSON has no times, and where Arrow saw a time, the next text may not be one."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    return inside(kind, lambda field: field.with_type(_plain(field.type)))


def _loses(value: object, kind: pa.DataType) -> bool:
    """Whether a value of JSON loses digits of a whole number where it is read as a float."""
    if pa.types.is_floating(kind):
        return type(value) is int and is_rounded(value)
    if pa.types.is_list(kind):
        return isinstance(value, list) and any(_loses(each, kind.value_type) for each in value)
    if pa.types.is_struct(kind):
        return isinstance(value, dict) and any(_loses(value.get(each.name), each.type) for each in kind)
    return False


def _fault(at: str, record: bytes, schema: pa.Schema, error: LineError) -> RowFault:
    """Say what is wrong with a record. at: its file and line. error: of the whole line."""
    if isinstance(error, UnicodeDecodeError):
        return not_utf8(at, error)
    if _is_too_deep(record):
        return InputCorrupt(f"{at} cannot be read, and is nested more than {_DEEPEST} levels deep")
    try:
        value = json.loads(record.strip())
    except json.JSONDecodeError as wrong:
        return InputCorrupt(f"{at} is not a JSON object: {wrong.msg} at column {wrong.colno}")
    except ValueError as wrong:
        return InputCorrupt(f"{at} is not a JSON object: {wrong}")
    if not isinstance(value, dict):
        return InputCorrupt(f"{at} is not a JSON object, but {clip(json.dumps(value))}")

    for field in schema:
        held = json.dumps({field.name: value.get(field.name)}).encode()
        try:
            _read(held, pa.schema([field]))
        except pa.ArrowInvalid as wrong:
            column = f"{at}: column {field.name!r} holds {clip(json.dumps(value[field.name]))}"
            if isinstance(wrong, DigitsLost):  # the type of the value by itself may lose them, too
                return SchemaMismatch(f"{column}, {expected_type(field)}; {wrong}")
            return SchemaMismatch(f"{column} ({_kind(held)}), {expected_type(field)}")
    return InputCorrupt(f"{at}: not readable: {error}")


def _kind(record: bytes) -> str:
    """The type that the value of a record's only key has by itself."""
    with suppress(pa.ArrowInvalid):
        return type_name(_plain(_read(record, None).schema.field(0).type))
    return "no type of its own"


def _object(record: bytes) -> dict[str, object]:
    """A record that Arrow has read; empty if Python cannot read it."""
    with suppress(ValueError, RecursionError):
        found: dict[str, object] = json.loads(record)
        return found
    return {}


class JsonLines(lines.TextSource):
    """The source of JSON lines.

    Numbers are int64 or double, and a text that looks like a time stays text. Keys that are no columns, or that the
    type of an object lacks, are left out; a key that a record lacks is null.
    """

    name = "JSON lines"
    suffixes = lines.suffixes(".jsonl", ".ndjson")
    unseen = pa.null()

    def beginning(self, storage: Storage, uri: str) -> tuple[pa.Schema, int]:
        """Records that cannot be read have no say. If values of a column contradict each other, the type of most of
        them is the column's.
        """
        numbers, records = _numbered(1, self.first_lines(storage, uri))
        counts, is_read = defaultdict[str, Counter[pa.DataType]](Counter), False
        first: RowFault | None = None
        for low, high, part in in_parts(records, partial(_together, schema=None)):
            if isinstance(part, pa.Table):
                is_read = True
                for column in part.schema:
                    counts[column.name][_plain(column.type)] += high - low
            elif first is None:
                first = _fault(f"{uri}: line {numbers[low]}", records[low], pa.schema([]), part)
        if first is not None and not is_read:
            raise first
        kinds = {name: usual_type(counted, wider) for name, counted in counts.items()}
        return pa.schema([*kinds.items()]), len(records)

    def count(self, block: bytes) -> int:
        return sum(1 for line in block.split(b"\n") if line.strip())

    def tables(
        self, storage: Storage, piece: Piece, schema: pa.Schema, size: int, lost: Unreadable
    ) -> Iterator[pa.Table]:
        schema = pa.schema([field.with_nullable(True) for field in schema])
        for field in schema:
            if why := _refused(field.type):
                said = f"{piece.uri}: column {field.name!r} cannot be read from JSON, {expected_type(field)}: {why}"
                raise SchemaMismatch(said)
        for where, line, block in self.of_piece(storage, piece, size):
            yield _parsed(where, line, block, schema, lost)

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema, most: int | None = None) -> RowsRead:
        """A column is missing if it has no value, and no record in the beginning of the file has the key."""
        found = super().read(storage, piece, schema, most)
        empty = [name for name in schema.names if found.table[name].null_count == found.table.num_rows]
        if empty and found.readable:
            self._check_there(storage, piece, empty)
        return found

    def check_known(self, storage: Storage, piece: Piece, schema: pa.Schema) -> None:
        """If a file's rows are not counted, its beginning does not tell whether some record has a column."""
        if piece.rows != UNKNOWN:
            self._check_there(storage, piece, schema.names)

    def _check_there(self, storage: Storage, piece: Piece, names: Sequence[str]) -> None:
        known = self.beginning(storage, piece.uri)[0].names
        if absent := [name for name in names if name not in known]:
            raise SchemaMismatch(f"{piece.uri}: column {absent[0]!r} is missing: no record has it")


SOURCE = JsonLines()
