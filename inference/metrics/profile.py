"""The profile of columns: what a night's values look like, so that it can be compared with another night."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from nightjar.inference.arrow_types import is_number, is_text
from nightjar.inference.job.model import Job
from nightjar.inference.metrics.categories import ERROR, CategoryState, DistinctState, counted_values
from nightjar.inference.metrics.columns import plain, plain_type
from nightjar.inference.metrics.encoding import Kept, State
from nightjar.inference.metrics.figures import Distinct, Frequent, ProfileFigures
from nightjar.inference.metrics.keyhash import Hashes, comparable, hashes_of, mixed
from nightjar.inference.metrics.numbers import NumberState
from nightjar.inference.predictors import input_columns

_SPREAD_BITS = 8
SPREAD = 1 << _SPREAD_BITS
"""Groups of texts by the first bits of their hashes."""

ENOUGH = 250_000
"""About as many rows describe a night that has more, if the job does not say how many. Each share of the rows is then
known to within 0.003, with a probability of 0.95 (Massart 1990); more rows cost time and tell a check on drift nothing
that matters.
"""

_SHOWN = 10
"""The most frequent values that are shown of a column."""

Kind = Literal["", "number", "text", "bool", "other", "mixed"]


@dataclass(slots=True)
class ColumnProfile(State):
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

    def __post_init__(self) -> None:
        if len(self.spread) != SPREAD:
            raise ValueError(f"not {SPREAD} groups")

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
        if self.kind == "number":
            self.numbers.update(column.to_numpy())
        elif self.kind == "text":
            self.numbers.update(pc.utf8_length(column).to_numpy())
        few = None if pa.types.is_floating(column.type) else counted_values(column)  # a float is no category
        if few is None:
            self.categories.cut = True
        else:
            self.categories.add(*few)
        if self.categories.cut:
            values = column.filter(pc.invert(pc.is_nan(column))) if self.numbers.nan else column
            self._note(hashes_of(comparable(values)), np.ones(len(values), np.int64))

    def _note(self, hashes: Hashes, counts: np.ndarray) -> None:
        """Add values that are not counted one by one. counts: the rows of each."""
        self.distinct.update(hashes)
        if self.kind == "text":
            self.spread = self.spread + _spread(hashes, counts)

    def merge(self, other: ColumnProfile) -> None:
        self.rows += other.rows
        self.nulls += other.nulls
        if self.kind and other.kind and self.kind != other.kind:
            self.kind = "mixed"
        self.kind = self.kind or other.kind
        if self.kind == "mixed":
            self.numbers, self.categories, self.distinct = NumberState(), CategoryState(cut=True), DistinctState()
            return
        self.numbers.merge(other.numbers)
        counted = self.categories.take(other.categories)
        self.distinct.merge(other.distinct)
        self.spread = self.spread + other.spread
        if counted:
            self._note(_hashes_of_texts(counted, self.kind), np.array([*counted.values()]))

    def by_hash(self) -> np.ndarray:
        """The spread of texts, whether or not they are counted one by one."""
        if self.categories.cut:
            return self.spread
        counts = self.categories.counts
        return _spread(_hashes_of_texts(counts, "text"), np.array([*counts.values()], np.int64))

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


@dataclass(slots=True, eq=False)
class Profile(Kept):
    """The profiles of a night's columns, by name."""

    VERSION: ClassVar[int] = 4
    CALLED: ClassVar[str] = "a profile"

    columns: dict[str, ColumnProfile]

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

    def results(self) -> dict[str, ProfileFigures]:
        """The figures of each column."""
        return {name: column.results() for name, column in self.columns.items()}


def profiled(job: Job, schema: pa.Schema) -> tuple[str, ...]:
    """The columns whose values are described, each once: outputs, and columns of the input. schema: of the input, or of
    the columns that are read. `all` leaves out columns of the input that have no profile, as images.
    """
    outputs, found = list(job.output_types()), dict[str, None]()
    for name in job.profiling:
        if name == "outputs":
            found |= dict.fromkeys(outputs)
        elif name == "all":
            seen = [
                each for each in input_columns(job, schema) if _kind(plain_type(schema.field(each).type)) != "other"
            ]
            found |= dict.fromkeys([*outputs, *job.carried(schema.names), *seen])
        else:
            found[name] = None
    return tuple(found)


def share_of(rows: int | None) -> float:
    """The share of a night's rows that is enough to describe it. rows: of the night; None if nobody has counted them,
    and all are described then, because reading such files costs more than that.
    """
    return 1.0 if rows is None or rows <= ENOUGH else float(f"{ENOUGH / rows:.3g}")


def drawn(uri: str, rows: np.ndarray, share: float | None) -> np.ndarray | None:
    """Which of these rows are described, as their places among them; None for all. uri: their file. rows: their numbers
    in it, which decide alone: a row is described or not, whatever shard it is in. share: None for all.
    """
    if share is None or share == 1:
        return None
    file, limit = np.uint64(xxhash.xxh3_64_intdigest(uri.encode())), np.uint64(share * 2.0**64)
    return np.flatnonzero(mixed(rows.astype(np.uint64) + file) < limit)


def _spread(hashes: Hashes, counts: np.ndarray) -> np.ndarray:
    """The rows in each group of values by their hashes, of shape (SPREAD,). counts: the rows of each value."""
    groups = (hashes >> np.uint64(64 - _SPREAD_BITS)).astype(np.intp)
    return np.bincount(groups, counts, minlength=SPREAD).astype(np.int64)


def _hashes_of_texts(texts: Iterable[str], kind: Kind) -> Hashes:
    """The hashes of values that are kept as text, as the values themselves have them."""
    if kind == "text":
        return hashes_of(pa.array(texts, pa.string()).cast(pa.binary()))
    return mixed(np.array([int(text) % 2**64 for text in texts], np.uint64))


def _countable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values in a type that Arrow can filter and count: it cannot with small decimals and float16."""
    if pa.types.is_decimal(column.type) or pa.types.is_float16(column.type):
        return column.cast(pa.float64() if pa.types.is_decimal(column.type) else pa.float32())
    return column


def _kind(type_: pa.DataType) -> Kind:
    if pa.types.is_null(type_):
        return ""
    if pa.types.is_boolean(type_):
        return "bool"
    if is_number(type_):
        return "number"
    return "text" if is_text(type_) else "other"
