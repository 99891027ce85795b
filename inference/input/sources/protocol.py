"""The seam of input formats: list an input's files, describe a file, and read its rows.

A new format is a module with a `SOURCE` here, and one line in `job.seams.SOURCES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, cast

import pyarrow as pa

from nightjar.inference.errors import InputChanged, JobError, Missing
from nightjar.inference.input import listing
from nightjar.inference.input.sources.rows import RowsRead, as_rows
from nightjar.inference.job.options import Option, check
from nightjar.inference.job.where import Condition
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Entry, Storage, is_local, untouched

Bound = Callable[[pa.Schema], Condition | None]
"""Makes of `input.where` the part that concerns only columns of a schema; None if no part does."""


@dataclass(frozen=True, slots=True)
class Description:
    """What is in a file. A unit is a part of a file that can be read by itself; a shard has whole units.

    schema: normalised; a table's fields say what they are bound to (`bindings`). rows: the number of rows of each unit,
    in file order. sizes: the estimated bytes of each unit after decoding. If a file has only one unit, its rows may be
    `UNKNOWN`. If it has several, they must be known, because each row is named by its index in the file. A unit may be
    empty; if the source is not divisible, no piece begins with an empty unit other than the file's first.

    unseen: set if the types are inferred from values, so that those of several files are reconciled: the type of a
    column without a single value, which `schema` has as null.
    """

    schema: pa.Schema
    rows: tuple[int, ...]
    sizes: tuple[int, ...]
    unseen: pa.DataType | None = None

    @property
    def has_say(self) -> bool:
        """Whether the file counts for the columns of the input: it has rows, or may have some, and columns of them."""
        return any(self.rows) and len(self.schema) > 0

    def __post_init__(self) -> None:
        if UNKNOWN in self.rows and len(self.rows) > 1:
            raise ValueError("in a file of several units the rows of each unit must be known")


class Source(Protocol):
    """One input format. `reading` converts the errors of Arrow and of the operating system.

    name: for messages. suffixes: the ends of its files' names, in lower case; empty for a table format, which lists its
    files itself. of_files: whether a person's single file can be its input, as none can of a table or database. mark:
    the folder in which a table of this format has files of such names; empty for formats of files. divisible: whether
    `read` and `sample` take a piece that begins or ends within a unit, for which its `first_row` and `rows` say where;
    then a plan cuts large units. stands_back: without `input.format` its files are input only if there are no files of
    another format. plain: the ends of names that tell plain text, if such a file may be of this format, too, where
    `input.format` names it. typed: whether a file says which types its columns have; else `read` takes any types as
    which the values can be read. columns_apart: whether `read` spends next to nothing on columns that it is not asked
    for; then the columns of `input.where` are read before the others. beside: the ends that are added to a file's name
    for files that belong to it. options: those that `with_options` takes. extra: of pyproject.toml, which has what the
    source needs; empty if it needs nothing.
    """

    name: str
    suffixes: tuple[str, ...]
    of_files: bool
    mark: str
    divisible: bool
    stands_back: bool
    plain: tuple[str, ...]
    typed: bool
    columns_apart: bool
    beside: tuple[str, ...]
    options: tuple[Option, ...]
    extra: str

    def with_options(self, options: Mapping[str, Any]) -> Source:
        """This source with `input.options` of a job.

        Raises:
            JobError: It has no such option, or not with such a value. Names the key.
        """

    def at(self, uri: str) -> Source:
        """This source for the input at `input.uri`. A table's files are read with what the table says of them."""

    def files(self, storage: Storage, uri: str) -> Iterator[Entry]:
        """List the files of `input.uri`, sorted by uri; none if there is no input yet.

        A table format lists the files of one snapshot, and names it in their versions (`versions.of_table`).

        Raises:
            JobError: The uri, or an option, names no input. Names the key.
        """

    def may_match(self, storage: Storage, entry: Entry, bound: Bound) -> bool:
        """Whether a listed file may have rows that match `input.where`, by what its listing says of it. It is not read.

        Raises:
            InputChanged: As in `check_unchanged`.
        """

    def check_unchanged(self, storage: Storage, piece: Piece) -> None:
        """Check that what the piece is read from is what was planned.

        Raises:
            InputChanged: It is not.
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

    def doubts(self, storage: Storage, uri: str, columns: pa.Schema) -> Iterator[str]:
        """A sentence for each of these columns whose inferred type hangs on a few values in the file's beginning.

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

    def parts(self, storage: Storage, piece: Piece, condition: Condition) -> Iterator[Piece]:
        """The parts of a piece that may have rows that match `input.where`, in order; those that are left out have
        none. A piece with an unknown number of rows is one part.

        Raises:
            InputCorrupt: As in `read`.
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


class FileSource(ABC):
    """Base of the formats whose input is a file, a folder or a pattern."""

    name: str
    of_files = True
    mark = ""
    divisible = False
    stands_back = False
    plain: ClassVar[tuple[str, ...]] = ()
    typed = True
    columns_apart = False
    beside: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[Option, ...]] = ()
    extra = ""

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """As `Source.with_options`."""
        check(self.name, options, self.options, "input.options", "format")
        return self.chosen(options)

    def chosen(self, options: Mapping[str, Any]) -> Self:
        """This source with options that conform to those that it declares: they are its fields.

        Raises:
            JobError: A value cannot be. Names the key.
        """
        given: dict[str, Any] = dict(options)
        return replace(cast(Any, self), **given) if given else self

    def files(self, storage: Storage, uri: str) -> Iterator[Entry]:
        """As `Source.files`."""
        return listing.matching(storage, uri)

    def at(self, uri: str) -> Self:
        """As `Source.at`; a file says itself what is in it."""
        return self

    def may_match(self, storage: Storage, entry: Entry, bound: Bound) -> bool:
        """As `Source.may_match`; a listing of files says nothing of their rows."""
        return True

    def check_unchanged(self, storage: Storage, piece: Piece) -> None:
        """As `Source.check_unchanged`, by the file's size and version."""
        try:
            now = storage.stat(piece.uri)
        except Missing:
            raise self.gone(piece) from None
        if now.size != piece.size or not untouched(now.version, piece.version):
            how = f"size {piece.size} → {now.size}"
            if now.size == piece.size:
                how = "its size is the same"
                how += "; each machine must read the same file, not a copy of its own" if is_local(piece.uri) else ""
            raise InputChanged(f"{piece.uri}: changed since it was planned ({how}); run again to score what it has now")

    def gone(self, piece: Piece) -> InputChanged:
        return InputChanged(f"{piece.uri}: deleted since it was planned; run again to plan without it")

    @abstractmethod
    def describe(self, storage: Storage, entry: Entry) -> Description:
        """As `Source.describe`."""

    def columns(self, storage: Storage, entry: Entry) -> pa.Schema:
        """As `Source.columns`, for a format that describes a file cheaply."""
        return self.describe(storage, entry).schema

    def doubts(self, storage: Storage, uri: str, columns: pa.Schema) -> Iterator[str]:
        """As `Source.doubts`, for a format that says its types, or takes those of most values."""
        yield from ()

    @abstractmethod
    def read(self, storage: Storage, piece: Piece, schema: pa.Schema, most: int | None = None) -> pa.Table | RowsRead:
        """As `Source.read`."""

    def sample(
        self, storage: Storage, piece: Piece, schema: pa.Schema, rows: int, *, last: bool
    ) -> tuple[pa.Table | RowsRead, int]:
        """As `Source.sample`, at the cost of the whole piece."""
        found = as_rows(self.read(storage, piece, schema))
        first = max(0, found.table.num_rows - rows) if last else 0
        return found.slice(first, rows), first

    def parts(self, storage: Storage, piece: Piece, condition: Condition) -> Iterator[Piece]:
        """As `Source.parts`, for a format that says nothing of its rows before they are read."""
        yield piece


def lacking(key: str, what: str, extra: str, error: ImportError) -> JobError:
    """The error for a source whose package is not installed. what: it reads. extra: of pip, that brings the package."""
    return JobError(f"{key}: {what} needs another package ({error}); `pip install 'nightjar-batch[{extra}]'`")
