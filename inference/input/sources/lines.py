"""What the formats share whose files are text: blocks of whole lines, units of bytes, and lines that are not read."""

from __future__ import annotations

import codecs
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import product
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from nightjar.inference.errors import InputCorrupt
from nightjar.inference.input.schemas import without_unseen
from nightjar.inference.input.sources.protocol import Description, Source
from nightjar.inference.input.sources.rows import RowsRead, Unreadable, nulls
from nightjar.inference.job.options import choice
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Entry, Storage, file_name

SAMPLE_BYTES = 1 << 20
"""The lines that begin in this many bytes decide a file's columns, because discovery must not read the whole lake."""

UNIT_BYTES = 64 << 20
"""Bytes per unit: a larger file is cut at multiples of this, so that several actors can score it.

Do not change it: plans name units by their numbers. With another size a unit would have other lines; the count of lines
would show it, and the shards of unfinished runs would fail."""

BLOCK_BYTES = 8 << 20
"""Bytes that are parsed at once, plus the rest of the last line. It bounds the memory for text and values together."""

LONGEST_BYTES = 256 << 20
"""The longest line (in CSV: record) that is read: a file without line ends, however large, does not fill the memory."""

BOM = b"\xef\xbb\xbf"
"""The mark with which some programs begin a UTF-8 text. It is no part of the text."""

UTF8 = "utf-8"

ENCODING = choice(
    "encoding",
    [
        *(UTF8, "utf-16", "utf-16-le", "utf-16-be", "latin-1", "iso-8859-2", "iso-8859-15", "cp437", "cp850", "cp1250"),
        *("cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "koi8-r", "mac-roman"),
        *("shift_jis", "cp932", "euc-jp", "euc-kr", "big5", "gbk", "gb18030"),
    ],
    "of the text",
)


# ---- compressed and recoded files ---------------------------------------------------------------------------

EXPANDED = 8
"""The assumed ratio of a compressed file's decoded size to its size."""

_CODECS = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd"}


def suffixes(*kinds: str) -> tuple[str, ...]:
    """The ends of names of files of these kinds, packed and not."""
    return tuple(kind + packed for kind, packed in product(kinds, ("", ".gz", ".zst")))


def compression(uri: str) -> str | None:
    """The codec that the end of a file's name tells; None for a file that is not compressed."""
    lower = file_name(uri).lower()
    return next((codec for end, codec in _CODECS.items() if lower.endswith(end)), None)


_UNDECODABLE = "nightjar.undecodable"
codecs.register_error(_UNDECODABLE, lambda error: ("\udcff", getattr(error, "end", 0)))
"""What cannot be decoded becomes the byte 0xFF in UTF-8, which has no such byte: the line is then not UTF-8 text."""


class Reading:
    """An open file, decompressed and recoded to UTF-8 while it is read. taken: the bytes that were read."""

    def __init__(self, uri: str, file: pa.NativeFile) -> None:
        self.uri, self.taken = uri, 0
        self._file, self._held = file, b""

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        data, self._held = self._held[:size], self._held[size:]
        new = bytes(self._file.read(size - len(data)))
        self.taken += len(new)
        return data + new if data else new

    def unread(self, data: bytes) -> None:
        """Give these bytes back: the next `read` returns them again."""
        self._held = data + self._held

    def seek(self, at: int) -> None:
        """Go to a byte of a file that is neither compressed nor recoded."""
        self._held = b""
        self._file.seek(at)


@contextmanager
def opened(storage: Storage, uri: str, encoding: str = UTF8) -> Iterator[Reading]:
    """Open a file for reading from its beginning on. encoding: of the text in it."""
    with ExitStack() as stack:
        file = stack.enter_context(storage.open(uri))
        if codec := compression(uri):
            file = stack.enter_context(pa.CompressedInputStream(file, codec))
        if encoding != UTF8:
            decoder = codecs.getincrementaldecoder(encoding)(_UNDECODABLE)
            file = pa.TransformInputStream(
                file, lambda data: decoder.decode(data, not data).encode(errors="surrogateescape")
            )
        yield Reading(uri, file)


# ---- blocks of lines ----------------------------------------------------------------------------------------


class BlockSource(Source):
    """Base of the formats whose rows are read one block after the other, from a place on."""

    @abstractmethod
    def tables(
        self, storage: Storage, piece: Piece, schema: pa.Schema, size: int, lost: Unreadable
    ) -> Iterator[pa.Table]:
        """Read a piece in tables of about `size` bytes. Unreadable rows are rows of nulls, and added to `lost`."""

    def check_known(self, storage: Storage, piece: Piece, schema: pa.Schema) -> None:
        """Check, before a sample is read, that the file has the columns, if `tables` does not check it.

        Raises:
            SchemaMismatch: A column is missing.
        """

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema, most: int | None = None) -> RowsRead:
        """A file of which no row can be read is at fault itself."""
        lost = Unreadable(piece, most)
        tables = list(lost.following(self.tables(storage, piece, schema, BLOCK_BYTES, lost)))
        return lost.read(pa.concat_tables(tables) if tables else schema.empty_table(), whole=not self.in_units(piece))

    def sample(self, storage: Storage, piece: Piece, schema: pa.Schema, rows: int) -> RowsRead:
        """Without a count of rows only `read` finds missing columns."""
        self.check_known(storage, piece, schema)
        lost, tables = Unreadable(piece), list[pa.Table]()
        for table in lost.following(self.tables(storage, piece, schema, SAMPLE_BYTES, lost)):
            tables.append(table)
            if sum(map(len, tables)) >= rows:
                break
        return lost.read(pa.concat_tables(tables) if tables else schema.empty_table()).slice(0, rows)

    def in_units(self, piece: Piece) -> bool:
        """Whether the piece's file has several units. If not, a file without a row that can be read is at fault."""
        return False


class TextSource(BlockSource):
    """Base of the formats of text. A unit is a range of bytes of a large file, and has the lines that begin in it. A
    small, compressed or recoded file is one unit.

    encoding: of the text; the option `ENCODING`, if the source has it.
    """

    encoding: str = UTF8

    plain = suffixes(".txt")

    @abstractmethod
    def beginning(self, storage: Storage, uri: str) -> tuple[pa.Schema, int]:
        """The columns and the number of the rows that begin in a file's first `SAMPLE_BYTES`.

        Raises:
            InputCorrupt: The beginning is not of this format.
        """

    def units(self, file: Reading, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The rows and sizes of the units of a large file of `size` bytes, after reading all of it. Here a row is a
        line, and a unit has the lines that begin in its bytes.
        """
        starts = range(0, size, UNIT_BYTES)
        counts = (sum(map(self.count, blocks(file, low, low + UNIT_BYTES, BLOCK_BYTES))) for low in starts)
        return tuple(counts), tuple(min(UNIT_BYTES, size - low) for low in starts)

    def count(self, block: bytes) -> int:
        """The number of rows in a block of whole lines."""
        raise NotImplementedError

    def first_lines(self, storage: Storage, uri: str) -> bytes:
        """The lines that begin in a file's first `SAMPLE_BYTES`."""
        with self.opened(storage, uri) as file:
            return b"".join(blocks(file, 0, SAMPLE_BYTES, SAMPLE_BYTES))

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """The columns come from the beginning. Rows are counted if the file is large, or is no longer than the
        beginning. Of a compressed file without rows in its beginning it is taken that it has none.
        """
        schema, read = self.beginning(storage, entry.uri)
        if self._is_one_unit(entry.uri):
            rows = UNKNOWN if read else 0
            packed = EXPANDED if compression(entry.uri) else 1
            return Description(schema, (rows,), (entry.size * packed,))
        if entry.size <= UNIT_BYTES:
            return Description(schema, (read if entry.size <= SAMPLE_BYTES else UNKNOWN,), (entry.size,))
        with opened(storage, entry.uri) as file:
            return Description(schema, *self.units(file, entry.size))

    def columns(self, storage: Storage, entry: Entry) -> pa.Schema:
        """As `Source.columns`, from the beginning of the file."""
        return without_unseen(self.beginning(storage, entry.uri)[0], self.unseen)

    def opened(self, storage: Storage, uri: str) -> AbstractContextManager[Reading]:
        """Open a file, to read UTF-8 from its beginning on."""
        return opened(storage, uri, self.encoding)

    def _is_one_unit(self, uri: str) -> bool:
        """Whether a file is one unit, however large it is: it cannot be read from the middle on."""
        return self.encoding != UTF8 or compression(uri) is not None

    def in_units(self, piece: Piece) -> bool:
        return not self._is_one_unit(piece.uri) and piece.size > UNIT_BYTES

    def of_piece(self, storage: Storage, piece: Piece, size: int) -> Iterator[tuple[str, int, bytes]]:
        """The piece's lines in blocks, each with its first line and the place from which lines are counted."""
        low, high = (bound * UNIT_BYTES for bound in piece.row_groups) if self.in_units(piece) else (0, None)
        where, line = counted_from(piece.uri, low), 1
        with self.opened(storage, piece.uri) as file:
            for block in blocks(file, low, high, size):
                yield where, line, block
                line += block.count(b"\n")


def counted_from(uri: str, low: int) -> str:
    """For messages: a file's name, and the byte from which its lines are counted, if not from its beginning."""
    return f"{uri}, from byte {low} on" if low else uri


def whole_lines(text: bytes) -> int:
    """The length of the whole lines at the beginning of a text."""
    return text.rfind(b"\n") + 1


def blocks(
    file: Reading,
    low: int,
    high: int | None,
    size: int,
    *,
    whole: Callable[[bytes], int] = whole_lines,
    where: str = "",
    line: int = 1,
) -> Iterator[bytes]:
    """Yield the whole lines that begin at bytes [low, high) of a file, about `size` bytes at once.

    With `low` 0 the file is read from where it stands. whole: the length of the whole records at the beginning of a
    text, for a format whose records are not lines; only with `low` 0 and `high` None. where, line: of the first line,
    for messages.

    Raises:
        InputCorrupt: A line is longer than `LONGEST_BYTES`.
    """
    at, held = max(0, low - 1), b""  # the byte before `low` tells whether a line begins there
    if low:
        file.seek(at)
    skipping = low > 0
    # Of a long line ever more is read at once: each time all of it is searched for its end.
    while data := file.read(max(size, len(held))):
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
        elif end := whole(held):
            yield held[:end]
            line += held.count(b"\n", 0, end)
            at, held = at + end, held[end:]
        if len(held) > LONGEST_BYTES:
            where = where or counted_from(file.uri, low)
            raise InputCorrupt(f"{where}: line {line} begins a record of more than {LONGEST_BYTES:,} bytes")
    if held:
        yield held


# Lines that cannot be parsed are found by halving, and the others stay together, because one by one they are slow.

T = TypeVar("T")

LineError: TypeAlias = "pa.ArrowInvalid | pa.ArrowTypeError | UnicodeDecodeError"
"""What parsing a line raises."""

UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""What a text begins with that is UTF-16, as some programs write it."""

_PACKED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
"""What a compressed file begins with, and the end of the name by which it is read."""


def in_parts(items: Sequence[Any], parse: Callable[[Any], T]) -> Iterator[tuple[int, int, T | LineError]]:
    """Parse lines, or values, in order: yield (first, last + 1, what was parsed), or the error of one."""
    todo = [(0, len(items))] if len(items) else []
    while todo:
        low, high = todo.pop()
        found: T | LineError
        try:
            found = parse(items[low:high])
        except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeDecodeError) as error:
            if high - low > 1:
                middle = (low + high) // 2
                todo += (middle, high), (low, middle)
                continue
            found = error
        yield low, high, found


def parsed_rows(
    items: Sequence[Any],
    parse: Callable[[Any], pa.Table],
    failed: Callable[[int, LineError], None],
    schema: pa.Schema,
) -> pa.Table:
    """Parse lines, or values, each of which is a row of `schema`. failed: told of those that cannot be parsed, in order
    and by their index; each is a row of nulls.
    """
    tables = []
    for low, _, part in in_parts(items, parse):
        if not isinstance(part, pa.Table):
            failed(low, part)
            part = nulls(schema, 1)
        tables.append(part)
    return pa.concat_tables(tables).combine_chunks() if tables else schema.empty_table()


def not_utf8(at: str, error: UnicodeDecodeError, encoding: str = "") -> InputCorrupt:
    """The error of a line. at: its file and line. encoding: of its file, if the source has the option `encoding`."""
    if encoding not in ("", UTF8):
        return InputCorrupt(f"{at} is not {encoding} text (input.options.encoding)")
    if end := next((end for begin, end in _PACKED.items() if error.object.startswith(begin)), ""):
        return InputCorrupt(f"{at} is not text: the file is compressed; let its name end in {end}")
    known = ": it is UTF-16" if error.object.startswith(UTF16) else ""
    how = ", or name its encoding in input.options.encoding" if encoding else ""
    return InputCorrupt(f"{at} is not UTF-8 text: {error.reason}{known}; save the file as UTF-8{how}")


def check_utf8(where: str, line: int, block: bytes, encoding: str) -> None:
    """Check that a block is UTF-8 text. where, line: of its first line, for the message. encoding: of the file.

    Raises:
        InputCorrupt: It is not.
    """
    try:
        block.decode()
    except UnicodeDecodeError as error:
        number = line + block.count(b"\n", 0, error.start)
        raise not_utf8(f"{where}: line {number}", error, encoding) from error
