"""The sections `model`, `models` and `preprocess`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from nightjar.inference.arrow_types import arrow_type
from nightjar.inference.job.resources import ActorRange
from nightjar.inference.job.seams import FRAMEWORKS, OWN, Framework
from nightjar.inference.job.sections import SPEC, Section, SomeNames, form, with_types
from nightjar.inference.messages import nearest


class Model(Section):
    """The model that scores the rows. features: the columns that it sees, in order. outputs: name → Arrow type.

    rows: `dependent` says that a row's output depends on more than the row: on its neighbours, on earlier batches, or
    on chance.
    trusted: whether its file may be a program, which runs when it is loaded.
    code: patterns, as in `.gitignore`, for further files of the job's folder that score; `!` leaves files out.
    """

    uses: str = Field(min_length=1, max_length=200)
    path: str | None = None
    version: str | None = None
    features: SomeNames | None = None
    outputs: dict[str, str] = Field(min_length=1)
    batch_size: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=1)], form("auto or a number of rows, 1 or more")
    ] = "auto"
    rows: Literal["independent", "dependent"] = "independent"
    options: dict[str, Any] = Field(default={})
    trusted: bool = False
    code: tuple[str, ...] = ()

    @field_validator("uses")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in FRAMEWORKS and not re.fullmatch(SPEC, value):
            raise ValueError(
                f'{value!r} is neither an adapter ({", ".join(FRAMEWORKS)}) nor "module:Name" of a class or function'
                + nearest(value, FRAMEWORKS)
            )
        return value

    _typed = field_validator("outputs")(with_types)

    @model_validator(mode="before")
    @classmethod
    def _own_keys(cls, value: Any) -> Any:
        """Take the keys that an adapter has in `model` itself as its options."""
        uses = value.get("uses") if isinstance(value, dict) else None
        if not isinstance(uses, str) or not FRAMEWORKS.get(uses, OWN).own_keys:
            return value
        if "options" in value:
            raise ValueError(f"options: the {uses} adapter has its keys in model itself; write them there")
        own = {name: given for name, given in value.items() if name not in cls.model_fields}
        return {**{name: given for name, given in value.items() if name not in own}, "options": own}

    @model_validator(mode="after")
    def _dependent_rows_have_fixed_batches(self) -> Self:
        if self.rows == "dependent" and not isinstance(self.batch_size, int):
            raise ValueError("rows: dependent needs batch_size, a number: an output depends on which rows are together")
        return self

    @property
    def framework(self) -> Framework:
        """The framework, or `OWN`."""
        return FRAMEWORKS.get(self.uses, OWN)

    @property
    def shuffles(self) -> bool:
        """Whether its outputs are the same to the last bit in batches of the same size, whichever rows they have."""
        return self.rows == "independent" and not (self.framework.inexact or self.framework.streams)

    @property
    def loaded_by(self) -> str:
        """The key that names what is loaded, for messages."""
        return "model.path" if self.framework.model else "model.uses"

    @property
    def options_key(self) -> str:
        """The key that the options stand below, for messages."""
        return "model" if self.framework.own_keys else "model.options"

    def output_types(self) -> dict[str, pa.DataType]:
        """Declared outputs as Arrow types, in order, by the names that the model gives them."""
        return {name: arrow_type(text) for name, text in self.outputs.items()}


class Preprocess(Section):
    """A function or class of the user's, batch → batch. The short form `prep:decode` is `{uses: "prep:decode"}`.

    options: keywords for it. columns: those that it is given, in order; by default every column that is not carried and
    not the label. placement: `fused` in the model's actors, or `staged` in CPU workers of its own, which hand
    over what they prepared. cpus: of each such worker. workers: their number; by default as many as the cluster has
    CPUs for.
    """

    uses: str = Field(max_length=200)
    options: dict[str, Any] = Field(default={})
    columns: SomeNames | None = None
    placement: Literal["fused", "staged"] = "fused"
    cpus: float = Field(default=1, ge=0)
    workers: (
        Annotated[
            Annotated[int, Field(ge=1)] | ActorRange,
            form("a number of workers, 1 or more, or {min: 1, max: 8}", ActorRange),
        ]
        | None
    ) = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"uses": value} if isinstance(value, str) else value

    @field_validator("uses")
    @classmethod
    def _callable(cls, value: str) -> str:
        if not re.fullmatch(SPEC, value):
            raise ValueError(f'{value!r} must be "module:name" of a callable')
        return value

    @property
    def cores(self) -> int:
        """Whole CPUs of a worker, at least one; this is its number of computing threads."""
        return max(1, int(self.cpus))

    @property
    def min_workers(self) -> int:
        """Workers that must be placed for the stage to start."""
        return self.workers.min if isinstance(self.workers, ActorRange) else self.workers or 1

    @property
    def max_workers(self) -> int | None:
        """The most workers; None if the job leaves it open."""
        return self.workers.max if isinstance(self.workers, ActorRange) else self.workers


class NamedModel(Model):
    """One of several models; the model of a job with `model` has no name. name: its outputs are the columns
    `<name>_<output>`.

    preprocess: in place of the job's, for this model alone; where it runs is said by the job's.
    """

    name: str
    preprocess: Preprocess | None = None

    @field_validator("name")
    @classmethod
    def _word(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,39}", value):
            raise ValueError(
                f"{value!r} must be letters, digits and underscores, 40 at most, and begin with a letter: its outputs "
                "are columns of this name"
            )
        return value

    @property
    def prefix(self) -> str:
        """What the names of its output columns begin with."""
        return f"{self.name}_" if self.name else ""
