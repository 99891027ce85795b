"""How far the values of one output moved between two runs, row by row: by numbers and vectors the distance, of anything
else which values became which.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_list, is_text, shown, type_name
from nightjar.inference.history.joinkeys import values_of
from nightjar.inference.metrics.columns import plain_type
from nightjar.inference.metrics.keyhash import comparable
from nightjar.inference.metrics.numbers import NumberState

NUMBER, VECTOR, VALUE = "number", "vector", "value"

MOST_CHANGES = 1000
"""The most different changes, of one value to another, that are counted. An output with more is text, and has none."""

_CHARS = 200
"""The longest value in characters; a longer one is cut off where it is shown."""

_SLICE = 1 << 13
"""Rows whose vectors are subtracted at a time."""

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RowMoved:
    """A row whose output is another one now."""

    key: tuple[str, ...]
    """The values of the key's columns, as text."""

    before: str | None
    """The output of the first run, as text; null as such."""

    now: str | None
    """The output of the second run, as text; null as such."""

    change: float | None = None
    """Of a number now less before; of a vector the Euclidean distance; null if there is none."""


@dataclass(frozen=True, slots=True)
class ValueChanged:
    """A value that became another one, and of how many rows."""

    before: str | None
    now: str | None
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputMoved:
    """How far an output moved, of the rows that were paired."""

    output: str
    """The name of the output's column."""

    kind: str = ""
    """`number`, `vector` (a list of numbers) or `value` (anything else); empty if the output was not compared."""

    why: str = ""
    """Why the output was not compared; empty if it was."""

    types: tuple[str | None, str | None]
    """The Arrow types before and now; null in a run that does not have the output."""

    unchanged: int = 0
    """Rows whose output is the same in both runs."""

    changed: int = 0
    """Rows whose output is another one now."""

    unmeasured: int = 0
    """Changed rows that have no distance, because a number is null, NaN or infinite in one of the runs, or a vector has
    another length."""

    median: float | None = None
    """The median of the distances of all rows but the unmeasured ones, the unchanged ones included, within 1/128 of
    itself; null for values, and if no row has a distance."""

    p99: float | None = None
    """The 99th percentile of the distances, within 1/128 of itself; null as `median`."""

    max: float | None = None
    """The greatest of the distances, exactly; null as `median`."""

    rows: tuple[RowMoved, ...] = ()
    """The rows that moved most, the farthest first; of values the first by their keys."""

    changes: tuple[ValueChanged, ...] = ()
    """Of values the most frequent changes."""

    changes_cut: bool = False
    """Whether there are too many different changes to count them; then `changes` is empty."""


_Ranked = tuple[float, bytes, RowMoved]


@dataclass(slots=True)
class Movement:
    """An output's movement, as rows are added."""

    output: str
    """The name of the output's column."""

    kind: str
    """How the output is compared, as of `kind_of`."""

    types: tuple[str | None, str | None]
    """The Arrow types before and now."""

    most: int
    """The most rows, and the most changes, that are named."""

    key: int
    """The number of the key's columns."""

    _unchanged: int = 0
    _changed: int = 0
    _unmeasured: int = 0
    _distances: NumberState = field(default_factory=NumberState)
    _farthest: list[_Ranked] = field(default_factory=list)
    _changes: Counter[tuple[str | None, str | None]] = field(default_factory=Counter)
    _cut: bool = False

    def update(self, keys: pa.Array, before: pa.ChunkedArray, now: pa.ChunkedArray) -> None:
        """Add rows: each has a key, as of `keys_of`, and a value in each run."""
        changed, moved = _MOVED[self.kind](before, now)
        self._changed += (count := int(changed.sum()))
        self._unchanged += len(changed) - count
        distances, measured = np.zeros(len(changed)), np.ones(len(changed), bool)
        if self.kind == VALUE:
            self._count_changes(before.filter(pa.array(changed)), now.filter(pa.array(changed)))
        else:
            distances = np.where(changed, np.abs(moved), 0.0)
            measured = np.isfinite(distances)
            self._unmeasured += int((~measured).sum())
            self._distances.update(distances[measured])
        distances = np.where(measured, distances, -1.0)  # what became null, say, comes last
        for at in _farthest(distances, keys, changed, self.most).tolist():
            key, change = keys[at].as_py(), float(moved[at])
            names = tuple(values_of(key, self.key))
            row = RowMoved(names, _text(before[at]), _text(now[at]), change if np.isfinite(change) else None)
            self._farthest.append((float(distances[at]), key, row))
        self._farthest = heapq.nsmallest(self.most, self._farthest, key=lambda each: (-each[0], each[1]))

    def results(self) -> OutputMoved:
        """What is told of it."""
        there = self._distances.moments.count
        ranked = sorted(self._changes.items(), key=lambda found: (-found[1], *map(str, found[0])))
        return OutputMoved(
            output=self.output,
            kind=self.kind,
            types=self.types,
            unchanged=self._unchanged,
            changed=self._changed,
            unmeasured=self._unmeasured,
            median=self._distances.quantile(0.5) if there else None,
            p99=self._distances.quantile(0.99) if there else None,
            max=self._distances.max,
            rows=tuple(row for *_, row in self._farthest),
            changes=tuple(ValueChanged(*pair, rows) for pair, rows in ranked[: self.most]),
            changes_cut=self._cut,
        )

    def _count_changes(self, before: pa.ChunkedArray, now: pa.ChunkedArray) -> None:
        if self._cut or not len(before):
            return
        rows = pa.table([comparable(before), comparable(now), np.arange(len(before))], ["before", "now", "row"])
        pairs = rows.group_by(["before", "now"]).aggregate([("row", "min"), ("row", "count")])
        if len(pairs) <= MOST_CHANGES:
            for row, count in zip(pairs["row_min"].to_pylist(), pairs["row_count"].to_pylist(), strict=True):
                self._changes[_text(before[row]), _text(now[row])] += count
        if len(pairs) > MOST_CHANGES or len(self._changes) > MOST_CHANGES:
            self._changes, self._cut = Counter(), True


def _farthest(distances: Floats, keys: pa.Array, which: Bools, most: int) -> npt.NDArray[np.int64]:
    """Which of these rows have the greatest distances; of equal ones those with the first keys."""
    at = np.flatnonzero(which)
    rows = pa.table({"distance": distances[at], "key": keys.take(pa.array(at))})
    order = [("distance", "descending"), ("key", "ascending")]
    found: npt.NDArray[np.int64] = at[pc.select_k_unstable(rows, most, order).to_numpy()]
    return found


def _text(value: pa.Scalar) -> str | None:
    return shown(value, _CHARS) if value.is_valid else None


def kind_of(type_: pa.DataType) -> str:
    """How an output of this type is compared."""
    type_ = plain_type(type_)
    if _is_number(type_):
        return NUMBER
    return VECTOR if is_list(type_) and _is_number(type_.value_type) else VALUE


def incomparable(before: pa.DataType | None, now: pa.DataType | None, runs: tuple[str, str]) -> str:
    """Why the values of two runs cannot be compared; empty if they can. None: the run does not have the output."""
    if before is None or now is None:
        return f"only {runs[0] if now is None else runs[1]} has it"
    kinds, types = (kind_of(before), kind_of(now)), (plain_type(before), plain_type(now))
    alike = types[0] == types[1] or all(map(is_text, types))
    if kinds[0] == kinds[1] and (kinds[0] != VALUE or alike):
        return ""
    return f"it is {type_name(before)} in {runs[0]} and {type_name(now)} in {runs[1]}; score one of the runs again"


def _is_number(type_: pa.DataType) -> bool:
    return bool(is_.is_integer(type_) or is_.is_floating(type_) or is_.is_decimal(type_))


def _numbers(before: pa.ChunkedArray, now: pa.ChunkedArray) -> tuple[Bools, Floats]:
    """Which numbers are others now, and by how much; NaN where there is no difference to tell. Numbers of one type are
    compared exactly; others, and how far they moved, as float64.
    """
    there = [np.asarray(each.is_valid()) for each in (before, now)]
    one, other = (each.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy() for each in (before, now))
    with np.errstate(over="ignore", invalid="ignore"):
        moved = other - one
    same = one == other
    if before.type == now.type and not is_.is_floating(before.type):  # floats are float64, exactly
        same = np.asarray(pc.fill_null(pc.equal(before, now), False))
    changed = np.where(there[0] & there[1], ~(same | (np.isnan(one) & np.isnan(other))), there[0] != there[1])
    return changed, moved


def _vectors(before: pa.ChunkedArray, now: pa.ChunkedArray) -> tuple[Bools, Floats]:
    """Which vectors are others now, and their Euclidean distance; NaN where it is none."""
    changed, moved = np.zeros(len(before), bool), np.zeros(len(before))
    for at in range(0, len(before), _SLICE):
        one, other = (each.slice(at, _SLICE).combine_chunks() for each in (before, now))
        lengths = [np.asarray(pc.fill_null(pc.list_value_length(each), -1)) for each in (one, other)]
        alike = (lengths[0] == lengths[1]) & (lengths[0] >= 0)
        rows = np.repeat(np.flatnonzero(alike), lengths[0][alike])
        items = [pc.list_flatten(each.filter(pa.array(alike))) for each in (one, other)]
        differs, apart = _numbers(*(pa.chunked_array([each]) for each in items))
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.where(differs, apart * apart, 0.0)
            here = slice(at, at + len(one))
            moved[here] = np.where(
                lengths[0] == lengths[1], np.sqrt(np.bincount(rows, squares, minlength=len(one))), np.nan
            )
        changed[here] = (lengths[0] != lengths[1]) | (np.bincount(rows, differs, minlength=len(one)) > 0)
    return changed, moved


def _values(before: pa.ChunkedArray, now: pa.ChunkedArray) -> tuple[Bools, Floats]:
    """Which values are others now. They have no distance."""
    one, other = comparable(before), comparable(now)
    unequal = pc.fill_null(pc.not_equal(one, other), False)
    changed = pc.or_(unequal, pc.not_equal(one.is_null(), other.is_null()))
    return np.asarray(changed), np.full(len(one), np.nan)


_MOVED: dict[str, Callable[[pa.ChunkedArray, pa.ChunkedArray], tuple[Bools, Floats]]] = {
    NUMBER: _numbers,
    VECTOR: _vectors,
    VALUE: _values,
}
