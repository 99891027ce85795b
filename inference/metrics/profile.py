"""The profile of columns: what a night's values look like, so that it can be compared with another night."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_number, is_text
from nightjar.inference.metrics.categories import CategoryState
from nightjar.inference.metrics.columns import plain
from nightjar.inference.metrics.figures import Frequent, ProfileFigures
from nightjar.inference.metrics.numbers import NumberState

_VERSION = 1
_SHOWN = 10
"""The most frequent values that are shown of a column."""

Kind = Literal["", "number", "text", "bool", "other", "mixed"]


@dataclass(slots=True)
class ColumnProfile:
    """One column. kind: "" if only nulls were seen, mixed if files disagree; then, and for other types, only rows and
    nulls are counted. numbers: of numbers their values, of text its lengths in characters. categories: of text,
    integers and bools.
    """

    kind: Kind = ""
    rows: int = 0
    nulls: int = 0
    numbers: NumberState = field(default_factory=NumberState)
    categories: CategoryState = field(default_factory=CategoryState)

    @property
    def missing(self) -> int:
        """The rows that have no value: null, or NaN."""
        return self.nulls + (self.numbers.nan if self.kind == "number" else 0)

    def update(self, column: pa.ChunkedArray) -> None:
        """Add the rows of a column."""
        column = plain(column)
        found = ColumnProfile(_kind(column.type), len(column), column.null_count)
        if found.kind == "number":
            found.numbers.update(_floats(column))
            if not pa.types.is_integer(column.type):
                found.categories.cut = True  # a float is no category
        elif found.kind == "text":
            found.numbers.update(_floats(pc.utf8_length(column)))
        if found.kind in ("text", "bool") or pa.types.is_integer(column.type):
            found.categories.cut = self.categories.cut
            found.categories.update(column)
        self.merge(found)

    def merge(self, other: ColumnProfile) -> None:
        """Add another's rows to these."""
        self.rows += other.rows
        self.nulls += other.nulls
        if self.kind and other.kind and self.kind != other.kind:
            self.kind = "mixed"
        self.kind = self.kind or other.kind
        if self.kind == "mixed":
            self.numbers, self.categories = NumberState(), CategoryState(cut=True)
            return
        self.numbers.merge(other.numbers)
        self.categories.merge(other.categories)

    def values(self) -> tuple[Any, ...]:
        """The fields' values for JSON."""
        return (self.kind, self.rows, self.nulls, self.numbers.values(), self.categories.values())

    @classmethod
    def of_values(cls, values: tuple[Any, ...]) -> ColumnProfile:
        """The inverse of `values`."""
        kind, rows, nulls, numbers, categories = values
        return cls(kind, rows, nulls, NumberState.of_values(numbers), CategoryState.of_values(categories))

    def results(self) -> ProfileFigures:
        """The figures."""
        frequent = self.categories.ranked()[:_SHOWN]
        return ProfileFigures(
            kind=self.kind,
            rows=self.rows,
            nulls=self.nulls,
            nan=self.numbers.nan,
            plus_inf=self.numbers.plus_inf,
            minus_inf=self.numbers.minus_inf,
            numbers=self.numbers.results(),
            distinct=None if self.categories.cut else len(self.categories.counts),
            frequent=tuple(Frequent(value, rows) for value, rows in frequent),
        )


class Profile:
    """The profiles of a night's columns, by name."""

    def __init__(self, columns: Mapping[str, ColumnProfile]) -> None:
        self.columns = dict(columns)

    @classmethod
    def empty(cls, names: Iterable[str]) -> Profile:
        """No rows."""
        return cls({name: ColumnProfile() for name in names})

    def update(self, table: pa.Table) -> None:
        """Add rows: `table` has every column."""
        for name, column in self.columns.items():
            column.update(table[name])

    def merge(self, other: Profile) -> None:
        """Add another's rows to these. Both have the same columns."""
        if self.columns.keys() != other.columns.keys():
            raise ValueError("profiles of different columns cannot be merged")
        for name, column in self.columns.items():
            column.merge(other.columns[name])

    def to_bytes(self) -> bytes:
        """The same bytes for the same rows, however they were grouped."""
        columns = {name: self.columns[name].values() for name in sorted(self.columns)}
        return zlib.compress(json.dumps({"v": _VERSION, "columns": columns}, separators=(",", ":")).encode())

    @classmethod
    def from_bytes(cls, data: bytes) -> Profile:
        """The inverse of `to_bytes`.

        Raises:
            ValueError: Not a profile that this version can read.
        """
        try:
            found = json.loads(zlib.decompress(data))
            if found["v"] != _VERSION:
                raise ValueError(f"a profile of version {found['v']}, not {_VERSION}")
            return cls({name: ColumnProfile.of_values(values) for name, values in found["columns"].items()})
        except (KeyError, TypeError, IndexError, AttributeError, zlib.error) as error:
            raise ValueError(f"not a profile: {error}") from error

    def results(self) -> dict[str, ProfileFigures]:
        """The figures of each column."""
        return {name: column.results() for name, column in self.columns.items()}


def _kind(type_: pa.DataType) -> Kind:
    if pa.types.is_null(type_):
        return ""
    if pa.types.is_boolean(type_):
        return "bool"
    if is_number(type_):
        return "number"
    return "text" if is_text(type_) else "other"


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    """The values without nulls, as float64; integers beyond 2^53 are rounded."""
    column = column.drop_null()
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    values: np.ndarray = column.cast(pa.float64(), safe=False).to_numpy()
    return values
