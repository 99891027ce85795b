"""The profile of columns: what a night's values look like, so that it can be compared with another night."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from nightjar.inference.arrow_types import is_number, is_text
from nightjar.inference.job.model import Job
from nightjar.inference.metrics.columns import LONGEST, as_text, plain, plain_type
from nightjar.inference.metrics.encoding import Kept, State
from nightjar.inference.metrics.figures import Frequent, ProfileFigures
from nightjar.inference.metrics.keyhash import comparable, hashes_of, mixed
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

MOST = 256
"""The most distinct values that are counted. A column with more has no counts, whatever the order of its rows."""

_MANY = 16 * MOST
"""The most distinct values of one update that are worth counting each."""

_PROBED = 2 * MOST
"""Rows that tell whether a column has few values, before all of them are counted."""

Kind = Literal["", "number", "text", "bool", "other"]


def counted_values(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, np.ndarray] | None:
    """The distinct values of a column without nulls, and how often each occurs; None if there are many."""
    if pc.count_distinct(column.slice(0, _PROBED)).as_py() > MOST:
        return None
    found = pc.value_counts(column)
    if len(found) > _MANY:
        return None
    return pa.chunked_array([found.field("values")]), found.field("counts").to_numpy()


@dataclass(slots=True)
class CategoryState(State):
    """counts: value, as text → rows. cut: whether the column has too many values, or too long ones, to count them."""

    counts: Counter[str] = field(default_factory=Counter)
    cut: bool = False

    def add(self, values: pa.ChunkedArray, counts: np.ndarray) -> None:
        """Add each of these values as often as `counts` says; none is null."""
        self.merge(CategoryState(Counter(dict(zip(map(as_text, values.to_pylist()), counts.tolist(), strict=True)))))

    def merge(self, other: CategoryState) -> None:
        counts, self.cut = self.counts + other.counts, self.cut or other.cut
        self.cut |= len(counts) > MOST or any(len(value) > LONGEST for value in other.counts)
        self.counts = Counter() if self.cut else counts

    def ranked(self) -> list[tuple[str, int]]:
        """The values, the most frequent first; those that are equally frequent in their own order."""
        return sorted(self.counts.items(), key=lambda found: (-found[1], found[0]))


@dataclass(slots=True)
class ColumnProfile(State):
    """One column."""

    kind: Kind = ""
    """The kind of the column; "" if only nulls were seen. Of "" and of other types only rows and nulls are counted."""

    rows: int = 0
    """Rows, nulls included."""

    nulls: int = 0
    """Rows whose value is null."""

    numbers: NumberState = field(default_factory=NumberState)
    """Of numbers their values, of text its lengths in characters."""

    categories: CategoryState = field(default_factory=CategoryState)
    """The values of text, integers and bools."""

    spread: np.ndarray = field(default_factory=lambda: np.zeros(SPREAD, np.int64))
    """The rows of text in each group of values by their hashes, of shape (SPREAD,)."""

    @property
    def missing(self) -> int:
        """The rows that have no value: null, or NaN."""
        return self.nulls + (self.numbers.nan if self.kind == "number" else 0)

    def update(self, column: pa.ChunkedArray) -> None:
        """Add the rows of a column."""
        column = plain(column)
        found = ColumnProfile(kind_of(column.type), len(column), column.null_count)
        if found.kind not in ("", "other"):
            found._take((column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column).drop_null())
        self.merge(found)

    def _take(self, column: pa.ChunkedArray) -> None:
        """Add values, none of which is null, to none."""
        if self.kind == "number":
            self.numbers.update(column.to_numpy())
        elif self.kind == "text":
            self.numbers.update(pc.utf8_length(column).to_numpy())
        values, counts = column, np.ones(len(column), np.int64)
        if pa.types.is_floating(column.type) or (few := counted_values(column)) is None:  # a float is no category
            self.categories.cut = True
        else:
            values, counts = few
            self.categories.add(values, counts)
        if self.kind == "text":
            self.spread = _spread(values, counts)

    def results(self) -> ProfileFigures:
        """The figures."""
        return ProfileFigures(
            kind=self.kind,
            rows=self.rows,
            nulls=self.nulls,
            nan=self.numbers.nan,
            plus_inf=self.numbers.plus_inf,
            minus_inf=self.numbers.minus_inf,
            numbers=self.numbers.results(),
            distinct=None if self.kind == "other" or self.categories.cut else len(self.categories.counts),
            frequent=tuple(Frequent(value, rows) for value, rows in self.categories.ranked()[:_SHOWN]),
        )


@dataclass(slots=True, eq=False)
class Profile(Kept):
    """The profiles of a night's columns, by name."""

    VERSION: ClassVar[int] = 7
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
            seen = [each for each in input_columns(job, schema) if kind_of(schema.field(each).type) != "other"]
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


def _spread(values: pa.ChunkedArray, counts: np.ndarray) -> np.ndarray:
    """The rows in each group of texts by their hashes, of shape (SPREAD,). counts: the rows of each text."""
    groups = (hashes_of(comparable(values)) >> np.uint64(64 - _SPREAD_BITS)).astype(np.intp)
    return np.bincount(groups, counts, minlength=SPREAD).astype(np.int64)


def kind_of(type_: pa.DataType) -> Kind:
    """The kind of a column of this type, as in `ColumnProfile`; "" for nulls."""
    type_ = plain_type(type_)
    if pa.types.is_null(type_):
        return ""
    if pa.types.is_boolean(type_):
        return "bool"
    if is_number(type_):
        return "number"
    return "text" if is_text(type_) else "other"
