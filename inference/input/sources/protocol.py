"""The seam of input formats: list an input's files, describe a file, and read its rows.

A new format is a module with a `SOURCE` here, and one line in `job.seams.SOURCES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.input import listing
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Entry, Storage


@dataclass(frozen=True, slots=True)
class Description:
    """What is in a file. A unit is a part of a file that can be read by itself; a shard has whole units.

    schema: normalised. rows: the number of rows of each unit, in file order. sizes: the estimated bytes of each unit
    after decoding. If a file has only one unit, its rows may be `UNKNOWN`. If it has several, they must be known,
    because each row is named by its index in the file. A unit may be empty; if the source is not
    divisible, no piece begins with an empty unit other than the file's first.

    unseen: set if the types are inferred from values, so that those of several files are reconciled: the type of a
    column without a single value, which `schema` has as null.
    """

    schema: pa.Schema
    rows: tuple[int, ...]
    sizes: tuple[int, ...]
    unseen: pa.DataType | None = None

    def __post_init__(self) -> None:
        if UNKNOWN in self.rows and len(self.rows) > 1:
            raise ValueError("in a file of several units the rows of each unit must be known")


class Source(Protocol):
    """One input format. `reading` converts the errors of Arrow and of the operating system.

    name: for messages. suffixes: the ends of its files' names, in lower case; empty for a table format, which lists its
    files itself. divisible: whether `read` and `sample` take a piece that begins or ends within a unit, for which its
    `first_row` and `rows` say where; then a plan cuts large units. stands_back: without `input.format` its files are
    input only if there are no files of another format. typed: whether a file says which types its columns have; else
    `read` takes any types as which the values can be read.
    """

    name: str
    suffixes: tuple[str, ...]
    divisible: bool
    stands_back: bool
    says_text: bool
    typed: bool

    def with_options(self, options: Mapping[str, Any]) -> Source:
        """This source with `input.options` of a job.

        Raises:
            JobError: It has no such option, or not with such a value. Names the key.
        """

    def files(self, storage: Storage, uri: str) -> Iterator[Entry]:
        """List the files of `input.uri`, sorted by uri. A table format lists the files of its newest snapshot.

        Raises:
            JobError: The uri names no input. Names `input.uri`.
        """

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Describe a file after reading a bounded part of it.

        Raises:
            InputCorrupt: The file is not of this format.
        """

    def columns(self, storage: Storage, entry: Entry) -> pa.Schema:
        """The columns of a file, in types in which `read` takes them; cheaper than `describe` if that counts rows.

        Raises:
            InputCorrupt: The file is not of this format.
        """

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema, most: int | None = None) -> pa.Table | RowsRead:
        """Read the piece's rows in file order, with at least the columns of `schema`, in types that can be cast to it.

        What is wrong with one row is the failure of that row; what is wrong with the file is an error. A table says
        that each row could be read. most: the most rows that may fail, if known; with more of them a source may stop.

        Raises:
            InputCorrupt: The bytes cannot be decoded.
            SchemaMismatch: A column is missing, occurs twice, or has values of another type.
            OverBudget: More rows than may cannot be read.
        """

    def sample(
        self, storage: Storage, piece: Piece, schema: pa.Schema, rows: int, *, last: bool
    ) -> tuple[pa.Table | RowsRead, int]:
        """Read the first rows of a piece, or with `last` its last rows: at most `rows`, those among them that cannot be
        read.

        Returns the rows, and the number of the piece's rows before them.

        Raises:
            InputCorrupt, SchemaMismatch, OverBudget: As in `read`.
        """


class FileSource:
    """Base of the formats whose input is a file, a folder or a pattern."""

    name: str
    divisible = False
    stands_back = False
    says_text = False
    typed = True

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """As `Source.with_options`, for a format that has none."""
        if options:
            raise JobError(f"input.options: the {self.name} format has no options; leave it out")
        return self

    def files(self, storage: Storage, uri: str) -> Iterator[Entry]:
        """As `Source.files`."""
        return listing.matching(storage, uri)
