"""The labels against the outputs, by the evaluator of their kind: of all rows, and for each value of some columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.metrics.binary import BinaryState
from nightjar.inference.metrics.classes import ClassState
from nightjar.inference.metrics.columns import LONGEST, as_text, plain, plain_type
from nightjar.inference.metrics.encoding import Kept, State, merge_named
from nightjar.inference.metrics.evaluator import Evaluator, Labels
from nightjar.inference.metrics.figures import Slice, SliceFigures
from nightjar.inference.metrics.ranking import RankingState
from nightjar.inference.metrics.regression import RegressionState

_KINDS: tuple[type[Evaluator], ...] = (BinaryState, RegressionState, ClassState, RankingState)

TASKS: Mapping[str, type[Evaluator]] = {kind.TASK: kind for kind in _KINDS}
"""`evaluation.task` of a job → its evaluator. A new kind is a new file, one name above, and its words in
`job.label_sections`."""


def evaluator_of(job: Job, key: str = "label") -> Evaluator | None:
    """An empty state for the job's label; None if the job has no label. The label is compared with the output that
    the job names, else with the first one that fits. key: that of the label in the job file, for messages.

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
            return kind.of_section(job.label, name, job.evaluation)
    raise JobError(
        f"{key}: {job.label!r} needs a score to be compared with, but no output of the model is {kind.SCORES}; "
        f"declare one in model.outputs, such as `{kind.EXAMPLE}`, or drop {key}"
    )


MOST_VALUES = 64
"""The most values of a column, null included. A column with more has no slices, whatever the order of its rows."""

Value = str | None


@dataclass(slots=True)
class SlicedColumn(State):
    """One column. states: value, as text → its rows. cut: whether the column has too many values, or too long ones."""

    states: dict[Value, Evaluator] = field(default_factory=dict)
    cut: bool = False

    def update(self, column: pa.ChunkedArray, rows: pa.Table, labels: Labels, of: Evaluator) -> None:
        """Add rows. column: their values. rows: with the columns that `of`, an evaluator like the slices', needs."""
        divided = None if self.cut else _divided(column)
        if divided is None or not self._have_room(value for value, _ in divided[1]):
            self._cut_off()
            return
        order, values = divided
        rows, labels = rows.combine_chunks().take(order), labels.take(order)
        first = 0
        for value, count in values:
            state = self.states.setdefault(value, of.for_slice())
            state.update(rows.slice(first, count), labels.slice(first, count))
            first += count

    def merge(self, other: SlicedColumn) -> None:
        if self.cut or other.cut or not self._have_room(other.states):
            self._cut_off()
            return
        merge_named(self.states, other.states)

    def _have_room(self, values: Iterable[Value]) -> bool:
        together = self.states.keys() | values
        return len(together) <= MOST_VALUES and all(len(value or "") <= LONGEST for value in together)

    def _cut_off(self) -> None:
        self.states, self.cut = {}, True

    def ranked(self) -> list[tuple[Value, Evaluator]]:
        """The slices, those with the most compared rows first."""
        return sorted(self.states.items(), key=lambda found: (-found[1].rows, found[0] is not None, found[0] or ""))

    def values(self) -> list[Any]:
        """The fields as JSON values."""
        ordered = sorted(self.states.items(), key=lambda found: (found[0] is not None, found[0] or ""))
        return [self.cut, [[value, state.values()] for value, state in ordered]]

    def results(self) -> SliceFigures:
        """The figures, in brief, because there may be hundreds of slices."""
        found = [Slice(value, state.results().brief()) for value, state in self.ranked()]
        return SliceFigures(tuple(found), self.cut)


@dataclass(slots=True, eq=False)
class Slices(Kept):
    """The labels of a job's rows against its outputs. task: the key in `TASKS` of the evaluators. columns: the sliced
    ones, by name. whole: all rows, not divided.
    """

    VERSION: ClassVar[int] = 6
    CALLED: ClassVar[str] = "slices"

    task: str
    columns: dict[str, SlicedColumn]
    whole: Evaluator

    @classmethod
    def for_job(cls, job: Job) -> Slices:
        """No rows of a job that has a label."""
        whole = evaluator_of(job)
        assert whole is not None
        return cls(whole.TASK, {name: SlicedColumn() for name in job.slicing}, whole)

    def update(self, table: pa.Table, labels: Labels) -> None:
        """Add rows. table: their outputs and carried columns.

        Raises:
            LabelInvalid: A label is of no value that the job's label may have.
        """
        rows, labels = pa.table({name: plain(table[name]) for name in self.whole.columns}), self.whole.typed(labels)
        self.whole.update(rows, labels)
        for name, column in self.columns.items():
            column.update(table[name], rows, labels, self.whole)

    @classmethod
    def of_values(cls, values: Any) -> Slices:
        task, columns, whole = values
        kind = TASKS[task]
        sliced = {
            name: SlicedColumn({value: kind.of_values(state) for value, state in states}, cut)
            for name, (cut, states) in columns.items()
        }
        return cls(task, sliced, kind.of_values(whole))

    def results(self) -> dict[str, SliceFigures]:
        """The figures of each column."""
        return {name: column.results() for name, column in self.columns.items()}


def check_slices(job: Job, types: Mapping[str, pa.DataType]) -> None:
    """Check that rows can be divided by the columns that the job names. types: of the columns that are written.

    Raises:
        JobError: They cannot. Names the column and its type.
    """
    for name in job.slicing:
        kind = plain_type(types[name])
        tests = (is_text, is_.is_integer, is_.is_boolean, is_.is_date, is_.is_null)
        if not any(test(kind) for test in tests):
            raise JobError(
                f"evaluation.slices: {name!r} is {types[name]}; name columns of text, integers, bools or dates"
            )


def _divided(column: pa.ChunkedArray) -> tuple[pa.Array, list[tuple[Value, int]]] | None:
    """The indices of the rows, ordered by their values, and each value as text with the number of its rows; None if
    there are too many values.
    """
    encoded = plain(column).combine_chunks().dictionary_encode(null_encoding="encode")
    if len(encoded.dictionary) > MOST_VALUES:
        return None
    codes = encoded.indices.to_numpy().astype(np.int8)
    rows = np.bincount(codes, minlength=len(encoded.dictionary)).tolist()
    # Python has no date after the year 9999.
    held = encoded.dictionary.cast(pa.string()) if is_.is_date(encoded.dictionary.type) else encoded.dictionary
    values = [None if value is None else as_text(value) for value in held.to_pylist()]
    return pa.array(np.argsort(codes, kind="stable")), list(zip(values, rows, strict=True))
