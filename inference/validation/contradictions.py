"""What a job's keys and its columns' types rule out, whatever the values: a gate that could only fail, a label that
nothing can be compared with. Found before anything is read or started.
"""

from __future__ import annotations

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import ColumnCheck, Job
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.metrics.states import Metrics

_ASKS = {"min": "compares numbers", "max": "compares numbers", "finite": "asks for numbers"}
_ANSWERED_BY = {
    "min": {"", "number"},
    "max": {"", "number"},
    "finite": {"", "number", "list", "date", "time", "timestamp", "timestamp_utc", "duration"},
}
"""Kinds of columns (`ColumnState.kind`) that a gate can judge; it refuses the others. "" is a column of nulls."""


def check_label_and_gates(job: Job, schema: pa.Schema) -> None:
    """Whether the label has a score to be compared with, and each check a column whose values it can judge.

    schema: the input's columns, each one that the job names among them.

    Raises:
        JobError: names the key, the column and its type.
    """
    Metrics.for_job(job)
    outputs = job.model.output_types()
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
    """What the gates will take a column of this type for."""
    state = ColumnState()
    state.update(pa.chunked_array([], type_))
    return state.kind
