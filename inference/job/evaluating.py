"""How the labels of a job are compared with its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from nightjar.inference.job.sections import Section, as_tuple, once

MOST_SLICED = 8
"""The most columns by whose values the rows are divided: each has states of its own for every shard."""

MOST_RANKS = 100
"""The greatest `k`: the state of a group grows with it."""

Task = Literal["binary", "regression", "multiclass", "ranking"]
"""What a label is: 0 or 1, a number, one of several classes, or how relevant a row is among those of its group."""

METRICS: Mapping[str, tuple[str, ...]] = {
    "binary": ("auroc", "average_precision", "log_loss", "brier", "ece", "accuracy", "precision", "recall", "f1"),
    "regression": ("rmse", "mae", "bias", "r2"),
    "multiclass": (
        "accuracy",
        *(f"{average}_{kind}" for average in ("macro", "weighted") for kind in ("precision", "recall", "f1")),
    ),
    "ranking": ("ndcg", "mrr", "map", "precision"),
}
"""Task → the metrics that a check may name, the one that people ask for first. Its evaluator answers each."""

BESIDE = ("ranking",)
"""The tasks whose states lie beside the parts, because they are too large for the footers that every reader reads."""


def as_columns(value: Any) -> Any:
    """Check a list of columns, each named once."""
    value = as_tuple(value)
    if not isinstance(value, tuple) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"must be a list of columns, not {value!r}")
    return once(value)


class Evaluating(Section):
    """How the label is compared with the outputs. prediction: the output that it is compared with; by default the first
    one that fits the task. slices: carried columns or outputs with few values; each value's rows are compared by
    themselves, too. group, k: for the task ranking: the carried column or output whose equal values are the rows that
    are ranked together, and how many of them, from the top, are looked at.
    """

    task: Task = "binary"
    prediction: str | None = None
    slices: tuple[str, ...] = Field(default=(), max_length=MOST_SLICED)
    group: str | None = Field(default=None, min_length=1)
    k: int = Field(default=10, ge=1, le=MOST_RANKS)

    _columns = field_validator("slices", mode="before")(as_columns)

    @model_validator(mode="after")
    def _ranks_groups(self) -> Evaluating:
        if self.task == "ranking" and self.group is None:
            raise ValueError("group: task: ranking ranks the rows of a group; name its column, as group: query_id")
        for key in ("group", "k"):
            if key in self.model_fields_set and self.task != "ranking":
                raise ValueError(f"{key}: is for task: ranking, and this job's is {self.task}")
        return self
