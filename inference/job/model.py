"""The `Job` model: everything that a user can write, validated. `file` reads one from YAML."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Self

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from nightjar.inference.arrow_types import not_told_apart
from nightjar.inference.errors import JobError
from nightjar.inference.job.checks import (
    AnswersCheck,
    Approval,
    CallCheck,
    Check,
    ColumnCheck,
    DriftCheck,
    MetricCheck,
)
from nightjar.inference.job.deployment import Notify, Schedule
from nightjar.inference.job.input import Input
from nightjar.inference.job.label_sections import (
    METRICS,
    MOST_SLICED,
    Accumulators,
    Evaluating,
    LateLabels,
    accumulator_of,
    check_own,
)
from nightjar.inference.job.locations import fill
from nightjar.inference.job.model_sections import Model, NamedModel, Preprocess
from nightjar.inference.job.resources import Cost, Resources
from nightjar.inference.job.seams import FRAMEWORKS, OWN
from nightjar.inference.job.sections import (
    LINEAGE,
    IdentityRules,
    Output,
    Profiling,
    Rescoring,
    Retry,
    Section,
    as_tuple,
    listed_twice,
    once,
    profiled_columns,
)
from nightjar.inference.messages import listed, nearest

_NONE: Any = None
"""In place of a model where `models` has several: whoever forgets that fails at once."""

MOST_MODELS = 16
"""The most models of a job: a receipt says of each which micro-batches its memory allows."""

ALL = "*"
"""The pattern that every column matches; `carry: all` in a job file is `carry: ["*"]`."""


def _with_all(value: Any) -> Any:
    return (ALL,) if value == "all" else as_tuple(value)


def _is_pattern(entry: str) -> bool:
    return any(letter in entry for letter in "*?[")


class Job(Section):
    """One job file. Its locations are absolute; `{date}` stays in them until `at` fills it in.

    model: the only model. models: several in its place; then `model` is None, and whoever works with one model gets a
    job from `each`. carry: names and patterns of columns, as the file has them; `carried` says which columns these are.
    label: the column of the input with the label. evaluation: how the label is compared; checks on slices add their
    columns. late_labels: how labels that come later find their rows.
    accumulators: classes of the user's own that give figures of the rows, by name.
    profile: the columns whose values are described; checks on drift add theirs.
    canary: the share of the rows that is scored and judged before the others. cost: prices of machines.
    judged: whether the checks are judged; else only what every run needs. places: the local folders that contain input
    and output of every date. templates: input and output as patterns with
    open dates.
    """

    name: str = Field(max_length=100)
    input: Input
    model: Model = Field(default=_NONE)
    models: tuple[NamedModel, ...] = Field(default=(), max_length=MOST_MODELS)
    preprocess: Preprocess | None = None
    carry: tuple[str, ...] = ()
    label: str | None = None
    evaluation: Evaluating = Evaluating()
    late_labels: LateLabels | None = None
    accumulators: Accumulators = Field(default={})
    output: Output
    resources: Resources = Resources()
    retry: Retry = Retry()
    checks: tuple[Check, ...] = ()
    approval: Approval = Approval()
    profile: Profiling = Profiling()
    canary: float = Field(default=0, ge=0, lt=1)
    rescore: Rescoring = Rescoring()
    identity: IdentityRules = IdentityRules()
    schedule: Schedule | None = None
    notify: Notify | None = None
    cost: Cost | None = None
    judged: bool = Field(default=True, exclude=True)
    folder: str = Field(default="", exclude=True)
    places: tuple[str, ...] = Field(default=(), exclude=True)
    templates: tuple[str, ...] = Field(default=("", ""), exclude=True)

    @field_validator("name")
    @classmethod
    def _slug(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", value):
            raise ValueError(f"{value!r} must be lower case letters, digits and dashes: it names the artifacts")
        return value

    _listed = field_validator("checks", mode="before")(as_tuple)

    @field_validator("profile", mode="before")
    @classmethod
    def _profiled(cls, value: Any) -> Any:
        return value if isinstance(value, dict | Profiling) else {"columns": profiled_columns(value)}

    @field_validator("models", mode="before")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if value in ([], ()):
            raise ValueError("must not be empty")
        return as_tuple(value)

    _all = field_validator("carry", mode="before")(_with_all)
    _once = field_validator("carry")(once)

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        if self.models and self.model is not None:
            raise ValueError("models: model is there, too; write one of the two")
        if not self.models and self.model is None:
            raise ValueError("model: is required, or models for several")
        if twice := listed_twice([model.name for model in self.models]):
            raise ValueError(f"models: two are named {twice!r}")
        return self

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> Self:
        self._check_distinct(self.carry)
        return self

    def _check_distinct(self, carried: Sequence[str]) -> None:
        """Check that no two columns of the output have one name. Many readers ignore case."""
        found = [("output.lineage", name, "a lineage column") for name in LINEAGE]
        for key, model in self.models_by_key().items():
            found += [(f"{key}.outputs", f"{model.prefix}{output}", f"an output of {key}") for output in model.outputs]
        found += [("carry", name, "a carried column") for name in carried]
        seen: dict[str, tuple[str, str]] = {}
        for key, name, what in found:
            other, whose = seen.setdefault(name.casefold(), (name, what))
            if (other, whose) != (name, what):
                why = f"{name!r} is also {whose}" if other == name else not_told_apart(name, other)
                raise ValueError(f"{key}: {why}; rename one of the two, or leave it out")

    @model_validator(mode="after")
    def _stages_have_actors(self) -> Self:
        staged = [key for key, model in self.models_by_key().items() if model.staged]
        if staged and len(staged) == len(self.models):
            raise ValueError(f"{staged[0]}.placement: no model is left for the actors")
        if self.preprocess and not (self.preprocess.uses or staged):
            raise ValueError("preprocess.uses: is required")
        return self

    @model_validator(mode="after")
    def _framework_has_its_model(self) -> Self:
        for key, model in self.models_by_key().items():
            if model.framework.model and model.path is None:
                raise ValueError(f"{key}.path: the {model.uses} adapter needs the path of {model.framework.model}")
            if model.path is not None and not model.framework.model and model.framework is not OWN:
                raise ValueError(f"{key}.path: the {model.uses} adapter has no file; remove the key")
        return self

    @model_validator(mode="after")
    def _checked_columns_are_written(self) -> Self:
        written = {*self.carry, *self.output_types()}
        for key, column in self._written_columns():
            if column in written or any(fnmatchcase(column, pattern) for pattern in self.carry):
                continue  # `check_carried` looks again when the columns of the input are known
            raise ValueError(f"{key}: {column!r} is neither an output nor a carried column{nearest(column, written)}")
        return self

    def _written_columns(self) -> Iterator[tuple[str, str]]:
        """The columns of the parts that a key other than `carry` names, each with that key."""
        for index, check in enumerate(self.checks):
            yield from ((f"checks[{index}].{key}", column) for key, column in check.written_columns())
        yield from (("evaluation.slices", column) for column in self.evaluation.slices)
        yield from (("evaluation.group", column) for column in filter(None, [self.evaluation.group]))
        own, late = LINEAGE if self.output.lineage else (), self.late_labels
        yield from (("late_labels.key", name) for name in (late.key if late else ()) if name not in own)

    @model_validator(mode="after")
    def _checked_answers_are_given(self) -> Self:
        keys = [f"checks[{index}]" for index, check in enumerate(self.checks) if isinstance(check, AnswersCheck)]
        if keys and not self.streams:
            asked = [uses for uses, framework in FRAMEWORKS.items() if framework.streams]
            raise ValueError(f"{keys[0]}.answers: is for language models (model.uses: {listed(asked, 'or')})")
        return self

    @model_validator(mode="after")
    def _metrics_have_a_label(self) -> Self:
        task, prediction, outputs = self.evaluation.task, self.evaluation.prediction, self.output_types()
        for index, check in enumerate(self.checks):
            if not isinstance(check, MetricCheck):
                continue
            if accumulator_of(check.metric):
                check_own(f"checks[{index}]", check, self.accumulators)
                continue
            if self.label is None and self.late_labels is None:
                raise ValueError(
                    f"checks[{index}].metric: {check.metric} compares scores with labels; write `label: <column>`, or "
                    "`late_labels` for labels that come later"
                )
            if check.metric not in METRICS[task]:
                other = listed([name for name, metrics in METRICS.items() if check.metric in metrics], "or")
                raise ValueError(
                    f"checks[{index}].metric: {check.metric} is of evaluation.task: {other}, and this job's is {task}, "
                    f"which has {listed(METRICS[task], 'and')}"
                )
            if "threshold" in check.model_fields_set and task != "binary":
                raise ValueError(f"checks[{index}].threshold: is for evaluation.task: binary, and this job's is {task}")
        if prediction is not None and prediction not in outputs:
            raise ValueError(
                f"evaluation.prediction: {prediction!r} is no output of the model{nearest(prediction, outputs)}"
            )
        if self.evaluation.model_fields_set and self.label is None and self.late_labels is None:
            raise ValueError("evaluation: compares outputs with labels; write `label: <column>`, or drop evaluation")
        if len(self.slicing) > MOST_SLICED:
            raise ValueError(
                f"evaluation.slices: with those of the checks these are {len(self.slicing)} columns, and "
                f"{MOST_SLICED} are the most"
            )
        return self

    def models_by_key(self) -> dict[str, Model]:
        """Each model by its key in the job file, for messages about the file: `model`, or `models[0]` and so on."""
        several: dict[str, Model] = {f"models[{index}]": model for index, model in enumerate(self.models)}
        return several or {"model": self.model}

    @property
    def each(self) -> tuple[Job, ...]:
        """This job for each of its models alone, in order: `model` is that model, and `preprocess` that model's. A
        staged model computes with what a worker of the CPU stage has, wherever it is called.
        """
        return tuple(map(self._with, self.models)) or (self,)

    def _with(self, model: NamedModel) -> Job:
        step, need = model.preprocess or self.preprocess, self.resources
        if model.staged and self.stage:
            need = need.model_copy(update={"gpus": 0.0, "cpus": self.stage.cpus})
        own = {"preprocess": step if step and step.uses else None, "resources": need}
        return self.model_copy(update={"model": model, "models": (), **own})

    @property
    def stage(self) -> Preprocess | None:
        """The CPU stage, as the section `preprocess` sizes it; None if neither that nor a model is staged."""
        step = self.preprocess or Preprocess()
        return step if step.placement == "staged" or any(model.staged for model in self.models) else None

    @property
    def begins_apart(self) -> bool:
        """Whether a CPU stage has something to do for the only model, or for this one of `each`."""
        return self.preprocess is not None or self.model.staged

    def of(self, name: str) -> Job:
        """This job for the model of this name alone; '' for the only model."""
        return next(job for job in self.each if job.model.called == name)

    @property
    def streams(self) -> bool:
        """Whether any of its models is asked for one row at a time."""
        return any(model.framework.streams for model in self.models_by_key().values())

    @property
    def keeps_answers(self) -> bool:
        """Whether answers are kept until the shard that they are for is written."""
        return not self.models and self.model.keeps_answers

    @property
    def loaded_by(self) -> str:
        """The key that names what is loaded, for messages."""
        return "models" if self.models else self.model.loaded_by

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the models are, of those that have a path."""
        return tuple(job.model.path for job in self.each if job.model.path)

    @property
    def code(self) -> tuple[str, ...]:
        """The patterns of all models for further files of the job's folder that score."""
        return tuple(dict.fromkeys(chain.from_iterable(model.code for model in self.models_by_key().values())))

    def output_types(self) -> dict[str, pa.DataType]:
        """The outputs of all models as Arrow types, by the names of their columns, in order."""
        return {
            f"{job.model.prefix}{name}": kind for job in self.each for name, kind in job.model.output_types().items()
        }

    def with_models(self, change: Callable[[Model], Model]) -> dict[str, Any]:
        """The fields `model` and `models`, with each model changed."""
        if self.models:
            return {"models": tuple(map(change, self.models))}
        return {"model": change(self.model)}

    def with_paths(self, place: Callable[[str], str]) -> dict[str, Any]:
        """The fields `model` and `models` with each model's path changed by `place`."""
        return self.with_models(
            lambda model: model.model_copy(update={"path": place(model.path) if model.path else None})
        )

    def carried(self, names: Sequence[str]) -> tuple[str, ...]:
        """The columns that are copied to the output, each once. names: all columns of the input, in order.

        An entry of `carry` that is no column's name is a pattern for the columns that match it.
        """
        found: dict[str, None] = {}
        for entry in self.carry:
            literal = entry in names or not _is_pattern(entry)
            found |= dict.fromkeys([entry] if literal else [name for name in names if fnmatchcase(name, entry)])
        return tuple(found)

    def check_carried(self, names: Sequence[str]) -> None:
        """Check that the input has the columns to carry, and that none of them is a column of the output already.

        Raises:
            JobError: It does not. Names the key.
        """
        for entry in self.carry:
            if entry not in names and not any(fnmatchcase(name, entry) for name in names):
                what = (
                    f"no column of the input matches {entry!r}"
                    if _is_pattern(entry)
                    else f"{entry!r} is not a column of the input"
                )
                known = nearest(entry, names) or f"; it has {', '.join(names[:30])}"
                raise JobError(f"carry: {what}{known}")
        try:
            self._check_distinct(self.carried(names))
        except ValueError as error:
            raise JobError(str(error)) from None
        written = {*self.carried(names), *self.output_types()}
        for key, column in self._written_columns():
            if column not in written:
                raise JobError(f"{key}: {column!r} is neither an output nor a carried column{nearest(column, written)}")

    @property
    def checked_columns(self) -> tuple[str, ...]:
        """The columns that have checks, each once."""
        return tuple({check.column: None for check in self.checks if isinstance(check, ColumnCheck)})

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

    def check_profiled(self, names: Sequence[str]) -> None:
        """Check that there are the columns to profile. names: all columns of the input.

        Raises:
            JobError: One is not there. Names the key.
        """
        known = {*self.output_types(), *names}
        asked = {} if isinstance(self.profile.columns, str) else {"profile": self.profile.columns}
        for index, check in enumerate(self.checks):
            if isinstance(check, DriftCheck):
                asked[f"checks[{index}].drift"] = check.columns
        for key, columns in asked.items():
            for name in columns:
                if name not in known:
                    raise JobError(
                        f"{key}: {name!r} is neither an output nor a column of the input{nearest(name, known)}"
                    )

    @property
    def companions(self) -> tuple[str, ...]:
        """The files beside each data part: exports, and the states of its columns and labels."""
        states = {"profile": self.profiling, "slices": self.label}
        return (*self.output.exports, *(kind for kind, asked in states.items() if asked))

    def date_of(self, moment: dt.datetime) -> dt.date:
        """The logical date of a moment (with time zone): the date in the schedule's time zone, by default UTC."""
        return self.schedule.date_of(moment) if self.schedule else moment.astimezone(dt.UTC).date()

    def at(self, date: dt.date) -> Job:
        """This job for one logical date: `{date}` and `{date:%Y/%m/%d}` filled in."""
        return self.model_copy(
            update={
                "input": self.input.moved(lambda uri: fill(uri, date)).with_list(lambda uri: fill(uri, date)),
                "output": self.output.at(lambda uri: fill(uri, date)),
                **self.with_paths(lambda path: fill(path, date)),
            }
        )

    def objects(self) -> dict[str, str]:
        """The user's objects that the job names, "module:name" by key; of several models below `models.<name>.`."""
        if self.models:
            return {
                f"models.{job.model.called}.{key}": spec for job in self.each for key, spec in job.objects().items()
            }
        prepares = self.preprocess.uses if self.preprocess else None
        named: dict[str, Any] = {"model.uses": self.model.uses, "preprocess": prepares}
        for name in self.model.framework.code:
            named[f"{self.model.options_key}.{name}"] = self.model.options.get(name)
        return {key: spec for key, spec in named.items() if isinstance(spec, str) and ":" in spec}

    def modules(self) -> dict[str, str]:
        """The user's modules that the job names, by key."""
        named = {**self.objects(), **({"input.format": self.input.own} if self.input.own else {})}
        return {key: spec.partition(":")[0] for key, spec in named.items()}

    def calls(self) -> dict[str, str]:
        """The user's functions that judge the night, "module:name" by key: `checks[2].call`. None of them scores."""
        checks = enumerate(self.checks if self.judged else ())
        return {f"checks[{index}].call": check.call for index, check in checks if isinstance(check, CallCheck)}

    def counting(self) -> dict[str, str]:
        """The user's classes that give figures of the rows, by key: `accumulators.lift`. None of them scores."""
        return {f"accumulators.{name}": spec for name, spec in self.accumulators.items()}

    def beside(self) -> dict[str, str]:
        """All objects of the user's own that do not score, by key: those of `calls` and of `counting`."""
        return {**self.calls(), **self.counting()}
