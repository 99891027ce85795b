"""Plain text: each line is one row, in one column. A blank line is a row, too, so that `_row` + 1 is the line's
number.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from nightjar.inference.input.sources import lines
from nightjar.inference.input.sources.fitting import check_columns
from nightjar.inference.input.sources.rows import Unreadable
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Storage

_SCHEMA = pa.schema([("text", pa.string())])


@dataclass(frozen=True)
class Text(lines.TextSource):
    """The source of plain text."""

    encoding: str = lines.UTF8

    name = "text"
    suffixes = lines.TextSource.plain
    options = (lines.ENCODING,)

    def beginning(self, storage: Storage, uri: str) -> tuple[pa.Schema, int]:
        """Raises only if no line of the beginning is UTF-8 text, or it is UTF-16."""
        block = self.first_lines(storage, uri)
        if block.startswith(lines.UTF16):  # most of its lines would be UTF-8, too
            lines.check_utf8(uri, 1, block, self.encoding)
        lost = Unreadable(Piece(uri, 0, "", 0, UNKNOWN, (0, 1)), len(block))
        found = lost.read(_parsed(uri, 1, block.removeprefix(lines.BOM), self.encoding, lost), whole=True)
        return _SCHEMA, found.table.num_rows

    def count(self, block: bytes) -> int:
        return block.count(b"\n") + (not block.endswith(b"\n"))

    def tables(
        self, storage: Storage, piece: Piece, schema: pa.Schema, size: int, lost: Unreadable
    ) -> Iterator[pa.Table]:
        check_columns(piece.uri, _SCHEMA, schema)
        for where, line, block in self.of_piece(storage, piece, size):
            is_first = line == 1 and where == piece.uri
            text = block.removeprefix(lines.BOM) if is_first else block
            yield _parsed(where, line, text, self.encoding, lost).select(schema.names)


SOURCE = Text()


def _parsed(where: str, line: int, block: bytes, encoding: str, lost: Unreadable) -> pa.Table:
    """A block's lines, without their ends. where, line: of the first. encoding: of the file. lost: gets lines that are
    not of it.
    """
    texts = list[str | None]()
    for row, raw in enumerate(io.BytesIO(block)):
        try:
            texts.append(raw.decode().removesuffix("\n").removesuffix("\r"))
        except UnicodeDecodeError as error:
            lost.add(row, lines.not_utf8(f"{where}: line {line + row}", error, encoding), raw)
            texts.append(None)
    return pa.table([pa.array(texts, pa.string())], schema=_SCHEMA)
