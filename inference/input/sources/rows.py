"""Rows as a source reads them: a table, and a failure for each row that cannot be read.

A row that cannot be read costs that row. It stays in the table as nulls, so that every other row keeps its index.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from nightjar.inference.errors import InputCorrupt, OverBudget, SchemaMismatch
from nightjar.inference.messages import clip, counted
from nightjar.inference.records import Piece, RowFailure

MOST_UNREADABLE = 10_000
"""The most rows of one piece that may be unreadable while the run has no budget, because nobody knows its rows yet.
Their failures are kept in memory, and finding a value of another type takes some milliseconds."""

_FREELY = 1 << 30
"""Rows of so many bytes are held whatever memory is left."""

_CGROUP = Path("/sys/fs/cgroup")

_BLOCK_ROWS = 1 << 16
"""A column has at most this many values in memory, and repeats them: the text of a folder takes no space per row."""

RAW_CHARS = 2048
"""The longest text of an unreadable row that is kept, in characters."""

RowFault = InputCorrupt | SchemaMismatch
"""What is wrong with one row. The types are those that a whole file may fail with, too."""


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows of a file, in its order."""

    table: pa.Table
    """The rows; a row that could not be read is nulls."""

    failures: Mapping[int, RowFailure] = field(default_factory=dict)
    """Index in the table → why this row, of nulls, could not be read."""

    kept: pa.Int64Array | None = None
    """The index of each row among all that were read, ascending; None if the job has no `input.where`."""

    left_out: int = 0
    """Rows that `input.where` left out; 0 in a slice."""

    @property
    def rows(self) -> int:
        """The number of rows that were read, with those left out."""
        return int(self.table.num_rows) + self.left_out

    def index(self, row: int) -> int:
        """The index that a row of the table has among all rows that were read."""
        return row if self.kept is None else int(self.kept[row].as_py())

    def position(self, index: int) -> int:
        """The inverse of `index`; for a row that was left out, the position of the next row that was not."""
        return index if self.kept is None else int(bisect_left(self.kept, index, key=lambda each: each.as_py()))

    def holds(self, index: int) -> bool:
        """Whether a row with this index is in the table."""
        at = self.position(index)
        return 0 <= at < self.table.num_rows and self.index(at) == index

    def indices(self) -> pa.Int64Array:
        """The index of each row of the table."""
        return pa.arange(0, self.table.num_rows) if self.kept is None else self.kept

    @property
    def readable(self) -> int:
        """The number of rows that could be read."""
        return int(self.table.num_rows) - len(self.failures)

    def slice(self, first: int, rows: int | None = None) -> RowsRead:
        """The rows [first, first + rows), or all from `first` on."""
        table = self.table.slice(first, rows)
        kept = range(first, first + table.num_rows)
        failures = shifted({row: self.failures[row] for row in self.failures if row in kept}, -first)
        if self.kept is None:
            return RowsRead(table, failures)
        return RowsRead(table, failures, self.kept.slice(first, table.num_rows))

    def matching(self, takes: np.ndarray) -> RowsRead:
        """The rows to take, and those that could not be read: nobody knows of these whether they match. takes: a bool
        array of shape (rows,).
        """
        takes[list(self.failures)] = True
        (kept,) = np.nonzero(takes)
        placed = zip(np.searchsorted(kept, [*self.failures]).tolist(), self.failures.values(), strict=True)
        failures = {row: replace(failure, row=row) for row, failure in placed}
        table = self.table if len(kept) == len(self.table) else selected(self.table, kept)
        return RowsRead(table, failures, pa.array(kept, pa.int64()), len(self.table) - len(kept))

    def unreadable(self, uri: str) -> str:
        """A sentence for rows of which none could be read."""
        first = self.failures[min(self.failures)]
        return f"none of {counted(len(self.failures), 'row')} of {uri} can be read; the first: {first.message}"


def as_rows(found: object) -> RowsRead:
    """What `Source.read` and `Source.sample` return: a table says that each of its rows could be read.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(found, pa.Table):
        return RowsRead(found)
    if not isinstance(found, RowsRead):
        raise TypeError(f"it read a {type(found).__name__}, not a pyarrow.Table or RowsRead")
    return found


def over_budget(failures: Mapping[int, RowFailure], most: int | None, origin: int) -> OverBudget:
    """The error for more failed rows than may fail. most: as in `Unreadable`. origin: the index in the file of the row
    that `failures` call 0.
    """
    first = min(failures)
    cause = failures[first]
    may = f"{most} may (retry.max_quarantined)"
    if most is None:
        may = f"{MOST_UNREADABLE} may (of one piece, while the run's rows are not counted)"
    error = OverBudget(
        f"{counted(len(failures), 'row')} failed where at most {may}; the first is row {origin + first}: {cause.said}",
        origin + first,
    )
    error.traceback = cause.traceback
    return error


class Unreadable:
    """Collects the rows of a piece that cannot be read, while it is parsed block by block.

    failures: index in the piece → failure.
    """

    def __init__(self, piece: Piece, most: int | None = None) -> None:
        """most: the most rows that may fail; None if the run's budget is not known."""
        self.failures: dict[int, RowFailure] = {}
        self._piece = piece
        self._most = most
        self._passed = 0
        self._first: RowFault | None = None

    def add(self, row: int, fault: RowFault, raw: bytes) -> None:
        """Add a row. row: its index in the block. raw: its text, with the line's end.

        Raises:
            OverBudget: More rows failed than may. So nobody looks at each line of a file of which most are bad.
            InputCorrupt, SchemaMismatch: It is a last line without an end: what came behind it may be lost, too.
        """
        if not raw.endswith(b"\n"):
            if self._first is not None and len(self.failures) == self._passed + row:
                raise self._first  # no line can be read, so the last one is not the fault
            raise type(fault)(f"{fault}; this last line has no end, so the file may have been cut off")
        self.fail(row, fault, raw)

    def fail(self, row: int, fault: RowFault, raw: bytes = b"") -> None:
        """Add a row that is no line.

        Raises:
            OverBudget: As in `add`.
        """
        self._first = self._first or fault
        row += self._passed
        text = raw[: 4 * RAW_CHARS].decode(errors="backslashreplace").rstrip("\r\n")[:RAW_CHARS]
        self.failures[row] = RowFailure(row, type(fault).__name__, clip(str(fault)), "", text)
        if len(self.failures) > (MOST_UNREADABLE if self._most is None else self._most):
            raise over_budget(self.failures, self._most, self._piece.first_row)

    def following(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The piece's blocks, one after the other; the rows that are added belong to the block that is parsed next.

        Raises:
            InputCorrupt: All blocks together take more memory than is left.
        """
        held = 0
        for table in tables:
            self._passed += table.num_rows
            held += table.nbytes
            if held > _FREELY and held > free_bytes():
                raise InputCorrupt(
                    f"{self._piece.uri}: its first {self._passed:,} rows take {held / 1e9:.1f} GB, more than is left "
                    "of the memory, and it is read as a whole: write smaller files, or uncompressed text, which is cut"
                )
            yield table

    def read(self, table: pa.Table, *, whole: bool = False) -> RowsRead:
        """The rows that were read. whole: whether they are all rows of a file.

        Raises:
            InputCorrupt, SchemaMismatch: They are, and not one of them can be read: then the file is at fault.
        """
        if whole and self._first is not None and len(self.failures) == table.num_rows:
            raise self._first
        return RowsRead(table, dict(sorted(self.failures.items())))


def free_bytes() -> int:
    """The free memory of this machine, or of its container if that has a limit (cgroup v2)."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, KeyError):
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        # `used` includes the file cache, which the kernel gives back when memory is asked for.
        free = min(free, limit - used + int(stat["inactive_file"]) + int(stat["active_file"]))
    return free


def nulls(schema: pa.Schema, rows: int) -> pa.Table:
    """Rows of nulls in the columns of a schema."""
    return pa.table([pa.nulls(rows, column.type) for column in schema], schema.names)


def constant(value: pa.Scalar, rows: int) -> pa.ChunkedArray:
    """A column that has the same value in each row."""
    block = pa.repeat(value, min(rows, _BLOCK_ROWS))
    whole, rest = divmod(rows, _BLOCK_ROWS)
    return pa.chunked_array([block] * whole + ([block.slice(0, rest)] if rest else []), value.type)


def shifted(failures: Mapping[int, RowFailure], by: int) -> dict[int, RowFailure]:
    """The failures of rows of a table that come so many rows later in another one."""
    return {row + by: replace(failure, row=row + by) for row, failure in failures.items()}


def selected(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Select rows of a table by ascending indices.

    Many are taken by a mask: `take` would join a column's chunks, and no array holds more than 2 GiB of text.
    """
    mask = np.zeros(table.num_rows, dtype=bool)
    mask[rows] = True
    return table.filter(pa.array(mask))


def taken(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Rows of a table, in any order and as often as they are named. rows: their indices."""
    return table.take(pa.array(rows))
