"""The seam of the formats: which files an input has, what is in one, and how its rows are read.

A new format is a module with a `SOURCE` here, and one line in `job.seams.SOURCES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from nightjar.inference.input import listing
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Entry, Storage


@dataclass(frozen=True, slots=True)
class Description:
    """What is in a file. A unit is what can be read by itself, in file order: a shard is made of whole ones.

    schema: normalised. rows: of each unit. sizes: bytes of each unit once decoded, estimated. The rows of a file's
    only unit may be `UNKNOWN`; those of several may not, as each row is named by its index in the file.
    """

    schema: pa.Schema
    rows: tuple[int, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if UNKNOWN in self.rows and len(self.rows) > 1:
            raise ValueError("a file of several units knows the rows of each")


class Source(Protocol):
    """One format. What Arrow or the operating system raises of a file's bytes is given its type by `reading`.

    name: for messages. suffixes: how the names of its files end, in lower case; none of a table format, whose files
    are those that it lists.
    """

    name: str
    suffixes: tuple[str, ...]

    def files(self, storage: Storage, uri: str) -> Iterator[Entry]:
        """The files of `input.uri`, sorted by uri. A table format lists those of its newest snapshot.

        Raises:
            JobError: the uri names no input; names `input.uri`.
        """

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """What is in a file, from a bounded part of it.

        Raises:
            InputCorrupt: the file is not of this format.
        """

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema) -> pa.Table:
        """The columns of `schema`, at least, of the piece's rows in file order; stored in any way that can be cast.

        Raises:
            InputCorrupt: the bytes cannot be decoded.
            SchemaMismatch: a column is missing, there twice, or holds values of another type.
        """

    def sample(
        self, storage: Storage, piece: Piece, schema: pa.Schema, rows: int, *, last: bool
    ) -> tuple[pa.Table, int]:
        """The first rows of a piece, or its last ones, at most `rows`; and how many rows of it lie before them.

        Raises:
            InputCorrupt, SchemaMismatch: as `read`.
        """


class FileSource:
    """What the formats share whose input is a file, a folder or a pattern."""

    def files(self, storage: Storage, uri: str) -> Iterator[Entry]:
        """As `Source.files`."""
        return listing.matching(storage, uri)
