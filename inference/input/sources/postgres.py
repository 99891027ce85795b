"""Databases of Postgres, for `sql`, through ADBC, which receives columns as Arrow.

Passwords and certificates come from where libpq looks for them (`PGPASSWORD`, `PGPASSFILE`, `~/.pgpass`, `PGSERVICE`),
on every machine that reads. No uri has one, so none can reach a ledger, a log or a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nightjar.inference.errors import JobError, StorageError, Transient
from nightjar.inference.input.sources.bindings import bound
from nightjar.inference.input.sources.databases import Key, Range
from nightjar.inference.input.sources.normalisation import normalised
from nightjar.inference.input.sources.protocol import lacking
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.storage.protocol import Storage

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

_PLAIN_TABLES = "'r', 'p', 'm'"
"""What has rows of its own: tables, also of several parts, and materialised views."""


@dataclass(frozen=True)
class Postgres:
    """A database of Postgres, as `databases.Database`."""

    uri: str
    typed = True

    def quoted(self, table: str) -> str:
        """Of `shop.flights` each part is a name."""
        return ".".join(map(_name, table.split(".")))

    @contextmanager
    def session(self) -> Iterator[PostgresSession]:
        try:
            import adbc_driver_postgresql.dbapi as adbc
        except ImportError as error:
            raise lacking("input.uri", "Postgres", "postgres", error) from error
        try:
            with adbc.connect(self.uri) as opened:
                session = PostgresSession(opened)
                session.ask("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                yield session
        except adbc.OperationalError as error:
            raise Transient(f"{self.uri}: {_said(error)}") from error
        except adbc.ProgrammingError as error:
            raise JobError(f"input.options: {self.uri}: {_said(error)}") from error
        except adbc.Error as error:
            raise StorageError(f"{self.uri}: {_said(error)}") from error

    def version(self, storage: Storage) -> str | None:
        """As `Database.version`; what changed is known of each range."""
        return "-"


@dataclass(frozen=True)
class PostgresSession:
    """As `databases.Session`: one transaction, which sees the rows as they are when it begins."""

    opened: Connection

    def key_counts(self, source: str, key: str) -> tuple[int, int, int]:
        if key not in (names := self._columns(source).names):
            raise JobError(f"input.options.key: there is no column {key!r}; known: {', '.join(names)}")
        name = _name(key)
        found = self.ask(f"SELECT count(*), count({name}), count(DISTINCT {name}) FROM {source}")
        rows, keys, different = (column[0].as_py() for column in found.columns)
        return rows, keys, different

    def bounds(self, source: str, key: str, every: int) -> list[Key]:
        """A key that is no whole number is a text here; Postgres takes it for what it is."""
        whole = pa.types.is_integer(self._columns(source).field(key).type)
        name = _name(key)
        numbered = f"SELECT {name} AS k, row_number() OVER (ORDER BY {name}) - 1 AS n FROM {source}"
        found = self.ask(f"SELECT k::text FROM ({numbered}) AS numbered WHERE n % {every} = 0 ORDER BY numbered.k")
        return [int(key) if whole else key for key in found.column(0).to_pylist()]

    def content(self, source: str, key: str, rows: Range) -> tuple[int, str]:
        """As `Session.content`: a table's rows by table part and transaction, any others by a hash."""
        table = source.removesuffix(" AS nightjar")
        # With the star no column is meant, whatever the columns are called.
        state = "hashtextextended(ROW(whole.*)::text, 0)"
        if self._is_plain(source):
            state = "hashint8extended(whole.xmin::text::bigint, whole.tableoid::bigint)"
        found = self.ask(
            f"SELECT count(*), coalesce(sum({state}), 0)::text FROM {table} AS whole "
            f"WHERE {_within(key, rows, 'whole.')}"
        )
        count, content = (column[0].as_py() for column in found.columns)
        return count, content

    def described(self, source: str) -> tuple[pa.Schema, pa.DataType | None]:
        return self.names(source), None

    def names(self, source: str) -> pa.Schema:
        """As `Session.names`: a table's columns by their numbers, those of hashed rows by position."""
        own = self._columns(source)
        numbers = (
            self._numbers(source) if self._is_plain(source) else {name: str(at) for at, name in enumerate(own.names)}
        )
        return normalised(pa.schema([bound(pa.field(each.name, _kind(each)), numbers[each.name]) for each in own]))

    def read(self, uri: str, source: str, key: str, rows: Range, schema: pa.Schema, part: range) -> RowsRead:
        own = self._columns(source)
        columns = ", ".join(_selected(own.field(name)) for name in schema.names)
        ordered = f"WHERE {_within(key, rows)} ORDER BY {_name(key)} LIMIT {len(part)} OFFSET {part.start}"
        found = self.ask(f"SELECT {columns or 'NULL AS nothing'} FROM {source} {ordered}")
        return RowsRead(pa.table({name: _plain(found[name], _kind(own.field(name))) for name in schema.names}))

    def ask(self, statement: str) -> pa.Table:
        """The result of a statement."""
        with self.opened.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetch_arrow_table() if cursor.description else pa.table({})

    def _columns(self, source: str) -> pa.Schema:
        return self.ask(f"SELECT * FROM {source} LIMIT 0").schema

    def _numbers(self, source: str) -> dict[str, str]:
        """The number of each column of a table, behind that of the table."""
        found = self.ask(
            "SELECT attname::text, attrelid::text || '.' || attnum::text FROM pg_attribute "
            f"WHERE attrelid = {_literal(source)}::regclass AND attnum > 0 AND NOT attisdropped"
        )
        return dict(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def _is_plain(self, source: str) -> bool:
        if source.startswith("("):
            return False
        kind = f"SELECT relkind IN ({_PLAIN_TABLES}) FROM pg_class WHERE oid = {_literal(source)}::regclass"
        return bool(self.ask(kind).column(0)[0].as_py())


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(key: Key) -> str:
    """A value that Postgres takes for one of its column's type."""
    text = str(key)
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


def _within(key: str, rows: Range, prefix: str = "") -> str:
    sides = ((">=", rows.low), ("<", rows.high))
    name = f"{prefix}{_name(key)}"
    return " AND ".join(f"{name} {sign} {_literal(bound)}" for sign, bound in sides if bound is not None) or "true"


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
    name = _name(column.name)
    return f"{name}::text AS {name}" if isinstance(column.type, pa.BaseExtensionType) else name


def _plain(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == kind else column.cast(kind)


def _said(error: Exception) -> str:
    """The first lines of a message, on one line; behind them comes the statement."""
    return " ".join(str(error).split("Query was")[0].split())
