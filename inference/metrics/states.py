"""The metrics of one part's rows. A part has them in its Parquet footer or beside it, and the audit merges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pyarrow as pa

from nightjar.inference.job.model import Job
from nightjar.inference.messages import counted
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.metrics.encoding import Kept
from nightjar.inference.metrics.evaluator import Evaluator
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.metrics.slices import Slices


def nonfinite_notes(columns: Mapping[str, ColumnState], of: str = "the output") -> list[str]:
    """A sentence for each column with values that are not finite."""
    return [
        f"{name!r} is NaN or infinite in {counted(found.nonfinite, 'value')} of {counted(found.rows, 'row')} of {of}; "
        f"a check {{column: {name}, finite: true}} refuses that"
        for name, found in columns.items()
        if found.nonfinite
    ]


@dataclass(slots=True, eq=False)
class Metrics(Kept):
    """All states of a job's rows. columns: a state per checked column, and per float output. profile: of the columns
    that the job profiles. slices: of a job with a label.
    """

    VERSION: ClassVar[int] = 7
    CALLED: ClassVar[str] = "a metrics state"

    columns: dict[str, ColumnState] = field(default_factory=dict)
    profile: Profile | None = None
    slices: Slices | None = None

    @classmethod
    def for_job(cls, job: Job, profiled: Sequence[str] = ()) -> Metrics:
        """No rows. profiled: the columns that are described.

        Raises:
            JobError: the job has a label, but no output to compare it with.
        """
        return cls(
            columns={name: ColumnState() for name in job.measured_columns},
            profile=Profile.empty(profiled) if profiled else None,
            slices=Slices.for_job(job) if job.label else None,
        )

    def update(self, table: pa.Table, label: pa.ChunkedArray | pa.Array | None) -> None:
        """Count kept rows, but for the profile: `table` has their outputs and carried columns, `label` their labels.

        Raises:
            LabelInvalid: a label is of no value that the job's label may have.
        """
        for name, state in self.columns.items():
            state.update(table[name])
        if self.slices is not None:
            assert label is not None
            self.slices.update(table, label)

    @property
    def evaluation(self) -> Evaluator | None:
        """The labels of all rows against their outputs; None without labels."""
        return self.slices.whole if self.slices else None

    def results(self) -> Figures:
        """What is told of them."""
        return Figures(
            columns={name: replace(state) for name, state in self.columns.items()},
            evaluation=self.evaluation.results() if self.evaluation else None,
            profile=self.profile.results() if self.profile else {},
            slices=self.slices.results() if self.slices else {},
        )
