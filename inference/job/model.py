"""The `Job` model: everything that a user can write, validated. `file` reads one from YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, Self, TypeVar

import pyarrow as pa
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from nightjar.inference.arrow_types import holds_floats, not_told_apart
from nightjar.inference.job.checks import AnswersCheck, Approval, CallCheck, Check, DriftCheck, MetricCheck
from nightjar.inference.job.deployment import Notify, Schedule
from nightjar.inference.job.input import Input
from nightjar.inference.job.label_sections import Accumulators, Evaluating, LateLabels
from nightjar.inference.job.locations import fill, is_dated
from nightjar.inference.job.model_sections import Model, NamedModel, Preprocess
from nightjar.inference.job.resources import Cost, Resources
from nightjar.inference.job.seams import FRAMEWORKS, OWN
from nightjar.inference.job.sections import (
    LINEAGE,
    IdentityRules,
    Names,
    Output,
    Profiling,
    Rescoring,
    Retry,
    Section,
    form,
    listed_twice,
)
from nightjar.inference.job.times import Days, Instants, times_of
from nightjar.inference.messages import listed, nearest

C = TypeVar("C")

MOST_MODELS = 16
"""The most models of a job: a receipt says of each which micro-batches its memory allows."""

ALL = "*"
"""The pattern that every column matches; `carry: all` in a job file is `carry: ["*"]`."""


def is_pattern(entry: str) -> bool:
    """Whether an entry of `carry` that is no column's name is a pattern."""
    return any(letter in entry for letter in "*?[")


class Job(Section):
    """One job file. Its locations are absolute; `{date}` stays in them until `at` fills it in.

    only: the file's `model`, if it has no `models`. models: those of the file, or `only` without a name; `ModelJob` is
    the job for one of them. carry: names and patterns of columns, as the file has them; `carried` says which columns
    these are. label: the column of the input with the label. evaluation: how the label is compared; checks on slices
    add their columns. late_labels: how labels that come later find their rows. accumulators: classes of the user's own
    that give figures of the rows, by name. profile: the columns whose values are described; checks on drift add theirs.
    reuse: `shards`: a night takes over an earlier night's results of shards whose input did not change; `rows`: outputs
    of rows that did not change, too. cost: prices of machines. judged: whether the checks are judged; else only what
    every run needs. templates: input, labels, output and models as patterns with open dates.
    """

    name: str = Field(max_length=100)
    input: Input
    only: Model | None = Field(default=None, alias="model")
    models: tuple[NamedModel, ...] = Field(default=(), max_length=MOST_MODELS, validate_default=True)
    preprocess: Preprocess | None = None
    carry: Annotated[
        Names,
        BeforeValidator(
            lambda value: (ALL,) if value == "all" else value, json_schema_input_type=Literal["all"] | tuple[str, ...]
        ),
    ] = ()
    label: str | None = None
    evaluation: Evaluating = Evaluating()
    late_labels: LateLabels | None = None
    accumulators: Accumulators = Field(default={})
    output: Output
    resources: Resources = Resources()
    retry: Retry = Retry()
    checks: tuple[Check, ...] = ()
    approval: Approval = Approval()
    profile: Annotated[Profiling, form("all, outputs or a list of columns", Profiling)] = Profiling()
    rescore: Rescoring = Rescoring()
    reuse: Literal["shards", "rows"] | None = None
    identity: Annotated[IdentityRules, form("strict, or {strict: true, packages: [numpy]}", IdentityRules)] = (
        IdentityRules()
    )
    schedule: Schedule | None = None
    notify: Notify | None = None
    cost: Cost | None = None
    judged: bool = Field(default=True, exclude=True)
    folder: str = Field(default="", exclude=True)
    templates: tuple[str, ...] = Field(default=(), exclude=True)

    @field_validator("name")
    @classmethod
    def _slug(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", value):
            raise ValueError(f"{value!r} must be lower case letters, digits and dashes: it names the artifacts")
        return value

    @field_validator("models", mode="before")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if value == []:
            raise ValueError("must not be empty")
        return value

    @field_validator("models")
    @classmethod
    def _short(cls, value: tuple[NamedModel, ...], info: ValidationInfo) -> tuple[NamedModel, ...]:
        only: Model | None = info.data.get("only")
        if only is None:
            return value
        if value:
            raise ValueError("model is there, too; write one of the two")
        return (NamedModel.model_construct(**dict(only), name=""),)

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        if not self.models:
            raise ValueError("model: is required, or models for several")
        if twice := listed_twice([model.name for model in self.models]):
            raise ValueError(f"models: two are named {twice!r}")
        return self

    @model_validator(mode="after")
    def _reuse_fits(self) -> Self:
        if self.reuse and is_dated(self.output.uri):
            raise ValueError(
                "reuse: takes over results of an earlier night, but output.uri has a {date}, so each night is in a "
                "place of its own; take the {date} out of it"
            )
        for key, model in self.models_by_key().items():
            if self.reuse == "rows" and model.rows == "dependent":
                raise ValueError(
                    f"reuse: rows takes outputs row by row, but {key}.rows is dependent: an output depends on other "
                    "rows, too; write `reuse: shards`"
                )
        return self

    @model_validator(mode="after")
    def _columns_fit(self) -> Self:
        # `refusals` looks again when the columns of the input are known.
        self.check_columns(self.carry, patterns=self.carry)
        return self

    def check_columns(self, carried: Sequence[str], patterns: Sequence[str] = ()) -> None:
        """Check that no two columns of the output have one name, where many readers ignore case, and that the columns
        of the output that keys name are there. patterns: of columns that may be carried, too.

        Raises:
            ValueError: They are not. Names the key.
        """
        found = [("output", name, "a lineage column") for name in LINEAGE]
        for key, model in self.models_by_key().items():
            found += [(f"{key}.outputs", f"{model.prefix}{output}", f"an output of {key}") for output in model.outputs]
        found += [("carry", name, "a carried column") for name in carried]
        seen: dict[str, tuple[str, str]] = {}
        for key, name, what in found:
            other, whose = seen.setdefault(name.casefold(), (name, what))
            if (other, whose) != (name, what):
                why = f"{name!r} is also {whose}" if other == name else not_told_apart(name, other)
                raise ValueError(f"{key}: {why}; rename one of the two, or leave it out")
        written = {*carried, *self.output_types()}
        for key, column in self._written_columns():
            if column not in written and not any(fnmatchcase(column, pattern) for pattern in patterns):
                raise ValueError(
                    f"{key}: {column!r} is neither an output nor a carried column{nearest(column, written)}"
                )

    @model_validator(mode="after")
    def _framework_has_its_model(self) -> Self:
        for key, model in self.models_by_key().items():
            if model.framework.model and model.path is None:
                raise ValueError(f"{key}.path: the {model.uses} adapter needs the path of {model.framework.model}")
            if model.path is not None and not model.framework.model and model.framework is not OWN:
                raise ValueError(f"{key}.path: the {model.uses} adapter has no file; remove the key")
        return self

    def _written_columns(self) -> Iterator[tuple[str, str]]:
        """The columns of the parts that a key other than `carry` names, each with that key."""
        for index, check in enumerate(self.checks):
            yield from ((f"checks[{index}].{key}", column) for key, column in check.written_columns())
        yield from (("evaluation.slices", column) for column in self.evaluation.slices)
        yield from (("evaluation.group", column) for column in filter(None, [self.evaluation.group]))
        key = self.late_labels.key if self.late_labels else ()
        yield from (("late_labels.key", name) for name in key if name not in LINEAGE)

    @model_validator(mode="after")
    def _checked_answers_are_given(self) -> Self:
        keys = list(self.checks_of(AnswersCheck))
        if keys and not self.streams:
            asked = [uses for uses, framework in FRAMEWORKS.items() if framework.streams]
            raise ValueError(f"{keys[0]}.answers: is for language models (model.uses: {listed(asked, 'or')})")
        return self

    @model_validator(mode="after")
    def _metrics_have_a_label(self) -> Self:
        labelled = self.label is not None or self.late_labels is not None
        for key, check in self.checks_of(MetricCheck).items():
            check.check_given(key, labelled, self.evaluation.task, self.accumulators)
        prediction, outputs = self.evaluation.prediction, self.output_types()
        if prediction is not None and prediction not in outputs:
            raise ValueError(
                f"evaluation.prediction: {prediction!r} is no output of the model{nearest(prediction, outputs)}"
            )
        if self.evaluation.model_fields_set and not labelled:
            raise ValueError("evaluation: compares outputs with labels; write `label: <column>`, or drop evaluation")
        return self

    @property
    def several(self) -> bool:
        """Whether the file has `models`: then the columns of the outputs begin with the models' names."""
        return any(model.name for model in self.models)

    def models_by_key(self) -> dict[str, NamedModel]:
        """Each model by its key in the job file, for messages about the file: `model`, or `models[0]` and so on."""
        return {f"models[{index}]" if model.name else "model": model for index, model in enumerate(self.models)}

    def model_named(self, name: str) -> NamedModel:
        """The model of this name; '' for the only one of a job that has `model`."""
        return next(model for model in self.models if model.name == name)

    @property
    def stage(self) -> Preprocess | None:
        """The CPU stage, which the section `preprocess` sizes; None if the job has none."""
        return self.preprocess if self.preprocess and self.preprocess.placement == "staged" else None

    @property
    def streams(self) -> bool:
        """Whether any of its models is asked for one row at a time."""
        return any(model.framework.streams for model in self.models)

    @property
    def loaded_by(self) -> str:
        """The key that names what is loaded, for messages."""
        return "models" if self.several else self.models[0].loaded_by

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the models are, of those that have a path."""
        return tuple(model.path for model in self.models if model.path)

    @property
    def code(self) -> tuple[str, ...]:
        """The patterns of all models for further files of the job's folder that score."""
        return tuple(dict.fromkeys(pattern for model in self.models for pattern in model.code))

    def output_types(self) -> dict[str, pa.DataType]:
        """The outputs of all models as Arrow types, by the names of their columns, in order."""
        return {f"{model.prefix}{name}": kind for model in self.models for name, kind in model.output_types().items()}

    def with_paths(self, place: Callable[[str], str]) -> Job:
        """The same job with each model's path changed by `place`."""
        return self.with_models(
            lambda model: model.model_copy(update={"path": place(model.path) if model.path else None})
        )

    def with_models(self, change: Callable[[NamedModel], NamedModel]) -> Job:
        """The same job with each model changed."""
        return self.model_copy(update={"models": tuple(map(change, self.models))})

    def carried(self, names: Sequence[str]) -> tuple[str, ...]:
        """The columns that are copied to the output, each once. names: all columns of the input, in order.

        An entry of `carry` that is no column's name is a pattern for the columns that match it.
        """
        found: dict[str, None] = {}
        for entry in self.carry:
            literal = entry in names or not is_pattern(entry)
            found |= dict.fromkeys([entry] if literal else [name for name in names if fnmatchcase(name, entry)])
        return tuple(found)

    @property
    def measured_columns(self) -> tuple[str, ...]:
        """The columns that have figures, each once: those of which checks judge figures, and all outputs of floats."""
        checked = chain.from_iterable(check.measured_columns() for check in self.checks)
        floats = (name for name, kind in self.output_types().items() if holds_floats(kind))
        return tuple(dict.fromkeys([*checked, *floats]))

    @property
    def slicing(self) -> tuple[str, ...]:
        """The columns by whose values rows are divided to compare labels, each once."""
        asked = chain.from_iterable(check.slices for check in self.checks if isinstance(check, MetricCheck))
        return tuple(dict.fromkeys([*self.evaluation.slices, *asked]))

    @property
    def profiling(self) -> tuple[str, ...]:
        """The columns to profile as the job file names them, with `all` or `outputs`; empty if there are none."""
        drifts = [check for check in self.checks if isinstance(check, DriftCheck)]
        named = {name for check in drifts for name in check.columns}
        columns = self.profile.columns
        whole = (columns,) if isinstance(columns, str) else columns
        if not whole and any(not check.columns for check in drifts):
            whole = ("all",)
        return (*whole, *sorted(named - set(whole)))

    def describing(self, share: float) -> Job:
        """This job, which describes this share of the rows unless it names a share itself."""
        if self.profile.share is not None:
            return self
        return self.model_copy(update={"profile": self.profile.model_copy(update={"share": share})})

    @property
    def states_beside(self) -> bool:
        """Whether metric states lie in a file beside each data part: those of a profile or of labels are large."""
        return bool(self.profiling or self.label)

    @property
    def times(self) -> Days | Instants:
        """The logical times of its runs: those of the schedule; without one every day, in UTC."""
        return times_of(self.schedule.cron, self.schedule.timezone) if self.schedule else Days()

    def at(self, date: str) -> Job:
        """This job for one logical time: `{date}` and `{date:%Y/%m/%d}` filled in."""
        filled = partial(fill, date=date)
        placed = {"input": self.input.at(filled), "output": self.output.at(filled)}
        return self.with_paths(filled).model_copy(update=placed)

    def checks_of(self, kind: type[C]) -> dict[str, C]:
        """The checks of one kind, by key: `checks[2]`."""
        return {f"checks[{at}]": check for at, check in enumerate(self.checks) if isinstance(check, kind)}

    def calls(self) -> dict[str, str]:
        """The user's functions that judge the night, "module:name" by key: `checks[2].call`. None of them scores."""
        return {f"{key}.call": check.call for key, check in self.checks_of(CallCheck).items() if self.judged}

    def beside(self) -> dict[str, str]:
        """All objects of the user's own that do not score, by key: those of `calls`, and the classes that give figures
        of the rows, as `accumulators.lift`.
        """
        return {**self.calls(), **{f"accumulators.{name}": spec for name, spec in self.accumulators.items()}}
