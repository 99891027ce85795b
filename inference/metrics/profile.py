"""The profile of columns: what a night's values look like, so that it can be compared with another night."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_number, is_text
from nightjar.inference.job.model import Job
from nightjar.inference.metrics.categories import CategoryState, counted_values
from nightjar.inference.metrics.columns import plain
from nightjar.inference.metrics.distinct import ERROR, SPREAD, DistinctState
from nightjar.inference.metrics.figures import Distinct, Frequent, ProfileFigures
from nightjar.inference.metrics.numbers import NumberState
from nightjar.inference.predictors import input_columns

_VERSION = 3

_COUNTED = ""
"""In place of the distinct values of a column each of whose values is counted."""

_SHOWN = 10
"""The most frequent values that are shown of a column."""

Kind = Literal["", "number", "text", "bool", "other", "mixed"]


@dataclass(slots=True)
class ColumnProfile:
    """One column. kind: "" if only nulls were seen, mixed if files disagree; then, and for other types, only rows and
    nulls are counted. numbers: of numbers their values, of text its lengths in characters. categories: of text,
    integers and bools. distinct: of all values, if `categories` does not count them. spread: of text then, shape
    (SPREAD,): the rows in each group of values by their hashes.
    """

    kind: Kind = ""
    rows: int = 0
    nulls: int = 0
    numbers: NumberState = field(default_factory=NumberState)
    categories: CategoryState = field(default_factory=CategoryState)
    distinct: DistinctState = field(default_factory=DistinctState)
    spread: np.ndarray = field(default_factory=lambda: np.zeros(SPREAD, np.int64))

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
        """Add values, none of which is null, to none."""
        few = counted_values(column)
        values, counts = few or (column, None)
        if self.kind == "number":
            values = values.to_numpy(zero_copy_only=False)
            self._add_numbers(values, counts)
        elif self.kind == "text":
            lengths = pc.utf8_length(values)
            found = (counted_values(lengths) or (lengths, None)) if few is None else (lengths, counts)
            self._add_numbers(found[0].to_numpy(zero_copy_only=False), found[1])
        if few is None or pa.types.is_floating(column.type):  # a float is no category
            self.categories.cut_off()
        else:
            self.categories.add(*few)
        if self.categories.cut and self.kind == "text":
            self.distinct.update(values, self.spread, counts)
        elif self.categories.cut:
            self.distinct.update(values[~np.isnan(values)] if self.numbers.nan else values)

    def _add_numbers(self, numbers: np.ndarray, counts: np.ndarray | None) -> None:
        if counts is None:
            self.numbers.update(numbers)
        else:
            self.numbers.update_few(numbers.astype(np.float64), counts)

    def merge(self, other: ColumnProfile) -> None:
        """Add another's rows to these."""
        self.rows += other.rows
        self.nulls += other.nulls
        if self.kind and other.kind and self.kind != other.kind:
            self.kind = "mixed"
        self.kind = self.kind or other.kind
        if self.kind == "mixed":
            self.numbers, self.categories, self.distinct = NumberState(), CategoryState(cut=True), DistinctState()
            return
        self.numbers.merge(other.numbers)
        uncounted = self.categories.merge(other.categories)
        if self.categories.cut:
            self.distinct.merge(other.distinct)
            self.spread = self.spread + other.spread
            if uncounted:
                self._note(uncounted)

    def _note(self, counted: Mapping[str, int]) -> None:
        """Add values that were counted until now to those of which it is only known how many there are."""
        if self.kind == "text":
            self.distinct.update(pa.array(list(counted), pa.large_string()), self.spread, np.array([*counted.values()]))
        else:
            numbers = [int(text) for text in counted]
            self.distinct.update(np.array([each for each in numbers if each < 1 << 63], np.int64))
            self.distinct.update(np.array([each for each in numbers if each >= 1 << 63], np.uint64))

    def values(self) -> tuple[Any, ...]:
        """The fields' values for JSON."""
        held = self.distinct.values() if self.categories.cut else _COUNTED
        spread = self.spread.tolist() if self.categories.cut and self.kind == "text" else []
        return (self.kind, self.rows, self.nulls, self.numbers.values(), self.categories.values(), held, spread)

    @classmethod
    def of_values(cls, values: tuple[Any, ...]) -> ColumnProfile:
        """The inverse of `values`."""
        kind, rows, nulls, numbers, counted, held, spread = values
        categories = CategoryState.of_values(counted)
        distinct = DistinctState.of_values(held) if categories.cut else DistinctState()
        found = cls(kind, rows, nulls, NumberState.of_values(numbers), categories, distinct)
        if spread:
            found.spread = np.array(spread, np.int64)
            if found.spread.shape != (SPREAD,):
                raise ValueError(f"not {SPREAD} groups")
        return found

    def by_hash(self) -> np.ndarray:
        """The spread of texts, whether or not they are counted one by one."""
        if self.categories.cut:
            return self.spread
        found, counts = np.zeros(SPREAD, np.int64), self.categories.counts
        if counts:
            DistinctState().update(pa.array(list(counts), pa.large_string()), found, np.array([*counts.values()]))
        return found

    def count_distinct(self) -> Distinct | None:
        """How many distinct values there are; NaN is none. None for types that are not counted."""
        if self.kind in ("other", "mixed"):
            return None
        if not self.categories.cut:
            return Distinct(len(self.categories.counts))
        return Distinct(min(self.distinct.count(), self.rows - self.missing), ERROR)

    def results(self) -> ProfileFigures:
        """The figures."""
        frequent, distinct = self.categories.ranked()[:_SHOWN], self.count_distinct()
        return ProfileFigures(
            kind=self.kind,
            rows=self.rows,
            nulls=self.nulls,
            nan=self.numbers.nan,
            plus_inf=self.numbers.plus_inf,
            minus_inf=self.numbers.minus_inf,
            numbers=self.numbers.results(),
            distinct=distinct.count if distinct else None,
            distinct_error=distinct.error if distinct else 0.0,
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

    @property
    def rows(self) -> int:
        """The rows that are described; of files that do not all have the same columns, in the column of most rows."""
        return max((column.rows for column in self.columns.values()), default=0)

    def update(self, *tables: pa.Table) -> None:
        """Add rows. Each column is in one of the tables."""
        found = {
            name: column for table in tables for name, column in zip(table.column_names, table.columns, strict=True)
        }
        for name, column in self.columns.items():
            column.update(found[name])

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


def merged(nights: Iterable[tuple[Profile, int]]) -> Profile:
    """Several nights taken together, each with its number of rows, of which a part may be described. A column that only
    some of them have is that of these nights.

    Each night has the weight of its rows: exactly where all are described, and else to the nearest row. The night of
    which the smallest part is described keeps its counts, so that no more rows are claimed than were seen.
    """
    found = list(nights)
    shares = [min(1.0, profile.rows / rows) if rows and profile.rows else 1.0 for profile, rows in found]
    columns: dict[str, ColumnProfile] = {}
    for (profile, _), share in zip(found, shares, strict=True):
        for name, column in profile.columns.items():
            columns.setdefault(name, ColumnProfile()).merge(_thinned(column, min(shares) / share))
    return Profile(columns)


def _thinned(column: ColumnProfile, share: float) -> ColumnProfile:
    """The counts of this share of the rows, for `drift`; a value that was counted is still one that occurs. Sums,
    extreme values and distinct values are those of all rows.
    """
    if share >= 1:
        return column

    def fewer(count: int) -> int:
        return round(count * share)

    old = column.numbers
    numbers = replace(
        old,
        nan=fewer(old.nan),
        plus_inf=fewer(old.plus_inf),
        minus_inf=fewer(old.minus_inf),
        counts=np.rint(old.counts * share).astype(np.int64),
    )
    counts = Counter({value: max(1, fewer(count)) for value, count in column.categories.counts.items()})
    return replace(
        column,
        rows=fewer(column.rows),
        nulls=fewer(column.nulls),
        numbers=numbers,
        categories=replace(column.categories, counts=counts),
        spread=np.rint(column.spread * share).astype(np.int64),
    )


class Described:
    """The profile of some shards; false if there is none. It is decoded when another is merged into it, and encoded
    when its bytes are asked for: else a night of many shards would spend most of its merging on that.
    """

    def __init__(self, held: bytes | Profile = b"") -> None:
        self._held = held

    def __bool__(self) -> bool:
        return self._held != b""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Described) and bytes(self) == bytes(other)

    def __bytes__(self) -> bytes:
        return self._held if isinstance(self._held, bytes) else self._held.to_bytes()

    def __reduce__(self) -> tuple[Any, ...]:
        return Described, (bytes(self),)

    def profile(self) -> Profile:
        """The profile, if there is one."""
        return Profile.from_bytes(self._held) if isinstance(self._held, bytes) else self._held

    def merge(self, other: Described) -> None:
        """Add another's rows to these."""
        if not self:
            self._held = bytes(other)
        elif other:
            self._held = self.profile()
            self._held.merge(other.profile())


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
    """The values in a type that Arrow can filter and count: it cannot with small decimals and float16."""
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
