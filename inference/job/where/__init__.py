"""`input.where`: which rows of the input are scored, as a condition of SQL.

sqlglot reads the text. What it may say, and what it means, is decided here, so that another release of the parser
cannot change which rows are scored. Values are compared as in SQL: a comparison with a null is neither true nor false,
and a row counts only if the whole condition is true. A value is never rounded to compare it: that is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import JobError

if TYPE_CHECKING:
    from nightjar.inference.job.where.compiling import Compiler

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


def scalar(written: bool | str, quoted: bool, own: pa.DataType) -> pa.Scalar:
    """A literal in the type that a column of type `own` is compared in.

    Raises:
        ValueError: The type has no such value.
    """
    kind = compared_as(own)
    if is_.is_boolean(kind) != isinstance(written, bool):
        raise ValueError("a bool is only true or false")
    if isinstance(written, bool):
        return pa.scalar(written)
    if quoted == (family(kind) == "number"):
        raise ValueError("numbers alone stand without quotes")
    return pa.scalar(written).cast(own).cast(kind)


def compared_as(kind: pa.DataType) -> pa.DataType:
    """The type in which Arrow can compare the values of a column, each unchanged."""
    kind = kind.value_type if is_.is_dictionary(kind) else kind
    if is_.is_float16(kind):
        return pa.float32()
    if is_.is_decimal32(kind) or is_.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return pa.large_string() if is_.is_string_view(kind) else kind


def family(kind: pa.DataType) -> str:
    """Types of one family compare with each other; empty for a type that does not compare."""
    kind = compared_as(kind)
    if is_.is_integer(kind) or is_.is_floating(kind) or is_.is_decimal(kind):
        return "number"
    if is_text(kind):
        return "text"
    if is_.is_timestamp(kind):
        return f"time {kind.tz}"  # Arrow compares no two time zones
    if is_.is_date(kind):
        return "date"
    return "bool" if is_.is_boolean(kind) else ""


def columns_of(text: str) -> tuple[str, ...]:
    """The columns that a condition names, in its order.

    Raises:
        JobError: It is not a condition. Says where.
    """
    made = _compiler(text, None)
    names = made.columns()
    made.check()
    return names


@cache
def condition(text: str, schema: pa.Schema) -> Condition:
    """A condition on the columns of an input.

    Raises:
        JobError: It is not a condition, the input has not its columns, or they have other types. Says where.
    """
    found = _compiler(text, schema).condition()
    assert found is not None
    return found


def on_some(text: str, schema: pa.Schema) -> Condition | None:
    """Those parts of a condition that name only columns of the schema, which is not all of the input; None if no part
    does.

    Raises:
        JobError: As in `condition`.
    """
    return _compiler(text, schema).condition(some=True)


def _compiler(text: str, schema: pa.Schema | None) -> Compiler:
    from nightjar.inference.job.where.compiling import Compiler  # sqlglot takes a while to import

    return Compiler(text, schema)
