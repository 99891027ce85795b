"""Rows as a source reads them: a table, and a failure for each row that cannot be read.

A row that cannot be read costs that row. It stays in the table as nulls, so that every other row keeps its index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from nightjar.inference.errors import InputCorrupt, OverBudget, SchemaMismatch
from nightjar.inference.messages import clip, counted
from nightjar.inference.records import Piece, RowFailure

MOST_UNREADABLE = 10_000
"""The most rows of one piece that may be unreadable while the run has no budget, because nobody knows its rows yet.
Their failures are kept in memory, and finding a value of another type takes some milliseconds."""

RAW_CHARS = 2048
"""The longest text of an unreadable row that is kept, in characters."""

RowFault = InputCorrupt | SchemaMismatch
"""What is wrong with one row. The types are those that a whole file may fail with, too."""


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows of a file, in its order.

    failures: index in the table → why this row could not be read. Such a row is there as nulls, so a source with such
    rows describes no column as one without nulls.
    """

    table: pa.Table
    failures: Mapping[int, RowFailure] = field(default_factory=dict)

    @property
    def readable(self) -> int:
        """The number of rows that could be read."""
        return int(self.table.num_rows) - len(self.failures)

    def slice(self, first: int, rows: int | None = None) -> RowsRead:
        """The rows [first, first + rows), or all from `first` on."""
        table = self.table.slice(first, rows)
        kept = range(first, first + table.num_rows)
        return RowsRead(table, _shifted({row: self.failures[row] for row in self.failures if row in kept}, -first))

    def unreadable(self, uri: str) -> str:
        """A sentence for rows of which none could be read."""
        first = self.failures[min(self.failures)]
        return f"none of {counted(len(self.failures), 'row')} of {uri} can be read; the first: {first.message}"


def over_budget(failures: Mapping[int, RowFailure], most: int, origin: int) -> OverBudget:
    """The error for more failed rows than may fail. origin: the index in the file of the row that `failures` call 0."""
    first = min(failures)
    cause = failures[first]
    return OverBudget(
        f"{len(failures)} {'row' if len(failures) == 1 else 'rows'} failed where at most {most} may; "
        f"the first is row {origin + first}: {cause.error}: {cause.message}",
        origin + first,
    )


class Unreadable:
    """Collects the rows of a piece that cannot be read, while it is parsed block by block.

    failures: index in the piece → failure.
    """

    def __init__(self, piece: Piece, most: int | None = None) -> None:
        """most: the most rows that may fail; None if the run's budget is not known."""
        self.failures: dict[int, RowFailure] = {}
        self._piece = piece
        self._most = MOST_UNREADABLE if most is None else most
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
        if len(self.failures) > self._most:
            raise over_budget(self.failures, self._most, self._piece.first_row)

    def following(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The piece's blocks, one after the other; the rows that are added belong to the block that is parsed next."""
        for table in tables:
            self._passed += table.num_rows
            yield table

    def read(self, table: pa.Table, *, whole: bool = False) -> RowsRead:
        """The rows that were read. whole: whether they are all rows of a file.

        Raises:
            InputCorrupt, SchemaMismatch: They are, and not one of them can be read: then the file is at fault.
        """
        if whole and self._first is not None and len(self.failures) == table.num_rows:
            raise self._first
        return RowsRead(table, self.failures)


def nulls(schema: pa.Schema, rows: int) -> pa.Table:
    """Rows of nulls in the columns of a schema, which may have none."""
    found = pa.table([pa.nulls(rows)], names=[""])
    for column in schema:
        found = found.append_column(column.with_nullable(True), pa.nulls(rows, column.type))
    return found.select(list(range(1, 1 + len(schema))))


def _shifted(failures: Mapping[int, RowFailure], by: int) -> dict[int, RowFailure]:
    return {row + by: replace(failure, row=row + by) for row, failure in failures.items()}
