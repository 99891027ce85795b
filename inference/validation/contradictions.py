"""Finds contradictions between a job's keys and its columns' types, before anything is read or started.

These are gates that could only fail, and labels without a score to compare them with.
"""

from __future__ import annotations

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.checks import ColumnCheck
from nightjar.inference.job.model import Job
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.metrics.slices import can_slice
from nightjar.inference.metrics.states import Metrics

_ASKS = {"min": "compares numbers", "max": "compares numbers", "finite": "asks for numbers"}
_ANSWERED_BY = {
    "min": {"", "number"},
    "max": {"", "number"},
    "finite": {"", "number", "list", "date", "time", "timestamp", "timestamp_utc", "duration"},
}
"""The kinds of columns (`ColumnState.kind`) that a gate can judge; it refuses others. "" is a column of nulls."""


def check_label_and_gates(job: Job, schema: pa.Schema) -> None:
    """Check that the label has a score to compare it with, that rows can be divided by the columns that the job names,
    and that each check can judge its column's values.

    schema: the input's columns, with every column that the job names.

    Raises:
        JobError: One of them does not. Names the key, the column and its type.
    """
    Metrics.for_job(job)
    if job.late_labels is not None:
        Metrics.for_job(job.model_copy(update={"label": job.late_labels.label}))
    outputs = job.output_types()
    for name in job.slicing:
        if not can_slice(type_ := outputs[name] if name in outputs else schema.field(name).type):
            raise JobError(f"evaluation.slices: {name!r} is {type_}; name columns of text, integers, bools or dates")
    for index, check in enumerate(job.checks):
        if not isinstance(check, ColumnCheck):
            continue
        kind = outputs[check.column] if check.column in outputs else schema.field(check.column).type
        for asked, judged in _ANSWERED_BY.items():
            limit = getattr(check, asked)
            if limit is None or limit is False or _kind(kind) in judged:
                continue
            raise JobError(
                f"checks[{index}].{asked}: {_ASKS[asked]}, but {check.column!r} is {kind}; remove it, or check another "
                "column"
            )


def _kind(type_: pa.DataType) -> str:
    """The kind that the gates will see for a column of this type."""
    state = ColumnState()
    state.update(pa.chunked_array([], type_))
    return state.kind
