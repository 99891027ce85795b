"""The metrics of one part's rows. Each part has its states in its Parquet footer, and the audit merges them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import pyarrow as pa

from nightjar.inference.job.label_sections import BESIDE
from nightjar.inference.job.model import Job
from nightjar.inference.messages import counted
from nightjar.inference.metrics.columns import ColumnState, FiniteState, holds_floats
from nightjar.inference.metrics.encoding import States, from_bytes, to_bytes
from nightjar.inference.metrics.evaluator import Evaluator
from nightjar.inference.metrics.evaluators import TASKS, evaluator_of
from nightjar.inference.metrics.figures import Figures, OutputFigures

_VERSION = 2


def nonfinite_notes(outputs: Mapping[str, OutputFigures], of: str = "the output") -> list[str]:
    """A sentence for each float output with values that are not finite."""
    return [
        f"{name!r} is NaN or infinite in {counted(found.nonfinite, 'value')} of {counted(found.rows, 'row')} of {of}; "
        f"a check {{column: {name}, finite: true}} refuses that"
        for name, found in outputs.items()
        if found.nonfinite
    ]


class Metrics(States):
    """All accumulators of one job.

    columns: a state per checked column. outputs: one per float output, checked or not. evaluation: if the job has a
    label, and a task whose state is small enough for a footer; else `Slices` has it.
    """

    def __init__(
        self, columns: dict[str, ColumnState], outputs: dict[str, FiniteState], evaluation: Evaluator | None
    ) -> None:
        self.columns = columns
        self.outputs = outputs
        self.evaluation = evaluation

    @classmethod
    def for_job(cls, job: Job) -> Metrics:
        """Empty states.

        Raises:
            JobError: the job has a label, but no output to compare it with.
        """
        columns = {name: ColumnState() for name in job.checked_columns}
        outputs = {name: FiniteState() for name, type_ in job.output_types().items() if holds_floats(type_)}
        return cls(columns, outputs, None if job.evaluation.task in BESIDE else evaluator_of(job))

    def update(self, table: pa.Table, label: pa.ChunkedArray | pa.Array | None) -> None:
        """Count kept rows: `table` has their outputs and carried columns, `label` their labels.

        Raises:
            LabelInvalid: a label is of no value that the job's label may have.
        """
        for name, state in self.columns.items():
            state.update(table[name])
        for name, finite in self.outputs.items():
            finite.update(table[name])
        if self.evaluation is not None:
            if label is None:
                raise ValueError(f"the job's label {self.evaluation.label!r} was not given")
            self.evaluation.update(table, label)

    def merge(self, other: Metrics) -> None:
        """Add another's rows to these. Both are of one job."""
        mine, theirs = self.evaluation, other.evaluation
        if self.columns.keys() != other.columns.keys() or type(mine) is not type(theirs):
            raise ValueError("metrics of different jobs cannot be merged")
        for name, state in self.columns.items():
            state.merge(other.columns[name])
        for name, finite in other.outputs.items():
            self.outputs[name].merge(finite)
        if mine is not None and theirs is not None:
            mine.merge(theirs)

    def to_bytes(self) -> bytes:
        """ASCII, because some Parquet readers refuse a footer whose values are not UTF-8."""
        kept: dict[str, Any] = {
            "columns": {name: state.values() for name, state in self.columns.items()},
            "outputs": {name: astuple(state) for name, state in self.outputs.items()},
        }
        if self.evaluation is not None:
            kept |= {"task": self.evaluation.TASK, "evaluation": self.evaluation.values()}
        return base64.b64encode(to_bytes(_VERSION, kept))

    @classmethod
    def from_bytes(cls, data: bytes) -> Metrics:
        """The inverse of `to_bytes`.

        Raises:
            ValueError: not a state that this version wrote.
        """

        def read(found: dict[str, Any]) -> Metrics:
            columns = {name: ColumnState.of_values(values) for name, values in found["columns"].items()}
            outputs = {name: FiniteState(*counts) for name, counts in found["outputs"].items()}
            task = found.get("task")
            return cls(columns, outputs, TASKS[task].of_values(found["evaluation"]) if task else None)

        return from_bytes(base64.b64decode(data), _VERSION, "a metrics state", read)

    def results(self) -> Figures:
        """What is told of them."""
        return Figures(
            columns={name: state.results() for name, state in self.columns.items()},
            outputs={name: state.results() for name, state in self.outputs.items()},
            evaluation=None if self.evaluation is None else self.evaluation.results(),
        )
