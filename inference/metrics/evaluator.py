"""What every evaluator does: it compares labels with rows that are written, as a state that is merged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import LabelInvalid
from nightjar.inference.job.label_sections import METRICS, Evaluating
from nightjar.inference.metrics.columns import floats, nan_as_null, plain, plain_type
from nightjar.inference.metrics.encoding import State
from nightjar.inference.metrics.figures import Bounded, Evaluation

Labels: TypeAlias = pa.ChunkedArray | pa.Array


class TypeTest(Protocol):
    """Whether a column of this type can be compared."""

    def __call__(self, type_: pa.DataType, /) -> bool: ...


@dataclass(slots=True)
class Evaluator(State, ABC):
    """A column of labels against an output. A kind is a dataclass that adds its own sums."""

    TASK: ClassVar[str]
    """The key of the kind in `slices.TASKS`, and in `METRICS`, whose names `metric` answers."""

    LABELS: ClassVar[str]
    """The values of labels, in words for messages."""

    SCORES: ClassVar[str]
    """The values of outputs, in words for messages."""

    EXAMPLE: ClassVar[str]
    """An output of this kind, as a job declares it."""

    VALUES: ClassVar[str] = ""
    """The values of labels that are numbers, in words for messages; '' for a kind whose labels need be no numbers."""

    takes_label: ClassVar[TypeTest]
    """Whether labels may be of a type."""

    takes_score: ClassVar[TypeTest]
    """Whether outputs may be of a type."""

    label: str
    """The name of the column of labels."""

    score: str
    """The name of the output."""

    unlabelled: int = 0
    """Rows without a label: it is null, or NaN. These rows count nowhere else."""

    unscored: int = 0
    """Rows with a label whose output is null or NaN. These rows count nowhere else."""

    rows: int = 0
    """Rows that are compared."""

    @classmethod
    def of_section(cls, label: str, score: str, asked: Evaluating) -> Self:
        """No rows. asked: the job's section `evaluation`."""
        return cls(label, score)

    def for_slice(self) -> Self:
        """No rows, to be compared in the same way, for one of hundreds of slices."""
        return type(self)(self.label, self.score)

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns of the written rows that it needs, the output first, each with the key of the job that names
        it.
        """
        return {self.score: "model.outputs"}

    def check_columns(self, types: Mapping[str, pa.DataType]) -> None:
        """Check the types of `columns` other than the output.

        Raises:
            JobError: One is of a type that it cannot have. Names the key.
        """

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        """Whether a column of this type can have the labels. One of nulls alone can: no label has come yet."""
        kind = plain_type(kind)
        return pa.types.is_null(kind) or cls.takes_label(kind)

    def check(self, labels: Labels) -> None:
        """Check labels whose rows are not there yet.

        Raises:
            LabelInvalid: A label is of no such value.
        """
        if self.VALUES:
            self.numbers(labels)
        else:
            self.typed(labels)

    def typed(self, labels: Labels) -> pa.ChunkedArray:
        """The labels without dictionary or extension type; a column of nulls has no label, and NaN is none.

        Raises:
            LabelInvalid: They are of a type that labels cannot have.
        """
        column = plain(labels if isinstance(labels, pa.ChunkedArray) else pa.chunked_array([labels]))
        if self.takes(column.type):
            return nan_as_null(column)
        if column.null_count < len(column):
            raise LabelInvalid(f"label column {self.label!r} is {column.type}; it must be {self.LABELS}")
        return pa.chunked_array([pa.nulls(len(column))])

    def numbers(self, labels: Labels) -> np.ndarray:
        """The labels as float64, with NaN for none.

        Raises:
            LabelInvalid: One is no number that labels can be.
        """
        found = floats(self.typed(labels))
        known = found[~np.isnan(found)]
        if (wrong := ~self.fits(known)).any():
            value = known[wrong][0].item()
            shown = int(value) if value.is_integer() else value
            raise LabelInvalid(f"label column {self.label!r} holds {shown!r}; it must be {self.VALUES} or null")
        return found

    def fits(self, known: np.ndarray) -> np.ndarray:
        """Which of these numbers can be labels."""
        finite: np.ndarray = np.isfinite(known)
        return finite

    def outputs(self, rows: pa.Table, labels: Labels) -> pa.ChunkedArray:
        """The outputs of rows, of which each has a label or a null for one."""
        if rows.num_rows != len(labels):
            raise ValueError(f"{len(labels)} labels for {rows.num_rows} rows")
        return rows[self.score]

    def compared(self, known: np.ndarray, given: np.ndarray) -> np.ndarray:
        """Which rows are compared; the others are counted. known, given: which have a label, and an output."""
        self.unlabelled += len(known) - int(known.sum())
        self.unscored += int((known & ~given).sum())
        compared: np.ndarray = known & given
        return compared

    @abstractmethod
    def update(self, rows: pa.Table, labels: Labels) -> None:
        """Add rows, which have at least `columns`.

        Raises:
            LabelInvalid: A label is of no such value.
        """

    @abstractmethod
    def metric(self, name: str, threshold: float = 0.5) -> Bounded | str:
        """One of the task's `METRICS`, or why there is none. threshold: for scores that predict 0 and 1."""

    def details(self) -> dict[str, Any]:
        """Other fields of `Evaluation` that this kind has."""
        return {}

    def results(self) -> Evaluation:
        """The figures; a missing figure has a reason."""
        found = {name: self.metric(name) for name in METRICS[self.TASK]}
        return Evaluation(
            task=self.TASK,
            label=self.label,
            score=self.score,
            rows=self.rows,
            excluded_null_labels=self.unlabelled,
            excluded_scores=self.unscored,
            metrics={name: each for name, each in found.items() if isinstance(each, Bounded)},
            missing={name: each for name, each in found.items() if isinstance(each, str)},
            **self.details(),
        )
