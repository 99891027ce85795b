"""The metrics of one part's rows, as states that merge exactly.

Each part has its states in its Parquet footer, and the audit merges them in shard order. Every accumulator is a count,
a minimum, a maximum or an integer sum, so any grouping of the same rows gives the same state. So a resumed run's
metrics equal an uninterrupted run's to the last bit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

import pyarrow as pa

from nightjar.inference.job.label_sections import BESIDE
from nightjar.inference.job.model import Job
from nightjar.inference.jsonform import SELDOM, of_json, to_json
from nightjar.inference.messages import counted
from nightjar.inference.metrics.columns import ColumnState, FiniteState, holds_floats
from nightjar.inference.metrics.evaluator import Evaluator
from nightjar.inference.metrics.evaluators import TASKS, evaluator_of
from nightjar.inference.metrics.figures import Figures, OutputFigures

_VERSION = 1
_BINARY = "binary"


@dataclass(frozen=True, slots=True)
class _Kept:
    """The states in a part's footer. To be short, each state is the tuple of its fields' values.

    v: the version of this form. evaluation: as `BinaryState.values`.
    """

    v: int
    columns: Mapping[str, tuple[Any, ...]]
    outputs: Mapping[str, tuple[Any, ...]]
    evaluation: tuple[Any, ...] | None = field(default=None, metadata=SELDOM)
    task: str | None = field(default=None, metadata=SELDOM)


def nonfinite_notes(outputs: Mapping[str, OutputFigures], of: str = "the output") -> list[str]:
    """A sentence for each float output with values that are not finite."""
    return [
        f"{name!r} is NaN or infinite in {counted(found.nonfinite, 'value')} of {counted(found.rows, 'row')} of {of}; "
        f"a check {{column: {name}, finite: true}} refuses that"
        for name, found in outputs.items()
        if found.nonfinite
    ]


class Metrics:
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
        columns = {name: state.values() for name, state in self.columns.items()}
        outputs = {name: astuple(state) for name, state in self.outputs.items()}
        evaluation = self.evaluation.values() if self.evaluation is not None else None
        task = self.evaluation.TASK if self.evaluation is not None else _BINARY
        kept = _Kept(_VERSION, columns, outputs, evaluation, None if task == _BINARY else task)
        return json.dumps(to_json(kept), separators=(",", ":")).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Metrics:
        """The inverse of `to_bytes`.

        Raises:
            ValueError: not a state that this version wrote.
        """
        try:
            kept = of_json(_Kept, json.loads(data))
            if kept.v != _VERSION:
                raise ValueError(f"metrics of version {kept.v}, not {_VERSION}")
            columns = {name: ColumnState.of_values(values) for name, values in kept.columns.items()}
            outputs = {name: FiniteState(*counts) for name, counts in kept.outputs.items()}
            evaluation = TASKS[kept.task or _BINARY].of_values(kept.evaluation) if kept.evaluation is not None else None
            return cls(columns, outputs, evaluation)
        except (KeyError, TypeError, IndexError, AttributeError, zlib.error) as error:
            raise ValueError(f"not a metrics state: {error}") from error

    def results(self) -> Figures:
        """What is told of them."""
        return Figures(
            columns={name: state.results() for name, state in self.columns.items()},
            outputs={name: state.results() for name, state in self.outputs.items()},
            evaluation=None if self.evaluation is None else self.evaluation.results(),
        )
