"""The `Job` model: everything that a user can write, validated. `file` reads one from YAML."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from nightjar.inference.job.checks import Check, ColumnCheck
from nightjar.inference.job.input import Input
from nightjar.inference.job.locations import fill
from nightjar.inference.job.schedule import Schedule
from nightjar.inference.job.seams import FRAMEWORKS
from nightjar.inference.job.sections import (
    LINEAGE,
    IdentityRules,
    Model,
    Output,
    Rescoring,
    Resources,
    Retry,
    Section,
    as_tuple,
)
from nightjar.inference.messages import nearest
from nightjar.inference.yamlvalues import as_json


class Job(Section):
    """One job file. Its locations are absolute; `{date}` stays in them until `at` fills it in.

    places: the local folders that contain input and output of every date. templates: input and output as patterns with
    open dates.
    """

    name: str
    input: Input
    model: Model
    preprocess: str | None = None
    carry: tuple[str, ...] = ()
    label: str | None = None
    output: Output
    resources: Resources = Resources()
    retry: Retry = Retry()
    checks: tuple[Check, ...] = ()
    rescore: Rescoring = Rescoring()
    identity: IdentityRules = IdentityRules()
    schedule: Schedule | None = None
    folder: str = Field(default="", exclude=True)
    places: tuple[str, ...] = Field(default=(), exclude=True)
    templates: tuple[str, str] = Field(default=("", ""), exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _of_before(cls, given: Any) -> Any:
        """Accept `audit: {rescore: 0.01}` of earlier releases for `rescore: {share: 0.01}`."""
        if not isinstance(given, dict) or not isinstance(given.get("audit"), dict):
            return given
        if "rescore" in given:
            raise ValueError("audit: is called rescore now, and both are there; leave audit out")
        audit = {"share" if name == "rescore" else name: value for name, value in given["audit"].items()}
        return {name: value for name, value in given.items() if name != "audit"} | {"rescore": audit}

    @field_validator("name")
    @classmethod
    def _slug(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", value):
            raise ValueError(f"{value!r} must be lower case letters, digits and dashes: it names the artifacts")
        return value

    _listed = field_validator("carry", "checks", mode="before")(as_tuple)

    @field_validator("preprocess")
    @classmethod
    def _callable(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[\w.]+:\w+", value):
            raise ValueError(f'{value!r} must be "module:name" of a callable')
        return value

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> Self:
        carried = set(self.carry)
        if len(carried) != len(self.carry):
            raise ValueError("carry: a column is listed twice")
        if clash := sorted(carried & set(self.model.outputs)):
            raise ValueError(
                f"model.outputs: {clash[0]!r} is also a carried column; rename the output or drop it from carry"
            )
        if clash := sorted(carried & set(LINEAGE)):
            raise ValueError(f"carry: {clash[0]!r} is the name of a lineage column (output.lineage)")
        features = self.model.features or ()
        if len(set(features)) != len(features):
            raise ValueError("model.features: a column is listed twice")
        return self

    @model_validator(mode="after")
    def _framework_has_its_model(self) -> Self:
        if (framework := FRAMEWORKS.get(self.model.uses)) and self.model.path is None:
            raise ValueError(f"model.path: the {self.model.uses} adapter needs the path of {framework.model}")
        return self

    @model_validator(mode="after")
    def _checked_columns_are_written(self) -> Self:
        written = {*self.carry, *self.model.outputs}
        for index, check in enumerate(self.checks):
            if isinstance(check, ColumnCheck) and check.column not in written:
                raise ValueError(
                    f"checks[{index}].column: {check.column!r} is neither an output nor a carried column"
                    + nearest(check.column, written)
                )
        return self

    @property
    def checked_columns(self) -> tuple[str, ...]:
        """The columns that have checks, each once."""
        return tuple({check.column: None for check in self.checks if isinstance(check, ColumnCheck)})

    def date_of(self, moment: dt.datetime) -> dt.date:
        """The logical date of a moment (with time zone): the date in the schedule's time zone, by default UTC."""
        return self.schedule.date_of(moment) if self.schedule else moment.astimezone(dt.UTC).date()

    def at(self, date: dt.date) -> Job:
        """This job for one logical date: `{date}` and `{date:%Y/%m/%d}` filled in."""
        return self.model_copy(
            update={
                "input": self.input.model_copy(update={"uri": fill(self.input.uri, date)}),
                "output": self.output.at(lambda uri: fill(uri, date)),
                "model": self.model.model_copy(
                    update={"path": fill(self.model.path, date) if self.model.path else None}
                ),
            }
        )

    def objects(self) -> dict[str, str]:
        """The objects of the user's own code that the job names as "module:name", by key."""
        named: dict[str, Any] = {"model.uses": self.model.uses, "preprocess": self.preprocess}
        if (framework := FRAMEWORKS.get(self.model.uses)) and (option := framework.factory):
            named[f"model.options.{option}"] = self.model.options.get(option)
        return {key: spec for key, spec in named.items() if isinstance(spec, str) and ":" in spec}

    def modules(self) -> dict[str, str]:
        """The user's modules that the job names, by key."""
        return {key: spec.partition(":")[0] for key, spec in self.objects().items()}

    def scoring_keys(self) -> dict[str, Any]:
        """Everything here that can change an output, and nothing else, as JSON: part of every shard's identity."""
        model = self.model.model_dump(include={"uses", "version", "features", "outputs", "batch_size", "options"})
        # Column order matters to readers, so outputs are a list of pairs.
        model["outputs"] = list(self.model.outputs.items())
        model["options"] = as_json(self.model.options)
        # Jobs without declared columns and options keep the identity that they had before there were any.
        options = as_json(dict(sorted(self.input.options.items())))
        declared = {"input.partitions": self.input.partitions, "input.schema": self.input.declared}
        return {
            **{key: given for key, given in (declared | {"input.options": options}).items() if given},
            "model": model,
            "preprocess": self.preprocess,
            "carry": self.carry,
            "label": self.label,
            "checked": sorted(self.checked_columns),
            "lineage": self.output.lineage,
            "format": self.output.format,
            "gpu": self.resources.gpus > 0,
        }
