"""The metrics of one part's rows. A part has them in its Parquet footer and beside it, and the audit merges them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from nightjar.inference.job.model import Job
from nightjar.inference.messages import counted
from nightjar.inference.metrics.columns import ColumnState, holds_floats
from nightjar.inference.metrics.encoding import Kept
from nightjar.inference.metrics.evaluator import Evaluator
from nightjar.inference.metrics.figures import Figures, OutputFigures
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.metrics.slices import Slices

BESIDE: Mapping[str, type[Kept]] = {"profile": Profile, "slices": Slices}
"""The states that are too large for the footer of a part: each is a file beside it, as `Job.companions` says."""


def nonfinite_notes(
    outputs: Mapping[str, OutputFigures] | Mapping[str, ColumnState], of: str = "the output"
) -> list[str]:
    """A sentence for each float output with values that are not finite."""
    return [
        f"{name!r} is NaN or infinite in {counted(found.nonfinite, 'value')} of {counted(found.rows, 'row')} of {of}; "
        f"a check {{column: {name}, finite: true}} refuses that"
        for name, found in outputs.items()
        if found.nonfinite
    ]


@dataclass(slots=True, eq=False)
class Metrics(Kept):
    """All states of a job's rows. columns: a state per checked column. outputs: one per float output, checked or not.
    profile: of the columns that the job profiles. slices: of a job with a label.
    """

    VERSION: ClassVar[int] = 4
    CALLED: ClassVar[str] = "a metrics state"

    columns: dict[str, ColumnState] = field(default_factory=dict)
    outputs: dict[str, ColumnState] = field(default_factory=dict)
    profile: Profile | None = None
    slices: Slices | None = None

    @classmethod
    def for_job(cls, job: Job, profiled: Sequence[str] = ()) -> Metrics:
        """No rows. profiled: the columns that are described.

        Raises:
            JobError: the job has a label, but no output to compare it with.
        """
        return cls(
            columns={name: ColumnState() for name in job.checked_columns},
            outputs={name: ColumnState() for name, type_ in job.output_types().items() if holds_floats(type_)},
            profile=Profile.empty(profiled) if profiled else None,
            slices=Slices.for_job(job) if job.label else None,
        )

    def update(self, table: pa.Table, label: pa.ChunkedArray | pa.Array | None) -> None:
        """Count kept rows, but for the profile: `table` has their outputs and carried columns, `label` their labels.

        Raises:
            LabelInvalid: a label is of no value that the job's label may have.
        """
        for name, state in (*self.columns.items(), *self.outputs.items()):
            state.update(table[name])
        if self.slices is not None:
            assert label is not None
            self.slices.update(table, label)

    @property
    def evaluation(self) -> Evaluator | None:
        """The labels of all rows against their outputs; None without labels."""
        return self.slices.whole if self.slices else None

    def footer(self) -> bytes:
        """What lies in a part's footer: ASCII, because some Parquet readers refuse one whose values are not UTF-8."""
        return base64.b64encode(replace(self, profile=None, slices=None).to_bytes())

    def beside(self) -> dict[str, bytes]:
        """What lies beside a part, by kind."""
        return {kind: state.to_bytes() for kind in BESIDE if (state := getattr(self, kind)) is not None}

    @classmethod
    def of_part(cls, footer: bytes, beside: Mapping[str, bytes]) -> Metrics:
        """The inverse of `footer` and `beside`.

        Raises:
            ValueError: not states that this version wrote.
        """
        found: dict[str, Any] = {kind: BESIDE[kind].from_bytes(raw) for kind, raw in beside.items()}
        return replace(cls.from_bytes(base64.b64decode(footer)), **found)

    def results(self) -> Figures:
        """What is told of them."""
        return Figures(
            columns={name: state.results() for name, state in self.columns.items()},
            outputs={name: OutputFigures(state.rows, state.nonfinite) for name, state in self.outputs.items()},
            evaluation=self.evaluation.results() if self.evaluation else None,
            profile=self.profile.results() if self.profile else {},
            slices=self.slices.results() if self.slices else {},
        )
