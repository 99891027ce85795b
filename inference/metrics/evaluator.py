"""What every evaluator does: it compares labels with rows that are written, as a state that merges exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import pyarrow as pa

from nightjar.inference.errors import LabelInvalid
from nightjar.inference.job.label_sections import Evaluating
from nightjar.inference.metrics.columns import nan_as_null, plain
from nightjar.inference.metrics.figures import Bounded, ClassFigures, Evaluation, RankingFigures, RegressionFigures

Labels: TypeAlias = pa.ChunkedArray | pa.Array


class Evaluator(Protocol):
    """A column of labels against an output: any grouping and any order of the same rows give the same state.

    label: the column of labels. score: the output. unlabelled: rows without a label. unscored: others without an output
    to compare. TASK: its key in `evaluators.TASKS`. LABELS, SCORES: the values of
    labels and outputs, in words for messages. EXAMPLE: an output of this kind, as a job declares it.

    A class that inherits from this one has what is the same for all kinds.
    """

    TASK: ClassVar[str]
    LABELS: ClassVar[str]
    SCORES: ClassVar[str]
    EXAMPLE: ClassVar[str]
    label: str
    score: str
    unlabelled: int
    unscored: int

    def __init__(self, label: str, score: str) -> None: ...

    @classmethod
    def of_section(cls, label: str, score: str, asked: Evaluating) -> Self:
        """No rows. asked: the job's section `evaluation`."""
        return cls(label, score)

    def for_slice(self) -> Self:
        """No rows, to be compared in the same way, for one of hundreds of slices."""
        return type(self)(self.label, self.score)

    @staticmethod
    def takes_label(type_: pa.DataType) -> bool:
        """Whether labels may be of this type."""
        ...

    @staticmethod
    def takes_score(type_: pa.DataType) -> bool:
        """Whether outputs may be of this type."""
        ...

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

    def check(self, labels: Labels) -> None:
        """Check labels whose rows are not there yet.

        Raises:
            LabelInvalid: A label is of no such value.
        """
        self.typed(labels)

    def typed(self, labels: Labels) -> pa.ChunkedArray:
        """The labels without dictionary or extension type; a column of the type null has no label, and NaN is none.

        Raises:
            LabelInvalid: They are of a type that labels cannot have.
        """
        column = plain(labels if isinstance(labels, pa.ChunkedArray) else pa.chunked_array([labels]))
        if not (pa.types.is_null(column.type) or self.takes_label(column.type)):
            raise LabelInvalid(f"label column {self.label!r} is {column.type}; it must be {self.LABELS}")
        return nan_as_null(column.cast(pa.float32()) if pa.types.is_float16(column.type) else column)

    def outputs(self, rows: pa.Table, labels: Labels) -> pa.ChunkedArray:
        """The outputs of rows, of which each has a label or a null for one."""
        if rows.num_rows != len(labels):
            raise ValueError(f"{len(labels)} labels for {rows.num_rows} rows")
        return rows[self.score]

    @property
    def rows(self) -> int:
        """The rows that are compared: those with a label and an output."""
        ...

    def update(self, rows: pa.Table, labels: Labels) -> None:
        """Add rows, which have at least `columns`.

        Raises:
            LabelInvalid: A label is of no such value.
        """
        ...

    def merge(self, other: Self) -> None:
        """Add another's rows to these."""
        ...

    def values(self) -> tuple[Any, ...]:
        """The state as JSON values: the same for the same rows."""
        ...

    @classmethod
    def of_values(cls, values: tuple[Any, ...]) -> Self:
        """The inverse of `values`."""
        ...

    def results(self) -> Evaluation:
        """The figures."""
        ...

    def evaluation(
        self,
        *,
        numbers: RegressionFigures | None = None,
        classes: ClassFigures | None = None,
        ranking: RankingFigures | None = None,
    ) -> Evaluation:
        """The figures of a kind that has none of scores for labels 0 and 1."""
        return Evaluation(
            label=self.label,
            score=self.score,
            rows=self.rows,
            excluded_null_labels=self.unlabelled,
            excluded_scores=self.unscored,
            positives=0,
            auc_roc=None,
            auc_bound=None,
            log_loss=None,
            numbers=numbers,
            classes=classes,
            ranking=ranking,
        )

    def metric(self, name: str, threshold: float = 0.5) -> Bounded | str:
        """A metric that a check may name, or why there is none. threshold: for scores that predict 0 and 1."""
        ...
