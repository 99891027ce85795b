"""How labels are compared with outputs: one evaluator per kind of label, each a state that merges exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.metrics.classes import ClassState
from nightjar.inference.metrics.evaluation import BinaryState
from nightjar.inference.metrics.figures import Bounded, Evaluation
from nightjar.inference.metrics.regression import RegressionState


class Evaluator(Protocol):
    """A column of labels against an output: any grouping and any order of the same rows give the same state.

    label: the column of labels. score: the output. TASK: its key in `TASKS`. LABELS, SCORES: the values of labels and
    outputs, in words for messages. EXAMPLE: an output of this kind, as a job declares it.
    """

    TASK: ClassVar[str]
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


_KINDS: tuple[type[Evaluator], ...] = (BinaryState, RegressionState, ClassState)

TASKS: Mapping[str, type[Evaluator]] = {kind.TASK: kind for kind in _KINDS}
"""`evaluation.task` of a job → its evaluator. A new kind is a new file, and one name above."""


def evaluator_of(job: Job) -> Evaluator | None:
    """An empty state for the job's label; None if the job has no label. The label is compared with the output that
    the job names, else with the first one that fits.

    Raises:
        JobError: No output fits.
    """
    if job.label is None:
        return None
    kind, outputs = TASKS[job.evaluation.task], job.output_types()
    named = job.evaluation.prediction
    if named is not None and not kind.takes_score(outputs[named]):
        raise JobError(
            f"evaluation.prediction: {named!r} is {outputs[named]}, and evaluation.task: {kind.TASK} compares labels "
            f"with {kind.SCORES}; name another output, or another task"
        )
    for name, type_ in outputs.items():
        if name == named or (named is None and kind.takes_score(type_)):
            return kind(job.label, name)
    raise JobError(
        f"label: {job.label!r} needs a score to be compared with, but no output of the model is {kind.SCORES}; "
        f"declare one in model.outputs, such as `{kind.EXAMPLE}`, or drop label"
    )
