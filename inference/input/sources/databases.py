"""What `sql` needs of each kind of database. A new one is a module with these two, and a line in `sql`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, unquote

import pyarrow as pa

from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.storage.protocol import Storage

Key = int | str


@dataclass(frozen=True, slots=True)
class Range:
    """The rows with low <= key < high; None is open."""

    low: Key | None
    high: Key | None

    def __str__(self) -> str:
        return f"{_written(self.low)}..{_written(self.high)}"

    @classmethod
    def of(cls, text: str) -> Range:
        """The inverse of `str`."""
        low, _, high = text.partition("..")
        return cls(_read(low), _read(high))


class Session(Protocol):
    """A connection on which every statement sees the same rows. source: a table's name or a query in brackets."""

    def key_counts(self, source: str, key: str) -> tuple[int, int, int]:
        """The number of rows, of keys that are not null, and of different keys.

        Raises:
            JobError: The key's type has no order that ranges could be made of. Names the option.
        """

    def bounds(self, source: str, key: str, every: int) -> list[Key]:
        """The first key, and each that stands so many rows behind the one before."""

    def content(self, source: str, key: str, rows: Range) -> tuple[int, str]:
        """The number of rows of a range, and a text without spaces that changes with any of its rows."""

    def described(self, source: str) -> tuple[pa.Schema, pa.DataType | None]:
        """The columns, and as in `Description.unseen`."""

    def names(self, source: str) -> pa.Schema:
        """The columns, in types as which `read` takes them, bound to the names by which `content` knows them."""

    def read(self, uri: str, source: str, key: str, rows: Range, schema: pa.Schema, part: range) -> RowsRead:
        """These rows of a range, in the order of the key, with the columns of `schema`. uri: for messages."""


class Database(Protocol):
    """A kind of database."""

    @property
    def typed(self) -> bool:
        """As `Source.typed`."""

    def quoted(self, table: str) -> str:
        """The table's name in statements."""

    def session(self) -> AbstractContextManager[Session]:
        """Open a session that cannot write.

        Raises:
            JobError, StorageError: There is no such database, or it refused.
        """

    def version(self, storage: Storage) -> str | None:
        """The version of all that the database has, "-" if it has none; None if there is no database.

        Raises:
            StorageError: The storage refused or failed.
        """


def _written(key: Key | None) -> str:
    if key is None:
        return ""
    # A dot would be taken for the end of the key.
    return str(key) if isinstance(key, int) else quote(f"'{key}'", safe="").replace(".", "%2E")


def _read(text: str) -> Key | None:
    if not text:
        return None
    key = unquote(text)
    return key[1:-1] if key.startswith("'") else int(key)
