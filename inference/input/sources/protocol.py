"""The seam of input formats: list an input's files, describe a file, and read its rows.

A new format is a module with a `SOURCE` here, and one line in `job.seams.SOURCES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Self, cast

import pyarrow as pa

from nightjar.inference.errors import InputChanged, JobError, Missing
from nightjar.inference.input import listing
from nightjar.inference.input.sources.rows import RowsRead, as_rows
from nightjar.inference.job.options import Option, check
from nightjar.inference.job.where import Condition
from nightjar.inference.messages import install
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.protocol import Entry, Storage, is_local, untouched

# A table's column keeps its number when it is renamed. The binding, kept in the metadata of a field, is that number: it
# counts for the identity of a result, because a name may come to stand for another column though no file changed.
_KEY = b"nightjar:bound"


def bound(field: pa.Field, to: str) -> pa.Field:
    """The field, which says to what it is bound. to: whatever names it in its table, as a number."""
    return field.with_metadata({**(field.metadata or {}), _KEY: to.encode()})


def path(number: int, inner: Iterable[str]) -> str:
    """What a column with a number is bound to, by which its values are found. inner: the paths of the fields in it."""
    within = ",".join(inner)
    return f"{number}({within})" if within else str(number)


def binding(field: pa.Field) -> str:
    """What a field is bound to; empty if its name says it, as in a file."""
    return str((field.metadata or {}).get(_KEY, b""), "utf-8")


def unbound(field: pa.Field) -> pa.Field:
    """The field as it is published: what it was bound to says nothing of the output."""
    if not binding(field):
        return field
    return field.with_metadata({key: value for key, value in field.metadata.items() if key != _KEY} or None)


def rebound(found: pa.Schema, planned: pa.Schema) -> str:
    """The first planned column that is now bound to something else; empty for none. found: the columns now."""
    there = {field.name: binding(field) for field in found}
    return next((each.name for each in planned if there.get(each.name, binding(each)) != binding(each)), "")


@dataclass(frozen=True, slots=True)
class Description:
    """What is in a file. A unit is a part of a file that can be read by itself; a shard has whole units."""

    schema: pa.Schema
    """Normalised; the fields of a table name the column to which they are bound, see `bound`."""
    rows: tuple[int, ...]
    """The number of rows of each unit, in file order. It may be `UNKNOWN` if the file has only one unit; those of
    several must be known, because `_row` counts the rows of the file. A unit may be empty; if the source is not
    divisible, no piece begins with an empty unit other than the file's first."""
    sizes: tuple[int, ...]
    """The estimated bytes of each unit after decoding."""

    def __post_init__(self) -> None:
        if UNKNOWN in self.rows and len(self.rows) > 1:
            raise ValueError("in a file of several units the rows of each unit must be known")


class Source(ABC):
    """One input format: lists an input's files, describes a file, and reads its rows. Errors of Arrow and of the
    operating system are converted by `reading`. Errors of the storage leave a source as they came, also out of a
    library that wraps what its file object raises: the storage knows which of them are tried again.
    """

    name: str
    """For messages."""
    suffixes: tuple[str, ...] = ()
    """The ends of its files' names, in lower case; empty for a format that no name tells."""
    mark = ""
    """A pattern of files that only the folder of a table of this format has; empty for formats of files."""
    divisible = False
    """Whether `read` and `sample` take a piece that begins or ends within a unit, as its `first_row` and `rows` say.
    Then a plan cuts large units."""
    plain: tuple[str, ...] = ()
    """The ends of names of plain text, if such a file may be of this format where `input.format` names it."""
    unseen: pa.DataType | None = None
    """Set if types are inferred from values, so that those of several files are reconciled, and `read` takes any types
    as which the values can be read: the type of a column without a single value, which `describe` gives as null."""
    options: tuple[Option, ...] = ()
    """The options that `with_options` takes."""
    extra = ""
    """The extra of pyproject.toml that the source needs."""

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """This source with `input.options` of a job.

        Raises:
            JobError: It has no such option, or not with such a value. Names the key.
        """
        check(self.name, options, self.options, "input.options", "format")
        return self.chosen(options)

    def chosen(self, options: Mapping[str, Any]) -> Self:
        """This source with options that conform to those that it declares: they are its fields.

        Raises:
            JobError: A value cannot be. Names the key.
        """
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
        return replace(cast(Any, self), **given) if given else self

    def at(self, uri: str) -> Self:
        """This source for the input at `input.uri`. Files of a table are read with what the table says of them."""
        return self

    def imported(self, module: str) -> Any:
        """A module of the package that the source needs.

        Raises:
            JobError: As in `needing`. Names `input.format`.
        """
        with needing("input.format", self.name, self.extra):
            return import_module(module)

    def files(self, storage: Storage, uri: str) -> Iterator[Entry]:
        """List the files of `input.uri`, sorted by uri; none if there is no input yet.

        A table format lists the files of one snapshot, and names it in their versions (`versions.of_table`).

        Raises:
            JobError: The uri, or an option, names no input. Names the key.
        """
        return listing.matching(storage, uri)

    def known(self, storage: Storage, entry: Entry) -> Mapping[str, pa.Scalar]:
        """Columns that have one value in all rows of a listed file, by what its listing says. The file is not read.

        Raises:
            InputChanged: As in `check_unchanged`.
        """
        return {}

    def check_unchanged(self, storage: Storage, piece: Piece) -> None:
        """Check that what the piece is read from is what was planned; here by the file's size and version.

        Raises:
            InputChanged: It is not.
        """
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
        """The error for a file that was deleted since it was planned."""
        return InputChanged(f"{piece.uri}: deleted since it was planned; run again to plan without it")

    @abstractmethod
    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Describe a file after reading a bounded part of it, or one narrow column.

        Raises:
            InputCorrupt: The file is not of this format.
        """

    def columns(self, storage: Storage, entry: Entry) -> pa.Schema:
        """The columns of a file, in types in which `read` takes them; cheaper than `describe` if that counts rows.

        Raises:
            InputCorrupt: The file is not of this format.
        """
        return self.describe(storage, entry).schema

    @abstractmethod
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
        yield piece

    def sample(self, storage: Storage, piece: Piece, schema: pa.Schema, rows: int) -> pa.Table | RowsRead:
        """Read the first rows of a piece, at most `rows`, those among them that cannot be read. Here it costs reading
        the whole piece, if the source is not divisible.

        Raises:
            InputCorrupt, SchemaMismatch, OverBudget: As in `read`.
        """
        if self.divisible:
            return self.read(storage, replace(piece, rows=min(rows, piece.rows)), schema)
        return as_rows(self.read(storage, piece, schema)).slice(0, rows)


@contextmanager
def needing(key: str, what: str, extra: str) -> Iterator[None]:
    """Within it a source imports its package. what: it reads. extra: of pip, that brings the package.

    Raises:
        JobError: The package is not installed. Names the key.
    """
    try:
        yield
    except (ImportError, OSError) as error:
        raise JobError(f"{key}: {what} needs another package ({error}); install it: {install(extra)}") from error
