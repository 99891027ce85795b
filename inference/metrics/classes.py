"""Labels that are one of several classes against outputs that name a class."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
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
        both = pa.table([expected.filter(compared), found.filter(compared)], ["label", "output"])
        # Each program writes bools differently: the classes of a classifier are often `True` and `False`, or 1 and 0.
        bools = is_.is_boolean(expected.type) != is_.is_boolean(found.type)
        named = _beside_bools if bools else as_text
        pairs = both.group_by(both.column_names).aggregate([([], "count_all")])
        labels, outputs = (map(named, pairs[name].to_pylist()) for name in both.column_names)
        for label, output, rows in zip(labels, outputs, pairs["count_all"].to_pylist(), strict=True):
            self.counts[label, output] += rows
            self.right += rows if label == output else 0
        self.rows += len(both)
        self._cut_off()

    def merge(self, other: ClassState) -> None:
        State.merge(self, other)
        self._cut_off()

    def _cut_off(self) -> None:
        """Count no classes if there are too many, or too long names."""
        names = self._names()
        if self.cut or len(names) > MOST_CLASSES or any(len(name) > LONGEST for name in names):
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


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return plain(column).combine_chunks()


_BOOLS = {"true": "true", "false": "false", "1": "true", "0": "false"}


def _beside_bools(value: Any) -> str:
    """The name of a class where either the labels or the outputs are bools, and the others are not."""
    text = as_text(value)
    return _BOOLS.get(text.lower(), text)
