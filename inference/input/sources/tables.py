"""What table formats share: Delta Lake, Iceberg and Lance.

The format lists the data files of one snapshot. A file's `_row` counts the rows that the snapshot has of it. The number
of the snapshot is in each file's version, so that every process reads the snapshot that was found. A process keeps the
last few snapshots that it used.

`TableSource` reads the files of formats whose data files are Parquet: Delta Lake and Iceberg. These say of each file
which values its partition has and which of its rows are deleted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from threading import Lock
from typing import Any, Generic, Protocol, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nightjar.inference.errors import InputChanged, InputCorrupt, JobError, Missing
from nightjar.inference.input.listing import there
from nightjar.inference.input.sources import parquet
from nightjar.inference.input.sources.fitting import check_columns, fitted
from nightjar.inference.input.sources.protocol import Description, Source
from nightjar.inference.input.sources.rows import constant
from nightjar.inference.job.where import Condition
from nightjar.inference.records import Piece
from nightjar.inference.storage.protocol import Entry, Storage, of_table, snapshot_of

_SNAPSHOTS = 4
"""The number of snapshots that a process keeps."""

Mask = npt.NDArray[np.bool_]


class SnapshotFile(Protocol):
    """A file of a snapshot. size: in bytes. content: names its deleted rows and other filters; "-" for none."""

    @property
    def size(self) -> int: ...

    @property
    def content(self) -> str: ...


File = TypeVar("File", bound=SnapshotFile)


@dataclass(frozen=True)
class Snapshot(Generic[File]):
    """A table's snapshot. number: its name, and behind a space what opens it. schema: normalised. files: by uri."""

    number: str
    schema: pa.Schema
    files: Mapping[str, File]


class SnapshotSource(Source, Generic[File]):
    """Base of the table formats. uri: of the table, see `Source.at`."""

    divisible = True
    uri: str = ""

    def at(self, uri: str) -> Self:
        placed: Self = replace(cast(Any, self), uri=uri.rstrip("/"))
        return placed

    @abstractmethod
    def opened(self, storage: Storage, number: str | None) -> Snapshot[File] | None:
        """Open the snapshot of this number; without one, the snapshot that the options name, or the newest. None if
        there is no such table.

        Raises:
            JobError: There is no such snapshot, or it cannot be read. Names the key.
            InputChanged: There is no snapshot of this number any more.
            StorageError: The storage refused or failed.
        """

    def files(self, storage: Storage, uri: str) -> Iterator[Entry]:
        """The data files of one snapshot, also those that do not exist any more."""
        snapshot = _snapshot(self, storage, None)
        if snapshot is None:
            return
        found = {entry.uri: entry for entry in storage.list(uri) if entry.uri in snapshot.files}
        for name, file in sorted(snapshot.files.items()):
            entry = found.get(name) or there(storage, name) or Entry(name, file.size, "")
            yield replace(entry, version=of_table(entry.version, file.content, snapshot.number))

    def columns(self, storage: Storage, entry: Entry) -> pa.Schema:
        """As `Source.columns`; every file has the table's."""
        return self.listed(storage, entry.uri, entry.version)[0].schema

    def listed(self, storage: Storage, uri: str, version: str) -> tuple[Snapshot[File], File]:
        """The snapshot in which a file was listed, and the file as it has it.

        Raises:
            InputChanged: There is no such snapshot any more, or it has no such file.
        """
        number = snapshot_of(version)
        snapshot = _snapshot(self, storage, number)
        if snapshot is None or uri not in snapshot.files:
            raise InputChanged(f"{uri}: the table at {self.uri} is another one now; run again to plan it")
        return snapshot, snapshot.files[uri]

    def gone(self, piece: Piece) -> InputChanged:
        lost = self.lost(snapshot_of(piece.version))
        return InputChanged(
            f"{piece.uri}: deleted since it was planned, {lost}; run again to score the newest snapshot"
        )

    def lost(self, number: str) -> str:
        """What to say of a file that a snapshot has and that does not exist."""
        shown = number.partition(" ")[0]
        return f"though snapshot {shown} of the table {self.uri} has this file; keep snapshots while runs read them"

    def no_version(self, number: int, newest: int, *, planned: bool) -> InputChanged | JobError:
        """The error for a version that the table has no longer. planned: whether a plan names it, not the options."""
        if planned:
            return InputChanged(
                f"{self.uri}: the {self.name} table has no version {number} any more, which this run reads; run again "
                "to score the newest one. A cleanup must keep a version for as long as runs read it"
            )
        has = f"has no version {number} (any more); its newest is {newest}"
        return JobError(f"input.options: the {self.name} table {self.uri} {has}")


@dataclass(frozen=True)
class TableFile:
    """A Parquet file, as a snapshot has it.

    size: in bytes. values: of columns with one value. kept: which rows are not deleted; None for all.
    """

    size: int
    values: Mapping[str, pa.Scalar] = field(default_factory=dict)
    kept: Mask | None = None

    @property
    def content(self) -> str:
        """As `SnapshotFile.content`: names the deleted rows by which they are."""
        return "-" if self.kept is None else sha256(np.packbits(self.kept).tobytes()).hexdigest()[:20]

    def positions(self, low: int, high: int) -> npt.NDArray[np.int64]:
        """Where the rows [low, high) that the snapshot has stand in the file."""
        wanted = np.arange(low, high)
        if self.kept is None:
            return wanted
        kept = np.flatnonzero(self.kept)
        behind = wanted + (len(self.kept) - len(kept))
        return np.concatenate([kept[low:high], behind[max(0, len(kept) - low) :]])

    def counted(self, units: tuple[int, ...]) -> tuple[int, ...]:
        """How many rows the snapshot has of each unit. units: the rows of each."""
        if self.kept is None:
            return units
        whole = np.ones(sum(units), dtype=bool)
        whole[: len(self.kept)] = self.kept[: len(whole)]
        ends = np.cumsum(units, dtype=np.int64)
        return tuple(int(part.sum()) for part in np.split(whole, ends[:-1])) if units else ()


TableSnapshot = Snapshot[TableFile]


class TableSource(SnapshotSource[TableFile]):
    """Base of the formats whose data files are Parquet."""

    def known(self, storage: Storage, entry: Entry) -> Mapping[str, pa.Scalar]:
        """As `Source.known`: the values of the file's partition."""
        return self.listed(storage, entry.uri, entry.version)[1].values

    @abstractmethod
    def stored(self, snapshot: TableSnapshot, own: pa.Schema) -> Mapping[str, str]:
        """The columns of a file by their names in the table. own: the file's schema."""

    def as_named(
        self, snapshot: TableSnapshot, name: str, kind: pa.DataType, values: pa.ChunkedArray
    ) -> pa.ChunkedArray:
        """The values of a file's column, where the fields in it have the names that they have in the table, and those
        that it has no longer are left out. name: of the column in the table. kind: its type in the file.

        Raises:
            ArrowInvalid, ArrowNotImplementedError: It has other fields than the file says.
        """
        return values

    def before(self, snapshot: TableSnapshot, name: str, kind: pa.DataType) -> pa.Scalar:
        """The value of a column in the rows of a file that was written before the table had the column."""
        return pa.scalar(None, kind)

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Only the footer is read."""
        snapshot, file = self.listed(storage, entry.uri, entry.version)
        try:
            found = parquet.SOURCE.describe(storage, entry)
        except Missing:
            raise InputCorrupt(f"{entry.uri}: does not exist, {self.lost(snapshot.number)}") from None
        return Description(snapshot.schema, file.counted(found.rows), found.sizes)

    def parts(self, storage: Storage, piece: Piece, condition: Condition) -> Iterator[Piece]:
        """As `Source.parts`: the Parquet file's, if no row is deleted and its columns have the table's names."""
        snapshot, file = self.listed(storage, piece.uri, piece.version)
        if file.kept is None:
            own = parquet.SOURCE.columns(storage, Entry(piece.uri, piece.size, piece.version))
            there = self.stored(snapshot, own)
            if all(there.get(name) == name for name in condition.columns.names if name in own.names):
                yield from parquet.SOURCE.parts(storage, piece, condition)
                return
        yield piece

    def read(self, storage: Storage, piece: Piece, schema: pa.Schema, most: int | None = None) -> pa.Table:
        snapshot, file = self.listed(storage, piece.uri, piece.version)
        check_columns(piece.uri, snapshot.schema, schema)
        own = parquet.SOURCE.columns(storage, Entry(piece.uri, piece.size, piece.version))
        there = self.stored(snapshot, own)
        names = {name: there[name] for name in schema.names if name in there and name not in file.values}
        positions = file.positions(piece.first_row, piece.first_row + piece.rows)
        wanted = pa.schema([own.field(name) for name in names.values()])
        table = _rows(storage, piece, wanted, positions) if names else None
        rows = piece.rows if table is None else table.num_rows
        columns = {}
        for name in schema.names:
            field = snapshot.schema.field(name)
            if table is not None and name in names:
                named = self.as_named(snapshot, name, own.field(names[name]).type, table[names[name]])
                columns[name] = fitted(piece.uri, named, field, "the table has")
            else:
                columns[name] = constant(file.values.get(name, self.before(snapshot, name, field.type)), rows)
        return pa.table(columns)


_OPENING = Lock()

_KEPT: OrderedDict[tuple[str, str, str | None], Snapshot[Any]] = OrderedDict()
"""The snapshots that this process used last."""


def _snapshot(source: SnapshotSource[File], storage: Storage, number: str | None) -> Snapshot[File] | None:
    """As `SnapshotSource.opened`. A snapshot that is asked for by its number is opened once, also if several threads
    ask.
    """
    with _OPENING:
        found = _KEPT.pop((source.name, source.uri, number), None) or source.opened(storage, number)
        if found is not None:
            _KEPT[source.name, source.uri, number or found.number] = found
            while len(_KEPT) > _SNAPSHOTS:
                _KEPT.popitem(last=False)
        return found


def _rows(storage: Storage, piece: Piece, schema: pa.Schema, positions: npt.NDArray[np.int64]) -> pa.Table:
    """The rows of a file that stand at these positions."""
    if not len(positions):
        return schema.empty_table()
    first, rows = int(positions[0]), int(positions[-1] - positions[0]) + 1
    table = parquet.SOURCE.read(storage, replace(piece, first_row=first, rows=rows), schema)
    if rows == len(positions):
        return table
    wanted = positions - first
    return table.take(pa.array(wanted[wanted < table.num_rows], pa.int64()))
