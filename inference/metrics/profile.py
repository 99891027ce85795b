"""The profile of columns: what a night's values look like, so that it can be compared with another night."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_number, is_text
from nightjar.inference.job.model import Job
from nightjar.inference.metrics.categories import CategoryState, counted_values
from nightjar.inference.metrics.columns import plain
from nightjar.inference.metrics.figures import Frequent, ProfileFigures
from nightjar.inference.metrics.numbers import NumberState
from nightjar.inference.predictors import input_columns

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
        if found.kind not in ("", "other"):
            found._take(_countable(column).drop_null())
        self.merge(found)

    def _take(self, column: pa.ChunkedArray) -> None:
        """Add values, none of which is null."""
        few = counted_values(column)
        if self.kind != "bool":
            whole = pc.utf8_length(column if few is None else few[0]) if self.kind == "text" else (few or [column])[0]
            numbers = whole.cast(pa.float64(), safe=False)
            if few is None:
                self.numbers.update(numbers.to_numpy())
            else:
                self.numbers.update_few(numbers.to_numpy(zero_copy_only=False), few[1])
        is_category = self.kind != "number" or pa.types.is_integer(column.type)
        if few is None or not is_category:  # a float is no category
            self.categories.cut_off()
        else:
            self.categories.add(*few)

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

    def update(self, *tables: pa.Table) -> None:
        """Add rows. Each column is in one of the tables."""
        for name, column in self.columns.items():
            column.update(next(table for table in tables if name in table.column_names)[name])

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


def merged(profiles: Iterable[Profile]) -> Profile:
    """Several nights taken together, exactly. A column that only some of them have is that of these nights."""
    columns: dict[str, ColumnProfile] = {}
    for profile in profiles:
        for name, column in profile.columns.items():
            columns.setdefault(name, ColumnProfile()).merge(column)
    return Profile(columns)


def profiled(job: Job, schema: pa.Schema) -> tuple[str, ...]:
    """The columns whose values are described, each once: outputs, and columns of the input. schema: of the input, or of
    the columns that are read. `all` leaves out columns of the input that have no profile, as images.
    """
    outputs, found = list(job.output_types()), dict[str, None]()
    for name in job.profiling:
        if name == "outputs":
            found |= dict.fromkeys(outputs)
        elif name == "all":
            seen = [each for each in input_columns(job, schema) if _has_profile(schema.field(each).type)]
            found |= dict.fromkeys([*outputs, *job.carried(schema.names), *seen])
        else:
            found[name] = None
    return tuple(found)


def _countable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values in a type that Arrow can filter and count: it cannot with views, small decimals and float16."""
    if pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    if pa.types.is_decimal(column.type) or pa.types.is_float16(column.type):
        return column.cast(pa.float64() if pa.types.is_decimal(column.type) else pa.float32())
    return column


def _has_profile(type_: pa.DataType) -> bool:
    """Whether more than rows and nulls can be said of a type."""
    if isinstance(type_, pa.BaseExtensionType):
        return _has_profile(type_.storage_type)
    return _kind(type_.value_type if pa.types.is_dictionary(type_) else type_) != "other"


def _kind(type_: pa.DataType) -> Kind:
    if pa.types.is_null(type_):
        return ""
    if pa.types.is_boolean(type_):
        return "bool"
    if is_number(type_):
        return "number"
    return "text" if is_text(type_) else "other"
