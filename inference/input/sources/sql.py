"""Rows of a database: a table, or a query, cut into ranges of a key.

A range takes the place of a file. Its name says which rows it has, `<uri>#0003:id=[4001,6001]`, the last key excluded.
The first and the last range are open (`null`), so a row with a new key is in exactly one of them. `_row` counts the
rows of a range in the order of the key, which is why each key must be there once. What a range has when it is looked
for is in its version. A range that has other rows when it is read is not scored: nobody can read what the rows were
before.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import quote, unquote

import pyarrow as pa

from nightjar.inference.arrow_types import row_bytes
from nightjar.inference.errors import InputChanged, InputCorrupt, JobError
from nightjar.inference.input.sources.databases import Key, Session, quoted, session_of
from nightjar.inference.input.sources.fitting import check_columns
from nightjar.inference.input.sources.protocol import Description, Source, rebound
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.job.options import Option, text
from nightjar.inference.records import Piece
from nightjar.inference.storage.protocol import Entry, Storage, content_of, of_table, same_version

PARTITIONS = 16
"""The number of ranges without `partitions`."""

_SOME = (r"[\s\S]*\S[\s\S]*", "a text that is not empty")


Range = Sequence[Key | None]
"""The rows with low <= key < high, of two keys; None is open."""


@dataclass(frozen=True)
class Sql(Source):
    """The source of databases. The fields other than `uri` are the options."""

    uri: str = ""
    """The URI of the database, see `Source.at`."""

    table: str = ""
    """The table or view of which all rows are read; '' if `query` is given."""

    query: str = ""
    """The query whose rows are read; '' if `table` is given."""

    key: str = ""
    """The column that orders the rows, with another value in each."""

    partitions: int = PARTITIONS
    """The number of ranges of the key, each with about as many rows."""

    name = "SQL"
    options = (
        text("table", "a table or a view, of which all rows are read", "none", *_SOME),
        text("query", "in place of `table`: a query, whose rows are read", "none", *_SOME),
        text("key", "the column that orders the rows, with another value in each; it must be named", "none", *_SOME),
        Option(
            "partitions",
            {"type": "integer", "minimum": 1, "maximum": 9999},
            f"`{PARTITIONS}`",
            "the number of ranges of the key, each with about as many rows",
            "a number from 1 to 9999",
        ),
    )

    @property
    def unseen(self) -> pa.DataType | None:  # type: ignore[override]
        return self._database.unseen

    def at(self, uri: str) -> Self:
        """As `Source.at`.

        Raises:
            JobError: An option is missing.
        """
        if bool(self.table) == bool(self.query):
            raise JobError("input.options: write table or query, one of them: the rows to score")
        if not self.key:
            raise JobError("input.options.key: name the column that orders the rows; each value must be there once")
        return replace(self, uri=uri)

    def files(self, storage: Storage, uri: str) -> Iterator[Entry]:
        """The ranges, each with about as many rows.

        Raises:
            JobError: There is no table or key as the options say, or no database.
        """
        if uri != self.uri:
            raise JobError("input.uri: a list of databases is not read; write one job for each")
        try:
            yield from self._found(storage)
        except InputCorrupt as error:
            # It is all of the input: there is nothing that could be scored without it.
            raise JobError(f"input.uri: {error}") from error

    def _found(self, storage: Storage) -> Iterator[Entry]:
        version = self._database.version(storage, self.uri)
        if version is None:
            return
        with self._database.open(self.uri) as session:
            count, keys, different = session.key_counts(self._source, self.key)
            self._check_key(count, keys, different)
            _SCHEMAS[self] = session.described(self._source)
            firsts = session.bounds(self._source, self.key, -(-count // self.partitions)) if count else []
            for number, rows in enumerate(itertools.pairwise([None, *firsts[1:], None])):
                content = self._content(session, rows)
                bounds = quote(json.dumps(rows, ensure_ascii=False, separators=(",", ":")), safe="[,]")
                name = f"{self.uri}#{number:04d}:{quote(self.key, safe='')}={bounds}"
                yield Entry(name, 0, of_table(version, content, ""))

    def check_unchanged(self, storage: Storage, piece: Piece) -> None:
        """As `Source.check_unchanged`, by the version of the whole database; what a range has is checked in `read`."""
        now = self._database.version(storage, self.uri)
        if now is None:
            raise self.gone(piece)
        if not same_version(of_table(now, content_of(piece.version), ""), piece.version):
            raise _changed(piece)

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Nothing is read that `files` has not read."""
        schema = self._described()
        rows = int(content_of(entry.version).partition(":")[0])
        return Description(schema, (rows,), (int(rows * row_bytes(schema)) + 1,))

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema, most: int | None = None) -> RowsRead:
        return self._read(piece, schema, piece.rows + 1, most)  # one more would show

    def sample(self, storage: Storage, piece: Piece, schema: pa.Schema, rows: int) -> RowsRead:
        return self._read(piece, schema, min(rows, piece.rows), None)

    def _read(self, piece: Piece, schema: pa.Schema, count: int, most: int | None) -> RowsRead:
        rows = json.loads(unquote(piece.uri.rpartition("=")[2]))
        with self._database.open(self.uri) as session:
            if self._content(session, rows) != content_of(piece.version):
                raise _changed(piece)
            names = session.names(self._source)
            if other := rebound(names, schema):
                raise InputChanged(
                    f"{piece.uri}: column {other!r} is another one than was planned; run again to score what it has now"
                )
            # Where types are inferred from values, a column need only be there.
            judged = [each for each in schema if self.unseen is None or each.name not in names.names]
            check_columns(piece.uri, names, pa.schema(judged))
            ordered = f"ORDER BY {quoted(self.key)} LIMIT {count} OFFSET {piece.first_row}"
            part = f"WHERE {self._where(session, rows)} {ordered}"
            return session.read(piece, self._source, part, schema, most)

    @property
    def _database(self) -> type[Session]:
        return session_of(self.uri)

    def _where(self, session: Session, rows: Range) -> str:
        sides = [(sign, key) for sign, key in zip((">=", "<"), rows, strict=True) if key is not None]
        return " AND ".join(f"{quoted(self.key)} {sign} {session.literal(key)}" for sign, key in sides) or "1 = 1"

    def _content(self, session: Session, rows: Range) -> str:
        count, content = session.content(self._source, self._where(session, rows))
        return f"{count}:{content}"

    @property
    def _source(self) -> str:
        query = self.query.strip().rstrip(";")
        # Of `shop.flights` each part is a name.
        return (
            ".".join(map(quoted, self.table.split("."))) if self.table else f"({query}\n) AS nightjar"
        )  # a comment at the end of a query ends with its line

    def _described(self) -> pa.Schema:
        if self not in _SCHEMAS:
            with self._database.open(self.uri) as session:
                _SCHEMAS[self] = session.described(self._source)
        return _SCHEMAS[self]

    def _check_key(self, rows: int, keys: int, different: int) -> None:
        if keys < rows:
            raise JobError(
                f"input.options.key: {self.key!r} is null in {rows - keys:,} rows; name a column without nulls"
            )
        if different < keys:
            raise JobError(
                f"input.options.key: {self.key!r} has {different:,} different values in {keys:,} rows; name a column "
                "with another value in each row, so that the order of the rows is no chance"
            )


SOURCE = Sql()

_SCHEMAS: dict[Sql, pa.Schema] = {}
"""The columns of each query, as this process found them last."""


def _changed(piece: Piece) -> InputChanged:
    return InputChanged(f"{piece.uri}: rows changed since it was planned; run again to score what it has now")
