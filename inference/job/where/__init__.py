"""`input.where`: which rows of the input are scored, as a condition of SQL.

sqlglot reads the text. What it may say, and what it means, is decided here, so that another release of the parser
cannot change which rows are scored. Values are compared as in SQL: a comparison with a null is neither true nor false,
and a row counts only if the whole condition is true. A value is never rounded to compare it: that is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from nightjar.inference.job.where.compiling import Compiler, Part


@dataclass(frozen=True)
class Condition:
    """A condition on columns of known types. columns: those that it names."""

    columns: pa.Schema
    _parts: Sequence[Part]

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
        pushed = [part.build(pc.field) for part in self._parts if part.pushed and set(part.names) <= set(names)]
        return reduce(pc.and_kleene, pushed) if pushed else None

    def excludes(self, values: dict[str, pa.Scalar]) -> bool:
        """Whether a file whose rows all have these values in some columns has no row that it takes."""
        row = pa.table({name: pa.array([value], value.type) for name, value in values.items()})
        return any(not part.takes(row)[0] for part in self._parts if set(part.names) <= set(values))


def columns_of(text: str) -> tuple[str, ...]:
    """The columns that a condition names, in its order.

    Raises:
        JobError: It is not a condition. Says where.
    """
    return _compiler(text, None).columns()


@cache
def condition(text: str, schema: pa.Schema) -> Condition:
    """A condition on the columns of an input.

    Raises:
        JobError: It is not a condition, the input has not its columns, or they have other types. Says where.
    """
    return _of_parts(_compiler(text, schema).parts(), schema)


def on_some(text: str, schema: pa.Schema) -> Condition | None:
    """Those parts of a condition that name only columns of the schema, which is not all of the input; None if no part
    does.

    Raises:
        JobError: As in `condition`.
    """
    parts = _compiler(text, schema).parts(schema.names)
    return _of_parts(parts, schema) if parts else None


def _of_parts(parts: Sequence[Part], schema: pa.Schema) -> Condition:
    names = dict.fromkeys(name for part in parts for name in part.names)
    return Condition(pa.schema([schema.field(name) for name in names]), parts)


def _compiler(text: str, schema: pa.Schema | None) -> Compiler:
    from nightjar.inference.job.where.compiling import Compiler  # sqlglot takes a while to import

    return Compiler(text, schema)
