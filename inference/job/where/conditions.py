"""A bound condition: which rows, row groups and files match; and the types in which values are compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import JobError

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


_BEYOND = 2**64
"""More than every integer. Python would need minutes to write out the digits of 1e999999999."""


def scalar(written: Any, quoted: bool, own: pa.DataType) -> pa.Scalar | None:
    """A literal in the type that a column of type `own` is compared in; None if the type has no such value."""
    kind = compared_as(own)
    if isinstance(written, bool):
        return pa.scalar(written, kind) if is_.is_boolean(kind) else None
    if quoted:
        if is_text(kind):
            return pa.scalar(written, kind)
        return pa.scalar(written).cast(kind) if is_.is_date(kind) or is_.is_timestamp(kind) else None
    if is_.is_integer(kind):
        number = Decimal(written)
        is_whole = number.copy_abs() < _BEYOND and number == number.to_integral_value()
        return pa.scalar(int(number), kind) if is_whole else None
    if is_.is_floating(kind):
        return pa.scalar(float(written)).cast(own).cast(kind)
    return pa.scalar(Decimal(written)) if is_.is_decimal(kind) else None


def listed(values: Sequence[pa.Scalar], own: pa.DataType) -> pa.Array:
    """The values of `IN (…)` in the type in which a column of type `own` is compared.

    Decimals with more digits than the column's are left out, because they equal none of its values.
    """
    kind = compared_as(own)
    wanted = [each for value in values if (each := _in_type(value, kind)) is not None]
    if is_.is_floating(kind) and any(value.as_py() == 0 for value in wanted):
        wanted += [pa.scalar(zero, kind) for zero in (0.0, -0.0)]  # Arrow compares the bits, and these two are equal
    return pa.array(wanted, kind)


def _in_type(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    try:
        return pa.scalar(value.as_py(), kind) if is_.is_decimal(kind) else value
    except pa.ArrowInvalid:
        return None


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
