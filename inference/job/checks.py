"""The checks of a job file: gates that a team sets on its own columns, rows, files and answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nightjar.inference.job.label_sections import (
    AT_THRESHOLD,
    METRICS,
    OWN_METRIC,
    Column,
    Key,
    Slices,
    Task,
    accumulator_of,
)
from nightjar.inference.job.sections import SPEC, Section, form
from nightjar.inference.messages import listed, nearest


def _as_written(value: Any, as_float: Callable[[Any], float]) -> float:
    return value if type(value) is int else as_float(value)


Bound = Annotated[float, WrapValidator(_as_written), PlainSerializer(lambda value: value)]
"""A number. A whole number stays one, because a float of more than 2^53 may be another number than the user wrote."""

OnFail = Literal["block", "warn", "ask"]
"""What a gate that does not pass does: nothing is published; or it is, with a warning; or a person is asked first."""


class Asked(Section):
    """A check: what a team asks of a night, and what happens where it does not hold."""

    on_fail: OnFail = "block"

    def written_columns(self) -> list[tuple[str, str]]:
        """The columns of the parts that the check names, each with the check's key that names it."""
        return []

    def measured_columns(self) -> list[str]:
        """The columns of which the check judges figures that each part has. They are part of what scores a shard."""
        return []


class Approval(Section):
    """How long a person has who is asked. deadline_h: hours, after which no answer counts as a no."""

    deadline_h: float = Field(default=24, gt=0, le=87_600)


class ColumnCheck(Asked):
    """Gates on one output or carried column. nulls: the largest share of nulls and NaN that is allowed."""

    column: str
    min: Bound | None = None
    max: Bound | None = None
    nulls: float | None = Field(default=None, ge=0, le=1)
    finite: bool | None = None

    @model_validator(mode="after")
    def _asks(self) -> ColumnCheck:
        if self.min is None and self.max is None and self.nulls is None and not self.finite:
            raise ValueError("asks nothing: give at least one of min, max, nulls, finite: true")
        _check_order(self.min, self.max)
        return self

    def written_columns(self) -> list[tuple[str, str]]:
        return [("column", self.column)]

    def measured_columns(self) -> list[str]:
        return [self.column]


def _check_order(low: float | None, high: float | None) -> None:
    if low is not None and high is not None and low > high:
        raise ValueError(f"min {low} is more than max {high}")


class Limits(Section):
    """The least and the most rows or files of the input."""

    min: int | None = Field(default=None, ge=0)
    max: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ValueError(f"asks nothing: give at least one of {', '.join(type(self).model_fields)}")
        _check_order(self.min, self.max)
        return self


class RowLimits(Limits):
    """Limits for rows. change: the share by which they may differ from the rows of the night that `against` names."""

    against: Literal["last"] | None = None
    change: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _compares(self) -> RowLimits:
        if (self.against is None) != (self.change is None):
            raise ValueError("against and change belong together: write {against: last, change: 0.3}")
        return self


class RowsCheck(Asked):
    """Gates on the rows of the input."""

    rows: RowLimits


class FilesCheck(Asked):
    """Gates on the files of the input."""

    files: Limits


METRIC_NAMES = tuple(dict.fromkeys(name for names in METRICS.values() for name in names))


def _known_metric(value: str) -> str:
    if value not in METRIC_NAMES and not re.fullmatch(OWN_METRIC, value):
        raise ValueError(
            f"must be {listed(METRIC_NAMES, 'or')}; or a figure of an accumulator, as lift.top_decile; not {value!r}"
            f"{nearest(value, METRIC_NAMES)}"
        )
    return value


Metric = Annotated[
    str,
    AfterValidator(_known_metric),
    WithJsonSchema({"anyOf": [{"enum": list(METRIC_NAMES)}, {"pattern": OWN_METRIC}], "type": "string"}),
]
"""A metric of the labels, or a figure of an accumulator."""


class AnswerLimits(Section):
    """Limits for the answers of language models. cut: the largest share that may end at the most tokens allowed."""

    cut: float = Field(ge=0, le=1)


class AnswersCheck(Asked):
    """Gates on the answers of language models."""

    answers: AnswerLimits


class MetricCheck(Asked):
    """A gate on a metric of the labels against the scores, or on a figure of an accumulator. threshold: from which
    score on a row counts as predicted 1, for the metrics that need one; it is rounded to a multiple of 1/4096. slices:
    columns, of each of whose values the metric is judged, in place of all rows; min_rows: the fewest compared rows of a
    value that is judged.
    """

    metric: Metric
    min: Bound | None = None
    max: Bound | None = None
    threshold: float = Field(default=0.5, gt=0, lt=1)
    slices: Slices = ()
    min_rows: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _asks(self) -> MetricCheck:
        if self.min is None and self.max is None:
            raise ValueError("asks nothing: give min or max")
        _check_order(self.min, self.max)
        if "threshold" in self.model_fields_set and self.metric not in AT_THRESHOLD:
            raise ValueError(f"threshold: {self.metric} needs none; it is for {listed(AT_THRESHOLD, 'and')}")
        if "min_rows" in self.model_fields_set and not self.slices:
            raise ValueError("min_rows: is for slices; name them, as in slices: [country]")
        return self

    def written_columns(self) -> list[tuple[str, str]]:
        return [("slices", column) for column in self.slices]

    def check_given(self, key: str, labelled: bool, task: Task, accumulators: Mapping[str, str]) -> None:
        """Check that the job gives the metric. key: of this check. labelled: whether the job has labels, of this task.

        Raises:
            ValueError: The job has no labels, another task, or no such accumulator; or the check asks of an accumulator
                what is of labels alone.
        """
        name = accumulator_of(self.metric)
        if name and name not in accumulators:
            known = nearest(name, accumulators) or f"; it has {', '.join(accumulators) or 'none'}"
            raise ValueError(f"{key}.metric: {self.metric} is of no accumulator that the job names{known}")
        if name:
            for other in ("slices", "threshold"):
                if other in self.model_fields_set:
                    raise ValueError(
                        f"{key}.{other}: is for metrics of the labels, and {self.metric} is of an accumulator"
                    )
            return
        if not labelled:
            raise ValueError(
                f"{key}.metric: {self.metric} compares scores with labels; write `label: <column>`, or `late_labels` "
                "for labels that come later"
            )
        if self.metric not in METRICS[task]:
            other = listed([name for name, metrics in METRICS.items() if self.metric in metrics], "or")
            raise ValueError(
                f"{key}.metric: {self.metric} is of evaluation.task: {other}, and this job's is {task}, which has "
                f"{listed(METRICS[task], 'and')}"
            )
        if "threshold" in self.model_fields_set and task != "binary":
            raise ValueError(f"{key}.threshold: is for evaluation.task: binary, and this job's is {task}")


LAST = "last"
"""The published night before this one. The first night has none, and passes."""

BASELINE = "baseline"
"""The name of the run that `nightjar baseline` makes of a training set."""

RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""The names that a run can have."""


class DriftCheck(Asked):
    """A gate on how far columns are from those of another night. drift: a column or several, or `all` that are
    profiled. against: `last`, `baseline`, or the run id of a published night. psi: the largest population stability
    index that is allowed; nulls: the largest change of the share of rows without a value.
    """

    drift: Annotated[
        Column | Annotated[tuple[Column, ...], Field(min_length=1)], form("a column, a list of columns, or all")
    ]
    against: Annotated[str, Field(pattern=f"^{RUN_ID}$"), form("last, baseline, or the id of a run")] = LAST
    psi: float | None = Field(default=None, ge=0)
    nulls: float | None = Field(default=None, ge=0, le=1)

    @property
    def limits(self) -> dict[str, float]:
        """Figure → the largest allowed; without any, a population stability index of 0.2, commonly a large change."""
        asked = {"psi": self.psi, "nulls": self.nulls}
        return {name: limit for name, limit in asked.items() if limit is not None} or {"psi": 0.2}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names; none for `all`."""
        if self.drift == "all":
            return ()
        return (self.drift,) if isinstance(self.drift, str) else self.drift


class CallCheck(Asked):
    """A gate of the user's own. call: "module:name" of a function of the night's `NightEvidence` that decides."""

    call: Annotated[str, Field(pattern=f"^{SPEC}$"), form('"module:name" of a function')]


class UniqueCheck(Asked):
    """A gate on keys. unique: the outputs or carried columns, one or several, that no two rows have in common."""

    unique: Key

    def written_columns(self) -> list[tuple[str, str]]:
        return [("unique", column) for column in self.unique]


CHECKS: dict[str, type[Asked]] = {
    "column": ColumnCheck,
    "metric": MetricCheck,
    "drift": DriftCheck,
    "rows": RowsCheck,
    "files": FilesCheck,
    "answers": AnswersCheck,
    "call": CallCheck,
    "unique": UniqueCheck,
}
"""The key that tells the kind of a check → the model of such a check."""


def _as_check(value: Any) -> Asked:
    if isinstance(value, Asked):
        return value
    if not isinstance(value, dict):
        words = f"a check on one of {', '.join(CHECKS)}, as {{column: score, min: 0}} or {{rows: {{min: 1000}}}}"
        raise PydanticCustomError("form", "{words}", {"words": words})
    kinds = [kind for kind in CHECKS if kind in value]
    if not kinds:
        meant = next(filter(None, (nearest(str(key), CHECKS) for key in value)), "")
        raise ValueError(f"is on nothing: give one of {', '.join(CHECKS)}{meant}")
    if len(kinds) > 1:
        raise ValueError(f"is on {' and '.join(kinds)}; write a check for each")
    return CHECKS[kinds[0]].model_validate(value)


if TYPE_CHECKING:
    Check = Asked
else:
    _KINDS = Union[tuple(CHECKS.values())]  # noqa: UP007 (of a list)
    Check = Annotated[_KINDS, PlainValidator(_as_check, json_schema_input_type=_KINDS)]
