"""Finds the records of a CSV text, parses blocks of them, and says what is wrong with those that cannot be parsed.

A record ends with a line end that is not inside quotes. A field is quoted if a quote is its first character; in any
other field a quote is a character like any other. This is how Arrow reads, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
from numpy.typing import NDArray

from nightjar.inference.errors import InputCorrupt, SchemaMismatch
from nightjar.inference.input.sources import normalisation
from nightjar.inference.input.sources.csvparsing import Header, converted, inferred_together, read_columns
from nightjar.inference.input.sources.fitting import DigitsLost, expected_type
from nightjar.inference.input.sources.lines import LineError, first_bad, in_parts, not_utf8
from nightjar.inference.input.sources.rows import RowFault, Unreadable, nulls
from nightjar.inference.job.outputtypes import type_name
from nightjar.inference.messages import clip, counted

Offsets = NDArray[np.int64]

_QUOTE, _LF, _CR, _BACKSLASH = b'"\n\r\\'

_BARE = "has a carriage return that no line feed follows: write line ends as \\n or \\r\\n"
_ESCAPED = "has \\\" inside quotes, which ends the field: write a quote twice, in Spark with the option escape='\"'"


class Records:
    """The records of a text that begins with a record.

    ends: the offsets after the line ends outside quotes. unclosed: the offset of a quote that is still open at the end
    of the text, else -1. wrong: the first offset, or -1, at which a record cannot be told from another, and a sentence.
    """

    def __init__(self, text: bytes, delimiter: bytes) -> None:
        self._text = np.frombuffer(text, np.uint8)
        quotes = _quotes(text, self._text, delimiter)
        self.ends: Offsets = _outside(np.flatnonzero(self._text == _LF), quotes) + 1
        self.unclosed = int(quotes[-1]) if len(quotes) % 2 else -1
        wrong = []
        if b"\r" in text:
            returns = np.flatnonzero(self._text == _CR)
            followed = self._text[np.minimum(returns + 1, len(text) - 1)] == _LF
            wrong += [(int(at), _BARE) for at in _outside(returns[~followed], quotes)[:1] if at != len(text) - 1]
        if b'\\"' in text:
            # The end of a field, but for what follows: Spark writes a quote so, unless it is told otherwise.
            ends = quotes[1::2][quotes[1::2] < len(text) - 1]
            ends = ends[self._text[ends - 1] == _BACKSLASH]
            odd = ends[~np.isin(self._text[ends + 1], [delimiter[0], _LF, _CR, _QUOTE])]
            wrong += [(int(at), _ESCAPED) for at in odd[:1]]
        self.wrong = min(wrong, default=(-1, ""))

    def spans(self) -> tuple[Offsets, Offsets]:
        """The offsets at which records begin and end. A blank line is no record; the last one may lack a line end."""
        starts = np.concatenate([np.zeros(1, np.int64), self.ends])
        stops = np.concatenate([self.ends, np.array([len(self._text)], np.int64)])
        there = starts < len(self._text)
        starts, stops = starts[there], stops[there]
        filled = (self._text[starts] != _LF) & (self._text[starts] != _CR)
        return starts[filled], stops[filled]


def _quotes(text: bytes, codes: NDArray[np.uint8], delimiter: bytes) -> Offsets:
    """The offsets of the quotes that begin or end a quoted part of a field, in turn."""
    if b'"' not in text:
        return np.zeros(0, np.int64)
    quotes = np.flatnonzero(codes == _QUOTE)
    opening, closing = quotes[::2], quotes[1::2]
    before = codes[opening[opening > 0] - 1]
    after = codes[closing[closing < len(codes) - 1] + 1]
    begins = (before == delimiter[0]) | (before == _LF) | (before == _QUOTE)
    ends = (after == delimiter[0]) | (after == _LF) | (after == _CR) | (after == _QUOTE)
    if begins.all() and ends.all():
        return quotes
    # A quote stands within a field that is not quoted: then only looking at one field after the other tells.
    fields = re.finditer(rb"(?:\A|(?<=[\n" + re.escape(delimiter) + rb']))"[^"]*(?:""[^"]*)*("|\Z)', text)
    return np.array([at for field in fields for at in (field.start(), field.start(1))[: 1 + bool(field[1])]], np.int64)


def _outside(offsets: Offsets, quotes: Offsets) -> Offsets:
    if not len(quotes):
        return offsets
    outside: Offsets = offsets[np.searchsorted(quotes, offsets) % 2 == 0]
    return outside


def start_after(text: bytes, before: bytes, quoted: bool, delimiter: bytes) -> int | None:
    """The offset of the first line that begins in a text; None for none.

    before: the byte before. quoted: whether the text begins inside quotes; between two quotes the answer may be wrong.
    """
    if not quoted and before == b"\n":
        return 0
    # Any other byte than the delimiter is the inside of a field.
    lead = b'"' if quoted else (before if before == delimiter else b"x")
    ends = Records(lead + text, delimiter).ends
    return int(ends[0]) - 1 if len(ends) else None


UNCLOSED = "opens a quote that is never closed"


class Block:
    """Whole records. where, line: of the first line, for messages. most: the most records that count.

    count: the number of records. Their text goes from the first line to the end of the last record.

    Raises:
        InputCorrupt: A quote is never closed: nobody can tell where the records behind it begin.
    """

    def __init__(self, where: str, line: int, text: bytes, header: Header, most: int | None = None) -> None:
        found = Records(text, header.delimiter)
        self._starts, self._stops = (each[:most] for each in found.spans())
        self.count = len(self._starts)
        self._text = text[: self._stops[-1]] if self.count else text
        self._where, self._line, self._header = where, line, header
        self._wrong = 0 <= found.wrong[0] < len(self._text)
        if 0 <= found.unclosed < len(self._text):
            raise InputCorrupt(f"{self._at(found.unclosed)} {UNCLOSED}")

    def parsed(self, schema: pa.Schema, lost: Unreadable) -> pa.Table:
        """The rows, with the columns of `schema`. lost: gets records that cannot be read; each is a row of nulls."""
        if not self.count:
            return schema.empty_table()
        if not self._wrong:
            with suppress(pa.ArrowInvalid, UnicodeDecodeError):
                return _checked(self._text, self.count, lambda text: converted(text, self._header, schema))
        tables, empty = [], pa.schema([(each.name, normalisation.value_type(each.type)) for each in schema])
        for low, _, part in self._parts(schema):
            if not isinstance(part, pa.Table):
                lost.add(low, self._fault(low, schema, part), self._record(low))
                part = nulls(empty, 1)
            tables.append(part)
        return pa.concat_tables(tables).combine_chunks()

    def inferred(self) -> pa.Schema:
        """The columns, with types from the records that have all fields.

        Raises:
            InputCorrupt: There are records, and none has all fields.
        """
        names = self._header.names
        if not self.count:
            return pa.schema([(name, pa.null()) for name in names])
        if not self._wrong:
            with suppress(pa.ArrowInvalid, UnicodeDecodeError):
                return _checked(self._text, self.count, lambda text: inferred_together(text, self._header)).schema
        as_text = pa.schema([(names[0], pa.string())])
        good, first = [], None
        for low, high, part in self._parts(as_text):
            if isinstance(part, pa.Table):
                good += [self._record(row) for row in range(low, high)]
            elif first is None:
                first = self._fault(low, as_text, part)
        if first is not None and not good:
            raise first
        return inferred_together(b"".join(good), self._header).schema

    def _parts(self, schema: pa.Schema) -> Iterator[tuple[int, int, pa.Table | pa.ArrowInvalid | UnicodeDecodeError]]:
        def parse(records: Sequence[bytes]) -> pa.Table:
            text = b"".join(records)
            if self._wrong and (wrong := Records(text, self._header.delimiter).wrong)[1]:
                raise pa.ArrowInvalid(wrong[1])
            return _checked(text, len(records), lambda text: converted(text, self._header, schema))

        records = [self._record(row) for row in range(self.count)]
        return in_parts(records, parse, _broken(records, self._header))

    def _record(self, row: int) -> bytes:
        return self._text[self._starts[row] : self._stops[row]]

    @cached_property
    def _line_ends(self) -> np.ndarray:
        return np.flatnonzero(np.frombuffer(self._text, np.uint8) == ord("\n"))

    def _at(self, byte: int) -> str:
        return f"{self._where}: line {self._line + int(np.searchsorted(self._line_ends, byte))}"

    def _fault(self, row: int, schema: pa.Schema, error: pa.ArrowInvalid | UnicodeDecodeError) -> RowFault:
        return _fault(self._at(self._starts[row]), self._record(row), self._header, schema, error)


def _broken(records: Sequence[bytes], header: Header) -> dict[int, LineError]:
    """The records that are not UTF-8, or have not as many fields as the header: one look at all of them finds these."""
    found: dict[int, LineError] = {}
    for row, record in enumerate(records):
        try:
            record.decode()
        except UnicodeDecodeError as error:
            found[row] = error
    whole = [row for row in range(len(records)) if row not in found]
    text = b"".join(records[row] for row in whole)

    if b"\r" not in text.replace(b"\r\n", b""):  # else Arrow counts other records
        for row, fields in _field_counts(text, header).items():
            found[whole[row]] = pa.ArrowInvalid(f"{fields} fields")
    return found


def _checked(text: bytes, records: int, parse: Callable[[bytes], pa.Table]) -> pa.Table:
    """Raises UnicodeDecodeError or ArrowInvalid if a record is none, or a value is not of its column's type."""
    text.decode()
    table = parse(text)
    if table.num_rows != records:
        raise pa.ArrowInvalid(f"{table.num_rows} rows were read from {records} records")
    return table


def _fault(
    at: str, record: bytes, header: Header, schema: pa.Schema, error: pa.ArrowInvalid | UnicodeDecodeError
) -> RowFault:
    """Say what is wrong with a record. at: its file and line."""
    if isinstance(error, UnicodeDecodeError):
        return not_utf8(at, error, encodings=True)
    if wrong := Records(record, header.delimiter).wrong[1]:
        return InputCorrupt(f"{at} {wrong}")
    if fields := _field_counts(record, header).get(0, 0):
        said = clip(record.decode().rstrip("\r\n"))
        how = f"; quote a text that holds {header.delimiter.decode()!r}, or use `format: text`, where a line is a row"
        return InputCorrupt(
            f"{at} has {counted(fields, 'field')}, {header.names_from} has {len(header.names)}: {said!r}"
            + how * (fields > len(header.names))
        )
    columns = list(schema)
    bad = first_bad(len(columns), lambda count: converted(record, header, pa.schema(columns[:count])))
    if bad is None:
        return InputCorrupt(f"{at}: not readable: {error}")
    name, lost = columns[bad].name, ""
    try:
        converted(record, header, pa.schema([columns[bad]]))
    except DigitsLost as why:
        lost = f"; {why}"
    except pa.ArrowInvalid:
        pass
    text = read_columns(record, header, {name: pa.string()})[name][0].as_py()
    found = inferred_together(record, header).schema.field(name).type
    return SchemaMismatch(
        f"{at}: column {name!r} holds {clip(text)!r} ({type_name(found)}), {expected_type(columns[bad])}{lost}"
    )


def _field_counts(text: bytes, header: Header) -> dict[int, int]:
    """The number of fields of each record that has not as many as the header, by the record's index."""
    found, first = dict[int, int](), header.names[:1]

    def note(row: pv.InvalidRow) -> str:
        found[row.number - 1] = row.actual_columns
        return "skip"

    if text:
        pv.read_csv(
            pa.BufferReader(text),
            # In one thread, because only then the records are numbered.
            pv.ReadOptions(use_threads=False, column_names=header.names, block_size=len(text) + 1),
            pv.ParseOptions(delimiter=header.delimiter.decode(), newlines_in_values=True, invalid_row_handler=note),
            pv.ConvertOptions(check_utf8=False, include_columns=first, column_types=dict.fromkeys(first, pa.string())),
        )
    return found
