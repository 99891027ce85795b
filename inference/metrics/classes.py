"""Labels that are one of several classes against outputs that name a class."""

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
from nightjar.inference.metrics.columns import LONGEST, as_text, plain, plain_type
from nightjar.inference.metrics.encoding import State
from nightjar.inference.metrics.evaluator import Evaluator, Labels
from nightjar.inference.metrics.figures import Bounded, ClassFigure, ClassFigures, Confused

MOST_CLASSES = 128
"""The most classes, of labels and outputs together, that are counted each. With more only the accuracy is known."""

MOST_PAIRS = 1024
"""The most pairs of a label and another output in the figures: all that 32 classes can have."""


def _names_classes(type_: pa.DataType) -> bool:
    kind = plain_type(type_)
    return bool(is_text(kind) or is_.is_integer(kind) or is_.is_boolean(kind))


@dataclass(slots=True)
class ClassState(Evaluator):
    """Classes against classes, by their names as text. right: the rows whose output is the label. counts: (label,
    output) → rows. cut: whether there are too many classes, or too long names, to count them.
    """

    TASK: ClassVar[str] = "multiclass"
    LABELS: ClassVar[str] = "a text, an integer or a bool"
    SCORES: ClassVar[str] = "a text, an integer or a bool"
    EXAMPLE: ClassVar[str] = "kind: string"
    takes_label = takes_score = staticmethod(_names_classes)

    right: int = 0
    cut: bool = False
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def update(self, rows: pa.Table, labels: Labels) -> None:
        expected, found = _whole(self.typed(labels)), _whole(self.outputs(rows, labels))
        known, given = (each.is_valid().to_numpy(zero_copy_only=False) for each in (expected, found))
        compared = pa.array(self.compared(known, given))
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
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            self.counts[names[pair // len(names)], names[pair % len(names)]] += count
        if not _few(self._names()):
            self._cut_off()

    def merge(self, other: ClassState) -> None:
        State.merge(self, other)
        if self.cut or not _few(self._names()):
            self._cut_off()

    def _cut_off(self) -> None:
        self.counts, self.cut = Counter(), True

    def _names(self) -> list[str]:
        return sorted({name for pair in self.counts for name in pair})

    def metric(self, name: str, threshold: float = 0.5) -> Bounded | str:
        """As `Evaluator.metric`. In a macro average each class counts alike, in a weighted one as many rows as have it
        as label.
        """
        if not self.rows:
            return "no row has both a label and an output"
        if name == "accuracy":
            return Bounded(self.right / self.rows)
        if self.cut:
            return f"there are more than {MOST_CLASSES} classes, or one has a name of more than {LONGEST} characters"
        average, _, kind = name.rpartition("_")
        of = self._per_class()
        weights = [1 if average == "macro" else each.rows for each in of]
        total = math.fsum(getattr(each, kind) * weight for each, weight in zip(of, weights, strict=True))
        return Bounded(total / sum(weights))

    def details(self) -> dict[str, Any]:
        """The figures of each class, and the mistakes."""
        wrong = [Confused(*pair, rows) for pair, rows in self.counts.items() if pair[0] != pair[1]]
        wrong.sort(key=lambda found: (-found.rows, found.label, found.output))
        left_out = sum(each.rows for each in wrong[MOST_PAIRS:])
        return {"classes": ClassFigures(tuple(self._per_class()), tuple(wrong[:MOST_PAIRS]), left_out)}

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


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _few(names: dict[str, int] | list[str]) -> bool:
    return len(names) <= MOST_CLASSES and all(len(name) <= LONGEST for name in names)


def _whole(column: pa.ChunkedArray) -> pa.Array:
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
