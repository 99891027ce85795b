"""How the labels of a job are compared with its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from nightjar.inference.job.sections import Section, as_tuple

MOST_SLICED = 8
"""The most columns by whose values the rows are divided: each has states of its own for every shard."""

Task = Literal["binary", "regression", "multiclass"]
"""What a label is: 0 or 1, a number, or one of several classes."""

METRICS: Mapping[str, tuple[str, ...]] = {
    "binary": ("auroc", "average_precision", "log_loss", "brier", "ece", "accuracy", "precision", "recall", "f1"),
    "regression": ("rmse", "mae", "bias", "r2"),
    "multiclass": (
        "accuracy",
        *(f"{average}_{kind}" for average in ("macro", "weighted", "micro") for kind in ("precision", "recall", "f1")),
    ),
}
"""Task → the metrics that a check may name."""


def as_columns(value: Any) -> Any:
    """Check a list of columns, each named once."""
    value = as_tuple(value)
    if not isinstance(value, tuple) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"must be a list of columns, not {value!r}")
    if len(set(value)) != len(value):
        raise ValueError("a column is listed twice")
    return value


class Evaluating(Section):
    """How the label is compared with the outputs. prediction: the output that it is compared with; by default the first
    one that fits the task. slices: carried columns or outputs with few values; each value's rows
    are compared by themselves, too.
    """

    task: Task = "binary"
    prediction: str | None = None
    slices: tuple[str, ...] = Field(default=(), max_length=MOST_SLICED)

    _columns = field_validator("slices", mode="before")(as_columns)
