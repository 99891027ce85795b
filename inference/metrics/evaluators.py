"""How labels are compared with outputs: one evaluator per kind of label, each a state that merges exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.metrics.evaluation import BinaryState
from nightjar.inference.metrics.figures import Bounded, Evaluation


class Evaluator(Protocol):
    """A column of labels against an output: any grouping and any order of the same rows give the same state.

    label: the column of labels. score: the output. LABELS, SCORES: their values, in words for messages. EXAMPLE: an
    output of this kind, as a job declares it.
    """

    LABELS: ClassVar[str]
    SCORES: ClassVar[str]
    EXAMPLE: ClassVar[str]
    label: str
    score: str

    def __init__(self, label: str, score: str) -> None: ...

    @staticmethod
    def takes_label(type_: pa.DataType) -> bool:
        """Whether labels may be of this type."""

    @staticmethod
    def takes_score(type_: pa.DataType) -> bool:
        """Whether outputs may be of this type."""

    @property
    def rows(self) -> int:
        """The rows that are compared: those with a label and an output."""

    def update(self, scores: pa.ChunkedArray, labels: pa.ChunkedArray | pa.Array) -> None:
        """Add rows.

        Raises:
            LabelInvalid: A label is of no such value.
        """

    def merge(self, other: Self) -> None:
        """Add another's rows to these."""

    def values(self) -> tuple[Any, ...]:
        """The state as JSON values: the same for the same rows."""

    @classmethod
    def of_values(cls, values: tuple[Any, ...]) -> Self:
        """The inverse of `values`."""

    def results(self) -> Evaluation:
        """The figures."""

    def metric(self, name: str, threshold: float = 0.5) -> Bounded | str:
        """A metric that a check may name, or why there is none. threshold: for scores that predict 0 and 1."""


TASKS: Mapping[str, type[Evaluator]] = {"binary": BinaryState}
"""The kind of a label → its evaluator. A new kind is a new file, and one line here."""


def evaluator_of(job: Job) -> Evaluator | None:
    """An empty state for the job's label; None if the job has no label. The label is compared with the first output
    that fits.

    Raises:
        JobError: No output fits.
    """
    if job.label is None:
        return None
    kind = TASKS["binary"]
    for name, type_ in job.output_types().items():
        if kind.takes_score(type_):
            return kind(job.label, name)
    raise JobError(
        f"label: {job.label!r} needs a score to be compared with, but no output of the model is {kind.SCORES}; "
        f"declare one in model.outputs, such as `{kind.EXAMPLE}`, or drop label"
    )
