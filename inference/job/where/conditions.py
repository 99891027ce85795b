"""What a condition takes: rows of a table, parts of a file by their statistics, whole files by their values."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from nightjar.inference.errors import JobError
from nightjar.inference.job.where.values import compared_as

Column = Callable[[str], Any]
Build = Callable[[Column], Any]
"""Makes the condition's values of the columns' values: of arrays an array, of `pc.field` an expression."""


@dataclass(frozen=True)
class Condition:
    """A condition on columns of known types. columns: those that it names."""

    columns: pa.Schema
    _parts: tuple[Part, ...]

    def mask(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Which rows of a table it takes. The table has its columns, in their types.

        Raises:
            JobError: Arrow cannot compare values of the table.
        """
        found = np.ones(table.num_rows, dtype=bool)
        for part in self._parts:
            found &= part.takes(table)
        return found

    def expression(self, names: Collection[str]) -> pc.Expression | None:
        """A necessary condition on these columns by which statistics can rule out a file; None if there is none."""
        pushed = [part.build(pc.field) for part in self._parts if part.pushed and part.names <= set(names)]
        return reduce(pc.and_kleene, pushed) if pushed else None

    def excludes(self, values: dict[str, pa.Scalar]) -> bool:
        """Whether a file whose rows all have these values in some columns has no row that it takes."""
        row = pa.table({name: pa.array([value], value.type) for name, value in values.items()})
        return any(not part.takes(row)[0] for part in self._parts if part.names <= set(values))


@dataclass(frozen=True)
class Part:
    """One of the conditions that AND joins. names: its columns. pushed: whether statistics can rule it out. error: the
    error for what Arrow says of values that it cannot compare.
    """

    build: Build
    names: frozenset[str]
    pushed: bool
    error: Callable[[pa.ArrowException], JobError]

    def takes(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Which rows of a table it takes, as `Condition.mask`."""
        columns = {name: _comparable(table[name]) for name in self.names}
        try:
            value = self.build(columns.__getitem__)
        except (MemoryError, pa.ArrowCancelled):
            raise
        except pa.ArrowException as error:
            # The file is read already, so it is not at fault.
            raise self.error(error) from error
        return np.asarray(pc.fill_null(value, False), dtype=bool)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in the type that `compared_as` gives it."""
    kind = compared_as(column.type)
    if is_.is_dictionary(column.type):
        values = pa.dictionary(column.type.index_type, kind, column.type.ordered)
        column = column.cast(values)  # Arrow cannot decode a dictionary of views
    return column.cast(kind)
