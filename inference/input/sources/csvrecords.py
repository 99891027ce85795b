"""Finds the records of a CSV text, reads their values, and says what is wrong with those that cannot be read.

A record ends with a line end that is not inside quotes. A field is quoted if a quote is its first character; in any
other field a quote is a character like any other. This is how Arrow reads, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.types as is_
from numpy.typing import NDArray

from nightjar.inference.arrow_types import is_text, type_name
from nightjar.inference.errors import InputCorrupt, SchemaMismatch
from nightjar.inference.input.schemas import value_type
from nightjar.inference.input.sources.fitting import (
    DigitsLost,
    expected_type,
    has_large,
    is_declared,
    is_rounded,
    parsed_exactly,
)
from nightjar.inference.input.sources.lines import in_parts, not_utf8
from nightjar.inference.input.sources.rows import Unreadable
from nightjar.inference.messages import clip, counted

Offsets = NDArray[np.int64]

_QUOTE, _LF, _CR, _BACKSLASH = b'"\n\r\\'

_BARE = "has a carriage return that no line feed follows: write line ends as \\n or \\r\\n"
_ESCAPED = "has \\\" inside quotes, which ends the field: write a quote twice, in Spark with the option escape='\"'"


@dataclass(frozen=True)
class Header:
    """How a file's values are named and written."""

    names: list[str]
    """The names of the columns, in the order of the fields."""

    delimiter: bytes
    """The byte that separates fields."""

    decimal: str
    """What is before the decimals of a number."""

    encoding: str
    """The encoding of the file, for messages."""

    end: int
    """The offset after the header in the file's UTF-8 text, in bytes; without a header line, of the first record."""

    lines: int
    """The lines before `end`, blank ones included."""

    names_from: str = "the header"
    """What gives the columns their names, for messages."""

    def check(self, uri: str, schema: pa.Schema) -> None:
        """Check that the file has these columns, and that text can be read as their types.

        Raises:
            SchemaMismatch: One is missing, or cannot.
        """
        for field in schema:
            if field.name not in self.names:
                known = ", ".join(map(repr, self.names[:20])) + (" …" if len(self.names) > 20 else "")
                raise SchemaMismatch(f"{uri}: column {field.name!r} is missing: {self.names_from} has {known}")
            try:
                typed(pa.nulls(1, pa.string()), value_type(field.type), self.decimal, exact=False)
            except pa.ArrowNotImplementedError as error:
                said = f"{uri}: column {field.name!r} is text in a CSV file, {expected_type(field)}"
                raise SchemaMismatch(said) from error


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
        """The offsets at which records begin and end. A blank line, which is LF, CRLF or a CR that ends the text, is no
        record; the last record may lack a line end.
        """
        starts = np.concatenate([np.zeros(1, np.int64), self.ends])
        stops = np.concatenate([self.ends, np.array([len(self._text)], np.int64)])
        there = starts < len(self._text)
        starts, stops = starts[there], stops[there]
        first, last = self._text[starts], self._text[stops - 1]
        filled = stops - starts > (first == _CR).astype(int) + (last == _LF)
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


def read_columns(text: bytes, header: Header, names: Sequence[str], note: Callable[[pv.InvalidRow], str]) -> pa.Table:
    """Columns of records, as text; an empty field is null. note: told of records with another number of fields."""
    found = pv.read_csv(
        pa.BufferReader(text),
        # Records are numbered in one thread only.
        pv.ReadOptions(use_threads=False, column_names=header.names, block_size=len(text) + 1),
        pv.ParseOptions(delimiter=header.delimiter.decode(), newlines_in_values=True, invalid_row_handler=note),
        pv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=[*names],
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return found.select(names)


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
        self._suspect = 0 <= found.wrong[0] < len(self._text) or not _is_utf8(self._text)
        if 0 <= found.unclosed < len(self._text):
            raise InputCorrupt(f"{self._at(found.unclosed)} {UNCLOSED}")

    def parsed(self, schema: pa.Schema, lost: Unreadable) -> pa.Table:
        """The rows, with the columns of `schema`. lost: gets records that cannot be read; each is a row of nulls."""
        if not self.count:
            return schema.empty_table()
        texts, rows, faults = self._texts(schema.names)
        for row, fault in faults.items():
            lost.add(row, fault, self._record(row))
        bad, columns = {*faults}, []
        for field in schema:
            kind, text = value_type(field.type), texts[field.name].combine_chunks()
            parts = []
            parse = partial(typed, kind=kind, decimal=self._header.decimal, exact=not is_declared(field))
            for low, _, part in in_parts(text, parse):
                if isinstance(part, Exception):
                    if (row := rows[low]) not in bad:
                        lost.add(row, self._other_type(row, field, text[low : low + 1], part), self._record(row))
                    bad.add(row)
                    part = pa.nulls(1, kind)
                parts.append(part)
            columns.append(pa.chunked_array(parts, kind))
        found = pa.table(columns, schema.names)
        if not bad:
            return found
        places = {row: at for at, row in enumerate(rows) if row not in bad}
        return found.take(pa.array(map(places.get, range(self.count)), pa.int64()))

    def inferred(self) -> pa.Schema:
        """The columns, with types from the records that have all fields.

        Raises:
            InputCorrupt: There are records, and none has all fields.
        """
        names = self._header.names
        if not self.count:
            return pa.schema([(name, pa.null()) for name in names])
        texts, rows, faults = self._texts(names)
        if not rows:
            raise faults[0]
        return pa.schema([(name, inferred(texts[name].combine_chunks(), self._header.decimal)) for name in names])

    def _texts(self, names: Sequence[str]) -> tuple[pa.Table, Sequence[int], dict[int, InputCorrupt]]:
        """Columns, as text, of the records that have all fields; these records; and the faults of the others."""
        faults, text, others = dict[int, InputCorrupt](), self._text, dict[int, InputCorrupt]()
        for row in range(self.count) if self._suspect else ():
            at, record = self._at(self._starts[row]), self._record(row)
            try:
                record.decode()
            except UnicodeDecodeError as error:
                faults[row] = not_utf8(at, error, self._header.encoding)
            else:
                if wrong := Records(record, self._header.delimiter).wrong[1]:
                    faults[row] = InputCorrupt(f"{at} {wrong}")
        rows: Sequence[int] = range(self.count)
        if faults:
            rows = [row for row in rows if row not in faults]
            text = b"".join(map(self._record, rows))

        def note(found: pv.InvalidRow) -> str:
            row = rows[found.number - 1]
            others[row] = self._other_fields(row, found.actual_columns)
            return "skip"

        empty = pa.table({name: pa.array([], pa.string()) for name in names})
        table = read_columns(text, self._header, names, note) if rows else empty
        if others:
            faults |= others
            rows = [row for row in rows if row not in others]
        if table.num_rows != len(rows):
            raise pa.ArrowInvalid(f"{table.num_rows} rows were read from {len(rows)} records")
        return table, rows, faults

    def _record(self, row: int) -> bytes:
        return self._text[self._starts[row] : self._stops[row]]

    @cached_property
    def _line_ends(self) -> np.ndarray:
        return np.flatnonzero(np.frombuffer(self._text, np.uint8) == ord("\n"))

    def _at(self, byte: int) -> str:
        return f"{self._where}: line {self._line + int(np.searchsorted(self._line_ends, byte))}"

    def _other_fields(self, row: int, fields: int) -> InputCorrupt:
        header, said = self._header, clip(self._record(row).decode().rstrip("\r\n"))
        how = f"; quote a text that holds {header.delimiter.decode()!r}, or use `format: text`, where a line is a row"
        return InputCorrupt(
            f"{self._at(self._starts[row])} has {counted(fields, 'field')}, {header.names_from} has "
            f"{len(header.names)}: {said!r}{how * (fields > len(header.names))}"
        )

    def _other_type(self, row: int, field: pa.Field, text: pa.StringArray, error: Exception) -> SchemaMismatch:
        found, lost = inferred(text, self._header.decimal), f"; {error}" * isinstance(error, DigitsLost)
        return SchemaMismatch(
            f"{self._at(self._starts[row])}: column {field.name!r} holds {clip(text[0].as_py())!r} "
            f"({type_name(found)}), {expected_type(field)}{lost}"
        )


def _is_utf8(text: bytes) -> bool:
    try:
        return text.decode() is not None
    except UnicodeDecodeError:
        return False


# ---- the types of values ------------------------------------------------------------------------------------

_NULLS = ["", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", r"\N"]
"""How programs write that a number, a date or a bool is missing. In a column of text these are texts."""

_KINDS = (pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
"""A column has the first of these types as which all of its values can be read; else it is text."""

_CODE = r"[ \t]*(\+[0-9]+|[+-]?0[0-9xX][0-9a-fA-F]*)[ \t]*"
"""Digits that are more a name than a number: 01234, +491234, 0x1F."""

_LONG = r"^\s*[+-]?\d{16,}\s*$"
_NO_NUMBER = 19
"""So many digits, or more, that no int64 holds are taken for a name."""


def typed(text: pa.StringArray, kind: pa.DataType, decimal: str, *, exact: bool) -> pa.Array:
    """The values of a column of text as a type. exact: whether a number must keep all digits that are written, and
    is no bool.

    Raises:
        DigitsLost: It does not.
        ArrowInvalid: A value is not of the type.
    """
    if is_text(kind) or kind == pa.binary():
        return text.cast(kind)
    text = pc.utf8_trim_whitespace(text)
    text = pc.if_else(pc.is_in(text, pa.array(_NULLS)), pa.scalar(None, pa.string()), text)
    if decimal != "." and not is_.is_integer(kind):
        text = pc.replace_substring(pc.replace_substring(text, ".", "?"), decimal, ".")
    if is_.is_time(kind):
        dated = pc.binary_join_element_wise("1970-01-01", text, " ")
        return dated.cast(pa.timestamp(kind.unit)).cast(kind)
    values = parsed_exactly(text, kind)
    if exact and is_.is_boolean(kind) and pc.any(pc.is_in(text, pa.array(["0", "1"]))).as_py():
        raise pa.ArrowInvalid("a number is no bool, unless the job declares it")
    if exact and (is_.is_integer(kind) or is_.is_floating(kind)) and _is_lost(values, text):
        raise DigitsLost
    return values


def inferred(text: pa.StringArray, decimal: str) -> pa.DataType:
    """The type of a column of text; null if it has no values."""
    if pc.all(pc.is_in(text, pa.array([*_NULLS, None])), min_count=0).as_py():
        return pa.null()
    for kind in _KINDS:
        with suppress(pa.ArrowInvalid):
            typed(text, kind, decimal, exact=True)
            return kind
    return pa.string()


def _is_lost(values: pa.Array | pa.ChunkedArray, text: pa.StringArray | pa.ChunkedArray) -> bool:
    """Whether reading these texts lost a leading zero, a sign, or last digits of a whole number in a float column."""
    if pc.any(pc.match_substring_regex(text, f"^{_CODE}$")).as_py():
        return True
    if not has_large(values):
        return False
    long = (each.strip().lstrip("+-") for each in text.filter(pc.match_substring_regex(text, _LONG)).to_pylist())
    return any(len(each) >= _NO_NUMBER or is_rounded(int(each)) for each in long)
