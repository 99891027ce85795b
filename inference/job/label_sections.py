"""What is computed from labels and rows besides the outputs: `evaluation`, `late_labels` and `accumulators`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from nightjar.inference.job.input import Input
from nightjar.inference.job.sections import SPEC, Section, form, once, one_or_more

MOST_RANKS = 100
"""The greatest `k`: the state of a group grows with it."""

Task = Literal["binary", "regression", "multiclass", "ranking"]
"""What a label is: 0 or 1, a number, one of several classes, or how relevant a row is among those of its group."""

AT_THRESHOLD = ("accuracy", "precision", "recall", "f1")
"""The binary metrics of predictions, for which a threshold turns scores into 0 and 1."""

METRICS: Mapping[str, tuple[str, ...]] = {
    "binary": ("auroc", "average_precision", "log_loss", "brier", "ece", *AT_THRESHOLD),
    "regression": ("rmse", "mae", "bias", "r2"),
    "multiclass": (
        "accuracy",
        *(f"{average}_{kind}" for average in ("macro", "weighted") for kind in ("precision", "recall", "f1")),
    ),
    "ranking": ("ndcg", "mrr", "map", "precision"),
}
"""Task → the metrics that a check may name, the one that people ask for first. Its evaluator answers each."""


Column = Annotated[str, Field(min_length=1)]
"""The name of a column."""

Slices = Annotated[tuple[Column, ...], form("a list of columns"), AfterValidator(once)]
"""The columns by whose values rows are divided."""


class Evaluating(Section):
    """How the label is compared with the outputs. prediction: the output that it is compared with; by default the first
    one that fits the task. slices: carried columns or outputs with few values; each value's rows are compared by
    themselves, too. group, k: for the task ranking: the carried column or output whose equal values are the rows that
    are ranked together, and how many of them, from the top, are looked at.
    """

    task: Task = "binary"
    prediction: str | None = None
    slices: Slices = ()
    group: str | None = Field(default=None, min_length=1)
    k: int = Field(default=10, ge=1, le=MOST_RANKS)

    @model_validator(mode="after")
    def _ranks_groups(self) -> Evaluating:
        if self.task == "ranking" and self.group is None:
            raise ValueError("group: task: ranking ranks the rows of a group; name its column, as group: query_id")
        for key in ("group", "k"):
            if key in self.model_fields_set and self.task != "ranking":
                raise ValueError(f"{key}: is for task: ranking, and this job's is {self.task}")
        return self


Key = Annotated[
    tuple[Column, ...],
    Field(min_length=1),
    form("a column or a list of columns"),
    one_or_more(Column),
    AfterValidator(once),
]
"""The columns of a key: one, or a list of different ones."""


class LateLabels(Section):
    """Labels that come after the night, for `nightjar evaluate`.

    key: the columns, one or several, that a label and its row have in common. label: the column with the label. input:
    where the labels are, written as an input; None if each command names them.
    """

    key: Key
    label: str = Field(min_length=1)
    input: Input | None = None

    @field_validator("input")
    @classmethod
    def _there_already(cls, value: Input | None) -> Input | None:
        if value is not None and value.wait is not None:
            raise ValueError("wait: nothing waits for labels; repeat `nightjar evaluate` when more have come")
        return value


_NAME = r"[A-Za-z][A-Za-z0-9_]{0,39}"

FIGURE = r"[\w@%+-][\w@%+.-]{0,63}"
"""The form of a figure's name, by which a check asks for it after the accumulator's: `lift.at_top_decile`."""

OWN_METRIC = rf"^{_NAME}\.{FIGURE}$"
"""The form of a figure of an accumulator, as a check names it."""


def _named(value: dict[str, str]) -> dict[str, str]:
    for name, spec in value.items():
        if not re.fullmatch(_NAME, name):
            raise ValueError(
                f"{name!r} must be letters, digits and underscores, 40 at most, and begin with a letter: checks name it"
            )
        if not re.fullmatch(SPEC, spec):
            raise ValueError(f'{name} must be "module:Name" of a class, not {spec!r}')
    return value


Accumulators = Annotated[dict[str, str], AfterValidator(_named)]
"""Name → "module:Name" of the class."""


def accumulator_of(metric: str) -> str:
    """The accumulator that a check names in `metric`; '' for a metric of the labels."""
    name, dot, _ = metric.partition(".")
    return name if dot else ""
