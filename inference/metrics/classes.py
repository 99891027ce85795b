"""Labels that are one of several classes against outputs that name a class, as a state that merges exactly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_text
from nightjar.inference.metrics.categories import as_text
from nightjar.inference.metrics.columns import plain
from nightjar.inference.metrics.evaluator import Evaluator, Labels
from nightjar.inference.metrics.figures import Averages, Bounded, ClassFigure, ClassFigures, Confused, Evaluation
from nightjar.inference.metrics.packing import pack, unpack

MOST_CLASSES = 128
"""The most classes, of labels and outputs together, that are counted each. With more only the accuracy is known."""

LONGEST = 200
"""The longest name of a class in characters. A longer one is text and no class, and counts as too many."""

MOST_PAIRS = 1024
"""The most pairs of a label and another output in the figures: all that 32 classes can have."""


@dataclass(slots=True)
class ClassState(Evaluator):
    """Classes against classes, by their names as text.

    A row with a null label counts only as `unlabelled`; another row with a null output counts as `unscored`. right: the
    rows whose output is the label. counts: (label, output) → rows. cut: whether there are too many classes, or too long
    names, to count them.
    """

    TASK: ClassVar[str] = "multiclass"
    LABELS: ClassVar[str] = "a text, an integer or a bool"
    SCORES: ClassVar[str] = "a text, an integer or a bool"
    EXAMPLE: ClassVar[str] = "kind: string"

    label: str
    score: str
    unlabelled: int = 0
    unscored: int = 0
    rows: int = 0
    right: int = 0
    cut: bool = False
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    @staticmethod
    def takes_label(type_: pa.DataType) -> bool:
        """Whether labels may be of this type."""
        return _names_classes(type_)

    @staticmethod
    def takes_score(type_: pa.DataType) -> bool:
        """Whether outputs may be of this type."""
        return _names_classes(type_)

    def update(self, rows: pa.Table, labels: Labels) -> None:
        expected, found = _whole(self.typed(labels)), _whole(self.outputs(rows, labels))
        known, given = (each.is_valid().to_numpy(zero_copy_only=False) for each in (expected, found))
        self.unlabelled += len(known) - int(known.sum())
        self.unscored += int((known & ~given).sum())
        compared = pa.array(known & given)
        self._add(expected.filter(compared), found.filter(compared))

    def _add(self, expected: pa.Array, found: pa.Array) -> None:
        if not len(expected):
            return
        index: dict[str, int] = {}
        # Each program writes bools differently: the classes of a classifier are often `True` and `False`, or 1 and 0.
        bools = is_.is_boolean(expected.type) != is_.is_boolean(found.type)
        rows, columns = (_coded(each, index, _beside_bools if bools else as_text) for each in (expected, found))
        self.rows += len(rows)
        self.right += int((rows == columns).sum())
        if self.cut or not _few(index):
            self._cut_off()
            return
        names = list(index)
        pairs, counts = np.unique(rows * len(names) + columns, return_counts=True)
        self._count(
            {
                (names[pair // len(names)], names[pair % len(names)]): count
                for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
            }
        )

    def merge(self, other: ClassState) -> None:
        self.unlabelled += other.unlabelled
        self.unscored += other.unscored
        self.rows += other.rows
        self.right += other.right
        if self.cut or other.cut:
            self._cut_off()
        else:
            self._count(other.counts)

    def _count(self, counts: dict[tuple[str, str], int]) -> None:
        self.counts.update(counts)
        if not _few(self._names()):
            self._cut_off()

    def _cut_off(self) -> None:
        self.counts, self.cut = Counter(), True

    def _names(self) -> list[str]:
        return sorted({name for pair in self.counts for name in pair})

    def values(self) -> tuple[Any, ...]:
        """The fields' values for JSON. A pair is its place in the matrix of the names, kept by the gap before it."""
        names = self._names()
        at = {name: place for place, name in enumerate(names)}
        places = sorted((at[label] * len(names) + at[score], rows) for (label, score), rows in self.counts.items())
        cells = np.array(places, np.int64).reshape(-1, 2)
        counts = [names, pack(np.diff(cells[:, 0], prepend=0)), pack(cells[:, 1])]
        return (self.label, self.score, self.unlabelled, self.unscored, self.rows, self.right, self.cut, counts)

    @classmethod
    def of_values(cls, values: tuple[Any, ...]) -> ClassState:
        """The inverse of `values`."""
        label, score, unlabelled, unscored, rows, right, cut, (names, gaps, counts) = values
        places = np.cumsum(unpack(gaps)).tolist()
        pairs = ((names[place // len(names)], names[place % len(names)]) for place in places)
        counter = Counter(dict(zip(pairs, unpack(counts).tolist(), strict=True)))
        return cls(label, score, unlabelled, unscored, rows, right, cut, counter)

    def results(self) -> Evaluation:
        """The figures; a missing figure has a reason."""
        per_class = self._per_class()
        wrong = [Confused(*pair, rows) for pair, rows in self.counts.items() if pair[0] != pair[1]]
        wrong.sort(key=lambda found: (-found.rows, found.label, found.output))
        reason = self._reason()
        return self.evaluation(
            classes=ClassFigures(
                accuracy=self.right / self.rows if self.rows else None,
                macro=None if reason else _averages(per_class, [1] * len(per_class)),
                weighted=None if reason else _averages(per_class, [each.rows for each in per_class]),
                reason=reason,
                per_class=tuple(per_class),
                confusion=tuple(wrong[:MOST_PAIRS]),
                left_out=sum(each.rows for each in wrong[MOST_PAIRS:]),
            ),
        )

    def metric(self, name: str, threshold: float = 0.5) -> Bounded | str:
        """A metric, or why there is none. With one class a row, each micro average is the accuracy."""
        average, _, kind = name.rpartition("_")
        if self.rows and average in ("", "micro"):
            return Bounded(self.right / self.rows)
        if reason := self._reason():
            return reason
        per_class = self._per_class()
        weights = [1 if average == "macro" else each.rows for each in per_class]
        return Bounded(getattr(_averages(per_class, weights), kind))

    def _reason(self) -> str | None:
        """Why there are no averages over the classes."""
        if not self.rows:
            return "no row has both a label and an output"
        if self.cut:
            return f"there are more than {MOST_CLASSES} classes, or one has a name of more than {LONGEST} characters"
        return None

    def _per_class(self) -> list[ClassFigure]:
        """Each class, by name. A share of nothing is 0."""
        labelled, predicted = Counter[str](), Counter[str]()
        for (label, output), rows in self.counts.items():
            labelled[label] += rows
            predicted[output] += rows
        return [
            ClassFigure(
                name=name,
                rows=labelled[name],
                predicted=predicted[name],
                right=(right := self.counts[name, name]),
                precision=_share(right, predicted[name]),
                recall=_share(right, labelled[name]),
                f1=_share(2 * right, predicted[name] + labelled[name]),
            )
            for name in self._names()
        ]


def _averages(of: list[ClassFigure], weights: list[int]) -> Averages:
    kinds = (([getattr(each, kind) for each in of]) for kind in ("precision", "recall", "f1"))
    return Averages(*(math.fsum(map(float.__mul__, each, map(float, weights))) / sum(weights) for each in kinds))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _names_classes(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _names_classes(type_.storage_type)
    kind = type_.value_type if is_.is_dictionary(type_) else type_
    return bool(is_text(kind) or is_.is_integer(kind) or is_.is_boolean(kind))


def _few(names: dict[str, int] | list[str]) -> bool:
    return len(names) <= MOST_CLASSES and all(len(name) <= LONGEST for name in names)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece, of a type whose values Arrow can count."""
    return plain(column).combine_chunks()


_BOOLS = {"true": "true", "false": "false", "1": "true", "0": "false"}


def _beside_bools(value: Any) -> str:
    """The name of a class where either the labels or the outputs are bools, and the others are not."""
    text = as_text(value)
    return _BOOLS.get(text.lower(), text)


def _coded(column: pa.Array, index: dict[str, int], named: Callable[[Any], str]) -> np.ndarray:
    """The class of each value by its place in `index`, which gets the names that it lacks. named: names a value."""
    encoded = pc.dictionary_encode(column)
    names = map(named, encoded.dictionary.to_pylist())
    places = np.array([index.setdefault(name, len(index)) for name in names], np.int64)
    found: np.ndarray = places[encoded.indices.to_numpy()]
    return found
