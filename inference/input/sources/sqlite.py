"""SQLite files, for `sql`. A value says its type there, not its column, so a value of another type costs its row."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import InputCorrupt, JobError, Missing, SchemaMismatch, Transient
from nightjar.inference.input.sources.databases import Key, Range
from nightjar.inference.input.sources.digits import is_rounded
from nightjar.inference.input.sources.fitting import cast_exactly, is_declared, told
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.messages import clip
from nightjar.inference.records import RowFailure
from nightjar.inference.storage.protocol import Storage

_TYPES = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "blob": pa.binary()}
"""What SQLite calls a value's type → the column's type."""

_COUNTED = 400
"""The most columns whose types are counted by one statement. Each has four sums, and SQLite returns at most 2,000."""


class _NotUtf8(bytes):
    """A text that is not UTF-8. As a value of a type of its own it costs its row, and not the statement."""


_PYTHON = {int: "a whole number", float: "a number", str: "text", bytes: "bytes", _NotUtf8: "text that is not UTF-8"}


@dataclass(frozen=True)
class Sqlite:
    """A SQLite file, as `databases.Database`. path: absolute."""

    path: str
    typed = False

    def quoted(self, table: str) -> str:
        """Of `main.flights` each part is a name."""
        return ".".join(map(_name, table.split(".")))

    @contextmanager
    def session(self) -> Iterator[SqliteSession]:
        """The file must be there: opened to be read alone, it is not made."""
        try:
            with closing(sqlite3.connect(f"file:{quote(self.path)}?mode=ro", uri=True, isolation_level=None)) as opened:
                opened.text_factory = _text
                opened.execute("BEGIN")
                self._check_whole(opened)
                yield SqliteSession(self.path, opened)
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR):
                raise Transient(f"{self.path}: {error}") from error
            raise JobError(f"input.options: {self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise InputCorrupt(f"{self.path}: not a readable SQLite file: {error}") from error

    def _check_whole(self, opened: sqlite3.Connection) -> None:
        """SQLite itself reads what a cut file lacks as zeros. The last pages may still be in the file beside it."""
        ((pages,),), ((size,),) = opened.execute("PRAGMA page_count").fetchall(), opened.execute("PRAGMA page_size")
        beside = Path(f"{self.path}-wal")
        if Path(self.path).stat().st_size < pages * size and not (beside.exists() and beside.stat().st_size):
            raise InputCorrupt(f"{self.path}: not a readable SQLite file: it was cut off")

    def version(self, storage: Storage) -> str | None:
        """As `Database.version`: of the file, and of what was written beside it and is not in it yet."""
        try:
            file = storage.stat(self.path).version
        except Missing:
            return None
        try:
            beside = storage.stat(f"{self.path}-wal")
        except Missing:
            return file
        # SQLite gives this file the owner of the other one when it opens it: the change of its status says nothing.
        return f"with-wal:{file}:{beside.version.partition('+')[0]}:{beside.size}" if beside.size else file


@dataclass(frozen=True)
class SqliteSession:
    """As `databases.Session`."""

    path: str
    opened: sqlite3.Connection

    def key_counts(self, source: str, key: str) -> tuple[int, int, int]:
        name = self._column(source, key)
        kinds = [
            kind for (kind,) in self._ask(f"SELECT DISTINCT typeof({name}) FROM {source} WHERE {name} IS NOT NULL")
        ]
        if len(kinds) > 1 or not {*kinds} <= {"integer", "text"}:
            raise JobError(
                f"input.options.key: {key!r} has values of the type {' and '.join(sorted(kinds))}; name a column that "
                "has whole numbers, or texts"
            )
        ((rows, keys, different),) = self._ask(f"SELECT count(*), count({name}), count(DISTINCT {name}) FROM {source}")
        return rows, keys, different

    def bounds(self, source: str, key: str, every: int) -> list[Key]:
        name = _name(key)
        numbered = f"SELECT {name} AS k, row_number() OVER (ORDER BY {name}) - 1 AS n FROM {source}"
        found = [bound for (bound,) in self._ask(f"SELECT k FROM ({numbered}) WHERE n % {every} = 0 ORDER BY k")]
        if odd := next((bound for bound in found if isinstance(bound, _NotUtf8)), None):
            raise JobError(
                f"input.options.key: {key!r} has {bytes(odd)!r:.100}, which is not UTF-8; name another column"
            )
        return found

    def content(self, source: str, key: str, rows: Range) -> tuple[int, str]:
        """As `Session.content`; whether a row changed is known of the whole file."""
        ((count,),) = self._ask(f"SELECT count(*) FROM {source} WHERE {_within(key, rows)}", _bounds(rows))
        return count, "-"

    def described(self, source: str) -> tuple[pa.Schema, pa.DataType | None]:
        """All values are counted by their types, and most of them decide."""
        names, fields = self.names(source).names, list[pa.Field]()
        for low in range(0, len(names), _COUNTED):
            some = names[low : low + _COUNTED]
            sums = [f"sum(typeof({_name(name)}) = '{kind}')" for name in some for kind in _TYPES]
            (counts,) = self._ask(f"SELECT {', '.join(sums)} FROM {source}")
            for index, name in enumerate(some):
                at = index * len(_TYPES)
                fields.append(pa.field(name, _most([count or 0 for count in counts[at : at + len(_TYPES)]])))
        return pa.schema(fields), pa.string()

    def names(self, source: str) -> pa.Schema:
        """Any column can be read as any type, as far as its values go."""
        found = self.opened.execute(f"SELECT * FROM {source} LIMIT 0").description
        return pa.schema([pa.field(name, pa.string()) for name, *_ in found])

    def read(self, uri: str, source: str, key: str, rows: Range, schema: pa.Schema, part: range) -> RowsRead:
        names = ", ".join(map(_name, schema.names)) or "NULL"
        ordered = f"WHERE {_within(key, rows)} ORDER BY {_name(key)} LIMIT {len(part)} OFFSET {part.start}"
        lines = self._ask(f"SELECT {names} FROM {source} {ordered}", _bounds(rows))
        table, failures = pa.table([pa.nulls(len(lines))], names=[""]), dict[int, RowFailure]()
        for index, column in enumerate(schema):
            values, faults = _converted(uri, [line[index] for line in lines], column, part.start)
            table = table.append_column(column.with_nullable(True), values)
            failures |= {row: fault for row, fault in faults.items() if row not in failures}
        return RowsRead(table.select(range(1, table.num_columns)) if len(schema) else table, failures)

    def _ask(self, statement: str, bounds: tuple[Key, ...] = ()) -> list[tuple[Any, ...]]:
        return self.opened.execute(statement, bounds).fetchall()

    def _column(self, source: str, key: str) -> str:
        # SQLite takes a name in quotes that is no column for a text.
        if key not in (names := self.names(source).names):
            raise JobError(f"input.options.key: there is no column {key!r}; known: {', '.join(names)}")
        return _name(key)


def _text(raw: bytes) -> str | _NotUtf8:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _NotUtf8(raw)


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _within(key: str, rows: Range) -> str:
    sides = [f"{_name(key)} {sign} ?" for sign, bound in ((">=", rows.low), ("<", rows.high)) if bound is not None]
    return " AND ".join(sides) or "1"


def _bounds(rows: Range) -> tuple[Key, ...]:
    return tuple(bound for bound in (rows.low, rows.high) if bound is not None)


def _most(counts: list[int]) -> pa.DataType:
    """The type of a column with so many values of each type; null without any."""
    whole, real, *_ = counts
    counts = [0, whole + real, *counts[2:]] if real else counts
    most = max(counts)
    return list(_TYPES.values())[counts.index(most)] if most else pa.null()


def _converted(uri: str, values: list[Any], column: pa.Field, first: int) -> tuple[pa.Array, dict[int, RowFailure]]:
    """The values of a column as its type, null where one is of another; and the failures of these rows.

    Raises:
        SchemaMismatch: Values of SQLite cannot be read as this type at all.
    """
    kind, exact = column.type, not is_declared(column)
    try:
        return _array(values, kind, exact), {}
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError):
        pass
    except pa.ArrowNotImplementedError:
        raise SchemaMismatch(f"{uri}: column {column.name!r} is of SQLite, {told(column)}") from None
    kept, failures = list(values), dict[int, RowFailure]()
    for row, value in enumerate(values):
        try:
            _array([value], kind, exact)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError):
            kept[row] = None
            fault = SchemaMismatch(
                f"{uri}: row {first + row}: column {column.name!r} is {_PYTHON[type(value)]} ({value!r:.100}), "
                f"{told(column)}"
            )
            failures[row] = RowFailure(row, "SchemaMismatch", clip(str(fault)), "", str(value)[:2048])
    return _array(kept, kind, exact), failures


def _array(values: list[Any], kind: pa.DataType, exact: bool) -> pa.Array:
    """The values as an array; one of another type is an error. exact: so is an integer that a float would round."""
    is_ = pa.types
    if is_.is_nested(kind):
        raise pa.ArrowNotImplementedError("no type of SQLite")
    if is_text(kind) or is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_integer(kind):
        wanted = int if is_.is_integer(kind) else str if is_text(kind) else bytes
        if any(value is not None and type(value) is not wanted for value in values):
            raise TypeError("another type")
        return pa.array(values, kind)
    if any(isinstance(value, bytes) for value in values):
        raise TypeError("another type")
    if is_.is_floating(kind):
        if any(isinstance(value, str) for value in values):
            raise TypeError("another type")
        if exact and any(type(value) is int and is_rounded(value) for value in values):
            raise TypeError("a float would lose digits")
        values = [None if value is None else float(value) for value in values]
    if all(value is None for value in values):
        return pa.nulls(len(values), kind)
    return cast_exactly(pa.chunked_array([pa.array(values)]), kind).combine_chunks()
