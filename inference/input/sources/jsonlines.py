"""JSON lines: each line is one object and one row. Blank lines are not counted.

A unit is a range of bytes of a large file, and has the lines that begin in it. A small or a compressed file is one
unit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from nightjar.inference.errors import SchemaMismatch
from nightjar.inference.input.sources import lines, normalisation, packing
from nightjar.inference.input.sources.jsonparsing import has_key, inferred, parsed, records_in
from nightjar.inference.input.sources.packing import Reading
from nightjar.inference.input.sources.rows import RowsRead, Unreadable
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Storage


class JsonLines(lines.TextSource):
    """The source of JSON lines.

    Numbers are int64 or double, or uint64 if they are too large, and a text that looks like a time stays text. Keys
    that are not columns of the job are left out; a key that a record lacks is null.
    """

    name = "JSON lines"
    suffixes = packing.suffixes(".jsonl", ".ndjson")
    unseen = pa.null()
    typed = False

    def beginning(self, storage: Storage, uri: str) -> tuple[pa.Schema, int]:
        """If values of a column contradict each other, the type of most of them is the column's."""
        with self.opened(storage, uri) as file:
            return inferred(uri, b"".join(lines.blocks(file, 0, lines.SAMPLE_BYTES, lines.SAMPLE_BYTES)))

    def units(self, file: Reading, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return lines.counted_units(file, size, records_in)

    def tables(
        self, storage: Storage, piece: Piece, schema: pa.Schema, size: int, lost: Unreadable
    ) -> Iterator[pa.Table]:
        schema = normalisation.admitting(schema, set())
        for where, line, block in self.of_piece(storage, piece, size):
            yield parsed(where, line, block, schema, lost)

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema, most: int | None = None) -> RowsRead:
        """A column is missing if no record has it, of a large file none in its beginning."""
        schema = normalisation.admitting(schema, set())
        lost, absent = Unreadable(piece, most), set(schema.names)

        def tables() -> Iterator[pa.Table]:
            for where, line, block in self.of_piece(storage, piece, lines.BLOCK_BYTES):
                table = parsed(where, line, block, schema, lost)
                absent.difference_update(
                    [name for name in absent if table[name].null_count < len(table) or has_key(block, name)]
                )
                yield table

        found = lost.read(
            pa.concat_tables([schema.empty_table(), *lost.following(tables())]), whole=not self.in_units(piece)
        )
        if self.in_units(piece):
            absent = self._absent(storage, piece, schema)
        if absent and found.readable:
            raise _missing(piece.uri, schema, absent)
        return found

    def check_known(self, storage: Storage, piece: Piece, schema: pa.Schema) -> None:
        """If a file's rows are not counted, its beginning does not tell whether some record has a column."""
        if piece.rows != UNKNOWN and (absent := self._absent(storage, piece, schema)):
            raise _missing(piece.uri, schema, absent)

    def _absent(self, storage: Storage, piece: Piece, schema: pa.Schema) -> set[str]:
        return set(schema.names) - set(self.beginning(storage, piece.uri)[0].names)


SOURCE = JsonLines()


def _missing(uri: str, schema: pa.Schema, absent: set[str]) -> SchemaMismatch:
    name = next(name for name in schema.names if name in absent)
    return SchemaMismatch(f"{uri}: column {name!r} is missing: no record has it")
