"""Finds contradictions between a job's keys and its columns' types, before anything is read or started.

These are gates that could only fail, and labels without a score to compare them with.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.checks import ColumnCheck, DriftCheck
from nightjar.inference.job.model import Job
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.metrics.evaluators import evaluator_of
from nightjar.inference.metrics.profile import ColumnProfile
from nightjar.inference.metrics.slices import check_slices

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
    outputs = job.output_types()
    types = {**dict(zip(schema.names, schema.types, strict=True)), **outputs}
    labels = {"label": job.label, "late_labels.label": job.late_labels.label if job.late_labels else None}
    for key, label in labels.items():
        if (evaluator := evaluator_of(job.model_copy(update={"label": label}), key)) is not None:
            evaluator.check_columns(types)
    check_slices(job, types)
    for index, check in enumerate(job.checks):
        if isinstance(check, DriftCheck):
            _check_drift(check, f"checks[{index}]", types)
        if not isinstance(check, ColumnCheck):
            continue
        kind = types[check.column]
        for asked, judged in _ANSWERED_BY.items():
            limit = getattr(check, asked)
            if limit is None or limit is False or ColumnState.of(pa.chunked_array([], kind)).kind in judged:
                continue
            raise JobError(
                f"checks[{index}].{asked}: {_ASKS[asked]}, but {check.column!r} is {kind}; remove it, or check another "
                "column"
            )


def _check_drift(check: DriftCheck, key: str, types: Mapping[str, pa.DataType]) -> None:
    """Check that each column that a check on drift names has the figures that it limits. `all` leaves out others."""
    for name in check.columns if "psi" in check.limits else ():
        profile = ColumnProfile()
        profile.update(pa.chunked_array([], types[name]))
        if profile.kind == "other":
            raise JobError(
                f"{key}.drift: compares numbers, text and bools, but {name!r} is {types[name]}; limit only nulls, as "
                "nulls: 0.1, or check another column"
            )
