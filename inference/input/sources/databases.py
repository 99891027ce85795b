"""The databases that `sql` reads: SQLite files and Postgres. A new one is a `Session`, and a line in `session_of`."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pyarrow as pa

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import InputCorrupt, JobError, Missing, SchemaMismatch, StorageError, Transient
from nightjar.inference.input.schemas import normalised
from nightjar.inference.input.sources.fitting import cast_exactly, expected_type, is_declared, is_rounded
from nightjar.inference.input.sources.lines import parsed_rows
from nightjar.inference.input.sources.protocol import bound, needing
from nightjar.inference.input.sources.rows import RowsRead, Unreadable
from nightjar.inference.records import Piece
from nightjar.inference.storage.protocol import Storage, is_local

Key = int | str


def session_of(uri: str) -> type[Session]:
    """The kind of database at a uri.

    Raises:
        JobError: It is none.
    """
    if is_local(uri):
        return Sqlite
    if uri.startswith("postgresql://"):
        return Postgres
    raise JobError(
        f"input.uri: {uri} is no database; write the path of a SQLite file, or postgresql://user@host/database"
    )


def quoted(name: str) -> str:
    """A name in a statement."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Session(ABC):
    """A connection that cannot write, on which every statement sees the same rows.

    source: a table's name in quotes, or a query in brackets with a name. where: the condition for a range of the key.
    """

    uri: str
    opened: Any
    """The connection of the driver."""

    unseen: ClassVar[pa.DataType | None] = None
    """As `Source.unseen`."""

    @classmethod
    @abstractmethod
    def open(cls, uri: str) -> AbstractContextManager[Session]:
        """Open a session.

        Raises:
            JobError, StorageError: There is no such database, or it refused.
        """

    @classmethod
    @abstractmethod
    def version(cls, storage: Storage, uri: str) -> str | None:
        """The version of all that the database has, "-" if it has none; None if there is no database.

        Raises:
            StorageError: The storage refused or failed.
        """

    @abstractmethod
    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a statement's result."""

    @abstractmethod
    def names(self, source: str) -> pa.Schema:
        """The columns, in types as which `read` takes them, bound to the names by which `content` knows them."""

    def described(self, source: str) -> pa.Schema:
        """The columns, as in `Description`."""
        return self.names(source)

    @abstractmethod
    def content(self, source: str, where: str) -> tuple[int, str]:
        """The number of rows of a range, and a text without spaces that changes with any of its rows."""

    @abstractmethod
    def read(self, piece: Piece, source: str, part: str, schema: pa.Schema, most: int | None) -> RowsRead:
        """Rows with the columns of a schema. part: the conditions and the order, as they stand in the statement. piece,
        most: as in `Source.read`.
        """

    @abstractmethod
    def literal(self, key: Key) -> str:
        """A value of the key in a statement."""

    def key_as_text(self, source: str, key: str) -> bool:
        """Whether values of the key are read as texts, which the database takes for what they are."""
        return False

    def key_counts(self, source: str, key: str) -> tuple[int, int, int]:
        """The number of rows, of keys that are not null, and of different keys.

        Raises:
            JobError: There is no such column. Names the option.
        """
        # SQLite takes a name in quotes that is no column for a text.
        if key not in (names := self.names(source).names):
            raise JobError(f"input.options.key: there is no column {key!r}; known: {', '.join(names)}")
        name = quoted(key)
        ((rows, keys, different),) = self.ask(f"SELECT count(*), count({name}), count(DISTINCT {name}) FROM {source}")
        return rows, keys, different

    def bounds(self, source: str, key: str, every: int) -> list[Key]:
        """The first key, and each that stands so many rows behind the one before.

        Raises:
            JobError: A key is neither a whole number nor a text. Names the option.
        """
        cast = "CAST(k AS text)" if self.key_as_text(source, key) else "k"
        name = quoted(key)
        numbered = f"SELECT {name} AS k, row_number() OVER (ORDER BY {name}) - 1 AS n FROM {source}"
        lines = self.ask(f"SELECT {cast} FROM ({numbered}) AS numbered WHERE n % {every} = 0 ORDER BY numbered.k")
        found = [bound for (bound,) in lines]
        if odd := [bound for bound in found if not isinstance(bound, Key)]:
            raise JobError(
                f"input.options.key: {key!r} has {odd[0]!r:.100}; name a column that has whole numbers, or UTF-8 texts"
            )
        return found


# Passwords and certificates of Postgres come from where libpq looks for them (`PGPASSWORD`, `PGPASSFILE`, `~/.pgpass`,
# `PGSERVICE`), on every machine that reads. No uri has one, so none can reach a ledger, a log or a message.


class Postgres(Session):
    """A transaction of Postgres through ADBC, which receives columns as Arrow."""

    @classmethod
    @contextmanager
    def open(cls, uri: str) -> Iterator[Postgres]:
        with needing("input.uri", "Postgres", "postgres"):
            import adbc_driver_postgresql.dbapi as adbc
        try:
            with adbc.connect(uri) as opened:
                session = cls(uri, opened)
                session._table("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                yield session
        except adbc.OperationalError as error:
            raise Transient(f"{uri}: {_first_lines(error)}") from error
        except adbc.ProgrammingError as error:
            raise JobError(f"input.options: {uri}: {_first_lines(error)}") from error
        except adbc.Error as error:
            raise StorageError(f"{uri}: {_first_lines(error)}") from error

    @classmethod
    def version(cls, storage: Storage, uri: str) -> str | None:
        """What changed is known of each range."""
        return "-"

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return list(zip(*(column.to_pylist() for column in self._table(statement).columns), strict=True))

    def names(self, source: str) -> pa.Schema:
        """The columns are bound by position, by which the hash of a row has them."""
        own = enumerate(self._columns(source))
        return normalised(pa.schema([bound(pa.field(each.name, _kind(each)), str(at)) for at, each in own]))

    def content(self, source: str, where: str) -> tuple[int, str]:
        """The server hashes each row."""
        # With the star no column is meant, whatever the columns are called.
        ((count, content),) = self.ask(
            "SELECT count(*), coalesce(sum(hashtextextended(ROW(whole.*)::text, 0)), 0)::text "
            f"FROM {source.removesuffix(' AS nightjar')} AS whole WHERE {where}"
        )
        return count, content

    def read(self, piece: Piece, source: str, part: str, schema: pa.Schema, most: int | None) -> RowsRead:
        own = self._columns(source)
        columns = ", ".join(_selected(own.field(name)) for name in schema.names)
        found = self._table(f"SELECT {columns} FROM {source} {part}")
        return RowsRead(pa.table({name: found[name].cast(_kind(own.field(name))) for name in schema.names}))

    def literal(self, key: Key) -> str:
        escaped = str(key).replace("\\", "\\\\").replace("'", "''")
        return f"E'{escaped}'"

    def key_as_text(self, source: str, key: str) -> bool:
        return not pa.types.is_integer(self._columns(source).field(key).type)

    def _table(self, statement: str) -> pa.Table:
        with self.opened.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetch_arrow_table() if cursor.description else pa.table({})

    def _columns(self, source: str) -> pa.Schema:
        return self._table(f"SELECT * FROM {source} LIMIT 0").schema


def _kind(column: pa.Field) -> pa.DataType:
    """The type in which a column is read: of types that Arrow does not have, their text."""
    kind = column.type
    if not isinstance(kind, pa.BaseExtensionType):
        return kind
    about = column.metadata or {}
    if about.get(b"ADBC:postgresql:typname") == b"numeric" and b"POSTGRESQL:typmod" in about:
        precision, scale = divmod(int(about[b"POSTGRESQL:typmod"]) - 4, 1 << 16)
        if precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    return pa.string()


def _selected(column: pa.Field) -> str:
    name = quoted(column.name)
    return f"{name}::text AS {name}" if isinstance(column.type, pa.BaseExtensionType) else name


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split("Query was")[0].split())


_TYPES = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "blob": pa.binary()}
"""What SQLite calls a value's type → the column's type."""

_COUNTED = 400
"""The most columns whose types are counted by one statement. Each has four sums, and SQLite returns at most 2,000."""

_PYTHON = {int: "a whole number", float: "a number", str: "text", bytes: "bytes, or text that is not UTF-8"}


class Sqlite(Session):
    """A transaction on a SQLite file, through Python's module.

    ADBC's driver takes a column's type from its first rows, and fails at a value of another type. In SQLite a value has
    a type, not its column, so here a value of another type costs its row.
    """

    unseen = pa.string()

    @classmethod
    @contextmanager
    def open(cls, uri: str) -> Iterator[Sqlite]:
        """The file must be there: opened to be read alone, it is not made."""
        try:
            with closing(sqlite3.connect(f"file:{quote(uri)}?mode=ro", uri=True, isolation_level=None)) as opened:
                opened.text_factory = _text
                opened.execute("BEGIN")
                session = cls(uri, opened)
                session._check_whole()
                yield session
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR):
                raise Transient(f"{uri}: {error}") from error
            raise JobError(f"input.options: {uri}: {error}") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite's message may quote bytes of the file
            raise InputCorrupt(f"{uri}: not a readable SQLite file: {error}") from error

    @classmethod
    def version(cls, storage: Storage, uri: str) -> str | None:
        """Of the file, and of what was written beside it and is not in it yet."""
        try:
            file = storage.stat(uri).version
        except Missing:
            return None
        try:
            beside = storage.stat(f"{uri}-wal")
        except Missing:
            return file
        # SQLite gives this file the owner of the other one when it opens it: the change of its status says nothing.
        return f"with-wal:{file}:{beside.version.partition('+')[0]}:{beside.size}" if beside.size else file

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.opened.execute(statement).fetchall()
        return found

    def names(self, source: str) -> pa.Schema:
        """Any column can be read as any type, as far as its values go."""
        found = self.opened.execute(f"SELECT * FROM {source} LIMIT 0").description
        return pa.schema([pa.field(name, pa.string()) for name, *_ in found])

    def described(self, source: str) -> pa.Schema:
        """All values are counted by their types, and most of them decide."""
        names, fields = self.names(source).names, []
        for low in range(0, len(names), _COUNTED):
            some = names[low : low + _COUNTED]
            sums = [f"total(typeof({quoted(name)}) = '{kind}')" for name in some for kind in _TYPES]
            (found,) = self.ask(f"SELECT {', '.join(sums)} FROM {source}")
            for at, name in enumerate(some):
                counts = Counter(dict(zip(_TYPES, found[at * len(_TYPES) :], strict=False)))
                if counts["real"]:
                    counts["real"] += counts.pop("integer")
                fields.append((name, _TYPES[counts.most_common(1)[0][0]] if +counts else pa.null()))
        return pa.schema(fields)

    def content(self, source: str, where: str) -> tuple[int, str]:
        """Whether a row changed is known of the whole file."""
        ((count,),) = self.ask(f"SELECT count(*) FROM {source} WHERE {where}")
        return count, "-"

    def read(self, piece: Piece, source: str, part: str, schema: pa.Schema, most: int | None) -> RowsRead:
        for field in schema:
            if pa.types.is_nested(field.type):
                raise SchemaMismatch(f"{piece.uri}: column {field.name!r} is of SQLite, {expected_type(field)}")
        names, lost = ", ".join(map(quoted, schema.names)), Unreadable(piece, most)
        lines = self.ask(f"SELECT {names} FROM {source} {part}")

        def parse(rows: list[tuple[Any, ...]]) -> pa.Table:
            return pa.table([_array([row[at] for row in rows], field) for at, field in enumerate(schema)], schema.names)

        def failed(row: int, error: Exception) -> None:
            found = zip(schema, lines[row], strict=False)
            field, value = next((field, value) for field, value in found if _is_other(value, field))
            fault = SchemaMismatch(
                f"{piece.uri}: row {piece.first_row + row}: column {field.name!r} is {_PYTHON[type(value)]} "
                f"({value!r:.100}), {expected_type(field)}"
            )
            lost.fail(row, fault, str(value).encode())

        return lost.read(parsed_rows(lines, parse, failed, schema))

    def literal(self, key: Key) -> str:
        if isinstance(key, int):
            return str(key)
        # SQLite ends a statement at a NUL.
        return f"CAST(x'{key.encode().hex()}' AS TEXT)" if "\0" in key else "'" + key.replace("'", "''") + "'"

    def _check_whole(self) -> None:
        """SQLite itself reads what a cut file lacks as zeros. The last pages may still be in the file beside it."""
        ((pages,),), ((size,),) = self.ask("PRAGMA page_count"), self.ask("PRAGMA page_size")
        beside = Path(f"{self.uri}-wal")
        if Path(self.uri).stat().st_size < pages * size and not (beside.exists() and beside.stat().st_size):
            raise InputCorrupt(f"{self.uri}: not a readable SQLite file: it was cut off")


def _text(raw: bytes) -> str | bytes:
    """A text that is not UTF-8 stays bytes, which cost their row and not the statement."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _array(values: list[Any], column: pa.Field) -> pa.Array:
    """The values of a column. An integer that a float would round is of another type, unless the job declares it.

    Raises:
        ArrowInvalid: A value is of another type.
    """
    kind, is_ = column.type, pa.types
    known: tuple[type, ...] = (int, float, str)
    if is_text(kind) or is_.is_binary(kind) or is_.is_large_binary(kind):
        known = (str,) if is_text(kind) else (bytes,)
    elif is_.is_integer(kind) or is_.is_floating(kind):
        known = (int,) if is_.is_integer(kind) else (int, float)
    if any(value is not None and type(value) not in known for value in values):
        raise pa.ArrowInvalid("another type")
    if is_.is_floating(kind):
        if not is_declared(column) and any(type(value) is int and is_rounded(value) for value in values):
            raise pa.ArrowInvalid("a float would lose digits")
        values = [None if value is None else float(value) for value in values]
    try:
        return cast_exactly(pa.chunked_array([pa.array(values)]), kind).combine_chunks()
    except pa.ArrowNotImplementedError as error:
        raise pa.ArrowInvalid(str(error)) from error


def _is_other(value: Any, column: pa.Field) -> bool:
    try:
        _array([value], column)
    except pa.ArrowInvalid:
        return True
    return False
