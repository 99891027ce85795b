"""CSV and TSV: a header line with the columns' names, then one record for each row. Blank lines are not counted.

The options are those of `input.options`. A quoted field may hold line ends. So a record may be several lines, and the
bytes of a large file do not tell by themselves where a record begins; `Csv.units` says how such a file is cut
nevertheless.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import InputCorrupt, JobError
from nightjar.inference.input.sources import lines
from nightjar.inference.input.sources.csvrecords import UNCLOSED, Block, Header, Records
from nightjar.inference.input.sources.rows import Unreadable
from nightjar.inference.job.options import text, texts
from nightjar.inference.records import Piece
from nightjar.inference.storage.protocol import Storage, file_name

_HEADER_BYTES = 1 << 16
"""Bytes that are read at once to find the end of the header, and the first record after a cut."""

_DELIMITERS = (b",", b"\t", b";", b"|")
"""What may separate fields in a file whose name does not say it is tabs, but for the decimal: the first of these in
the first line."""

_QUOTED = re.compile(rb'(?:\A|(?<=[\n,\t;|]))"[^"]*(?:""[^"]*)*(?:"|\Z)')
"""A quoted part of a field, whichever of `_DELIMITERS` separates the fields. It may hold the others, and line ends."""


@dataclass(frozen=True)
class Csv(lines.TextSource):
    """The source of CSV and TSV.

    Types: int64, double, bool, date32, timestamp in microseconds, text. A later value of another type is an error.
    """

    delimiter: str | None = None
    """What separates fields; None for what the file shows."""

    decimal: str = "."
    """What is before the decimals of a number."""

    names: tuple[str, ...] = ()
    """The names of the columns, in order; empty if the first line has them."""

    encoding: str = lines.UTF8
    """The encoding of the text: the option `ENCODING`."""

    name = "CSV"
    suffixes = lines.suffixes(".csv", ".tsv")
    unseen = pa.string()
    options = (
        text("delimiter", "it separates fields", "what the first line shows", "[ -~\\t]", "one ASCII character"),
        text("decimal", "it is before the decimals of a number", "`.`", "[.,]", "a dot or a comma"),
        texts(
            "names",
            "the columns, in order, of files without a header line",
            "the first line's",
            "names, each once",
            least=1,
        ),
        lines.ENCODING,
    )

    def chosen(self, options: Mapping[str, Any]) -> Self:
        delimiter = options.get("delimiter")
        if delimiter == '"' or delimiter == options.get("decimal", self.decimal):
            raise JobError(f"input.options.delimiter: {delimiter!r} cannot separate fields; it is part of values")
        return super().chosen(options)

    def beginning(self, storage: Storage, uri: str) -> tuple[pa.Schema, int]:
        """Raises also if the header lacks a name, or has one twice. Records that cannot be read have no say."""
        with self.opened(storage, uri) as file:
            if (header := self._header(file)) is None:
                return pa.schema([]), 0
            found = []
            for block in _blocks(file, header, lines.SAMPLE_BYTES + 1, uri, header.lines + 1):
                found.append(block)
                if file.taken > lines.SAMPLE_BYTES:
                    break
        beginning = Block(uri, header.lines + 1, b"".join(found), header)
        return beginning.inferred(), beginning.count

    def units(self, file: lines.Reading, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """There are two units for each range of `UNIT_BYTES`, and all records that begin in the range are in one of
        them: in the first one if the range begins outside quotes, in the second one if it begins inside quotes. So the
        unit's number tells a reader all that it has to know of the bytes before.

        Each cut is tried here as a reader will try it. If the first record is not found, which can be only if the cut
        is between two quotes, the range's records are in the unit before.
        """
        if (header := self._header(file)) is None:
            return (0,), (size,)
        ranges = -(-size // lines.UNIT_BYTES)
        rows, first = np.zeros(ranges, np.int64), np.full(ranges, size)
        at = header.end
        first[min(at, size - 1) // lines.UNIT_BYTES] = at
        for block in _blocks(file, header, lines.BLOCK_BYTES, file.uri, header.lines + 1):
            found = Records(block, header.delimiter)
            starts, _ = found.spans()
            rows += np.bincount((starts + at) // lines.UNIT_BYTES, minlength=ranges)
            begins = found.ends[found.ends + at < size] + at
            np.minimum.at(first, begins // lines.UNIT_BYTES, begins)
            at += len(block)
        counts, sizes, last = np.zeros(2 * ranges, np.int64), np.zeros(2 * ranges, np.int64), 0
        for index in range(ranges):
            low = index * lines.UNIT_BYTES
            for quoted in (False, True) if index else ():
                if rows[index] and _start(file, low, quoted, header.delimiter) == first[index]:
                    last = 2 * index + quoted
                    break
            counts[last] += rows[index]
            sizes[last] += min(lines.UNIT_BYTES, size - low)
        return tuple(counts.tolist()), tuple(sizes.tolist())

    def tables(
        self, storage: Storage, piece: Piece, schema: pa.Schema, size: int, lost: Unreadable
    ) -> Iterator[pa.Table]:
        """Of a large file the records are read from the first one of the first unit on, as many as the piece has."""
        with self.opened(storage, piece.uri) as file:
            header = self._header(file)
            if header is None or not piece.rows:
                return
            header.check(piece.uri, schema)
            where, line, left = piece.uri, header.lines + 1, None
            if self.in_units(piece):
                left = piece.rows
                if low := piece.row_groups[0]:
                    begin = _start(file, low // 2 * lines.UNIT_BYTES, bool(low % 2), header.delimiter)
                    assert begin is not None, "it was found when the units were made, and the file is the same"
                    file.seek(begin)
                    where, line = lines.counted_from(piece.uri, begin), 1
            for block in _blocks(file, header, size, where, line):
                if len(table := Block(where, line, block, header, left).parsed(schema, lost)):
                    yield table
                line += block.count(b"\n")
                if left is not None and not (left := left - len(table)):
                    return

    def _header(self, file: lines.Reading) -> Header | None:
        """Read the header; None if the file has nothing but blank lines. The file then stands behind the header.

        Raises:
            InputCorrupt: It is not UTF-8, lacks a name, or has one twice.
        """
        held, begin, end, delimiter = b"", 0, 0, b""
        while not end and (data := file.read(max(_HEADER_BYTES, len(held)))):
            held += data
            begin = len(lines.BOM) if held.startswith(lines.BOM) else 0
            begin += len(held) - begin - len(held[begin:].lstrip(b"\r\n"))
            delimiter = self._delimiter(file.uri, held[begin:])
            ends = Records(held[begin:], delimiter).ends
            end = begin + int(ends[0]) if len(ends) and begin < len(held) else 0
            if not end and len(held) > lines.LONGEST_BYTES:
                raise InputCorrupt(f"{file.uri}: the first record has more than {lines.LONGEST_BYTES:,} bytes")
        end = end or len(held)
        if not held[begin:end].strip(b"\r\n"):
            return None
        if self.names:
            file.unread(held[begin:])
            names, before = list(self.names), held.count(b"\n", 0, begin)
            return Header(names, delimiter, self.decimal, self.encoding, begin, before, "input.options.names")
        lines.check_utf8(file.uri, 1, held[:end], self.encoding)
        file.unread(held[end:])
        line = held.count(b"\n", 0, begin) + 1
        found = Records(held[begin:end], delimiter)
        for at, wrong in (found.wrong, (found.unclosed, UNCLOSED)):
            if at >= 0:
                number = held.count(b"\n", 0, begin + at) + 1
                raise InputCorrupt(f"{file.uri}: line {number} {wrong}")
        header = io.StringIO(held[begin:end].decode(), newline="")
        names = next(csv.reader(header, delimiter=delimiter.decode()))
        for index, name in enumerate(names):
            if not name:
                known = "" if index else "; pandas writes its index so, and `to_csv(index=False)` leaves it out"
                raise InputCorrupt(f"{file.uri}: line {line}: the header has no name for column {index + 1}{known}")
            if "\0" in name:
                raise InputCorrupt(
                    f"{file.uri}: line {line}: the header has the name {name!r}: the text is damaged, or UTF-16 "
                    "without its mark, which input.options.encoding says, as utf-16-le"
                )
            if name in names[:index]:
                raise InputCorrupt(f"{file.uri}: line {line}: the header has the name {name!r} twice")
        return Header(names, delimiter, self.decimal, self.encoding, end, held.count(b"\n", 0, end) or 1)

    def _delimiter(self, uri: str, text: bytes) -> bytes:
        if self.delimiter:
            return self.delimiter.encode()
        if file_name(uri).lower().endswith(lines.suffixes(".tsv")):
            return b"\t"
        able = [each for each in _DELIMITERS if each != self.decimal.encode()]
        line = _QUOTED.sub(b"", text).partition(b"\n")[0]
        return next((each for each in able if each in line), able[0])


SOURCE = Csv()


def _start(file: lines.Reading, low: int, quoted: bool, delimiter: bytes) -> int | None:
    """The byte at which the first line from byte `low` on begins; None for none within the longest record.

    quoted: whether `low` is inside quotes; between two quotes the answer may be wrong.
    """
    file.seek(low - 1)
    before, held = file.read(1), b""
    if not quoted and before == b"\n":
        return low
    # Any other byte than the delimiter is the inside of a field.
    lead = b'"' if quoted else (before if before == delimiter else b"x")
    while data := file.read(max(_HEADER_BYTES, len(held))):
        held += data
        ends = Records(lead + held, delimiter).ends
        if len(ends):
            return low + int(ends[0]) - 1
        if len(held) > lines.LONGEST_BYTES:
            break
    return None


def _blocks(file: lines.Reading, header: Header, size: int, where: str, line: int) -> Iterator[bytes]:
    """The whole records from where a file stands on."""

    def whole(text: bytes) -> int:
        if b'"' not in text:
            return lines.whole_lines(text)
        ends = Records(text, header.delimiter).ends
        return int(ends[-1]) if len(ends) else 0

    return lines.blocks(file, 0, None, size, whole=whole, where=where, line=line)
