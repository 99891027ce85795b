"""The sections of a job file, each a model of its keys; the input, checks and schedule have modules of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nightjar.inference.job.outputtypes import arrow_type
from nightjar.inference.job.seams import FRAMEWORKS, TARGETS
from nightjar.inference.messages import nearest

LINEAGE = ("_file", "_row")
"""Columns added to the output: the row's source file, and its index there."""


class Section(BaseModel):
    """Keys of a job file that belong together. An unknown key is an error, and nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def as_tuple(value: Any) -> Any:
    """Convert a list to a tuple, because the models are frozen."""
    return tuple(value) if isinstance(value, list) else value


def with_types(value: dict[str, str]) -> dict[str, str]:
    """Check that each column has an Arrow type."""
    for name, text in value.items():
        if name in LINEAGE:
            raise ValueError(f"{name!r} is the name of a lineage column; choose another")
        try:
            arrow_type(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return value


class Model(Section):
    """The model that scores the rows. features: the columns that it sees, in order. outputs: name → Arrow type.

    code: patterns, as in `.gitignore`, for the files in the job's folder that score; without patterns all files do.
    """

    uses: str = Field(min_length=1)
    path: str | None = None
    version: str | None = None
    features: tuple[str, ...] | None = Field(default=None, min_length=1)
    outputs: dict[str, str] = Field(min_length=1)
    batch_size: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    options: dict[str, Any] = {}
    allow_pickle: bool = False
    code: tuple[str, ...] | None = Field(default=None, min_length=1)

    _listed = field_validator("features", "code", mode="before")(as_tuple)

    @field_validator("uses")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in FRAMEWORKS and not re.fullmatch(r"[\w.]+:\w+", value):
            raise ValueError(
                f'{value!r} is neither an adapter ({", ".join(FRAMEWORKS)}) nor "module:Name" of a class or function'
                + nearest(value, FRAMEWORKS)
            )
        return value

    _typed = field_validator("outputs")(with_types)

    @property
    def loaded_by(self) -> str:
        """The key that names what is loaded, for messages."""
        return "model.path" if self.uses in FRAMEWORKS else "model.uses"

    def output_types(self) -> dict[str, pa.DataType]:
        """Declared outputs as Arrow types, in order."""
        return {name: arrow_type(text) for name, text in self.outputs.items()}


class TableTarget(Section):
    """A table that shows what is published, written as one key: `{delta: s3://lake/predictions}`.

    kind: a key of `TARGETS`. uri: the table's own place.
    """

    kind: str
    uri: str

    @model_validator(mode="before")
    @classmethod
    def _one_key(cls, value: Any) -> Any:
        known = ", ".join(TARGETS)
        if not isinstance(value, dict) or len(value) != 1:
            raise ValueError(f"is one key and the table's place, as {{delta: tables/predictions}}; kinds: {known}")
        ((kind, uri),) = value.items()
        if kind not in TARGETS:
            raise ValueError(f"{kind!r} is no kind of table{nearest(str(kind), TARGETS) or f'; known: {known}'}")
        if not isinstance(uri, str) or not uri:
            raise ValueError(f"{kind}: is the table's place, a path or s3://, gs:// or az:// with a bucket")
        return {"kind": kind, "uri": uri}


class Output(Section):
    """Where predictions go. `lineage` adds `_file` and `_row`, from which the audit proves the cover.

    tables: the tables that also show what is published.
    """

    uri: str = Field(min_length=1)
    format: Literal["parquet"] = "parquet"
    lineage: bool = True
    single_writer: bool = False
    tables: tuple[TableTarget, ...] = ()

    _listed = field_validator("tables", mode="before")(as_tuple)

    def at(self, place: Callable[[str], str]) -> Output:
        """The same output with each location changed by `place`."""
        tables = tuple(table.model_copy(update={"uri": place(table.uri)}) for table in self.tables)
        return self.model_copy(update={"uri": place(self.uri), "tables": tables})


class ActorRange(Section):
    """An actor pool that grows and shrinks between two sizes."""

    min: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> ActorRange:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


class Resources(Section):
    """The actor pool; everything but `actors` and `concurrency_limit` is per actor.

    memory_gb: in GiB. custom: amounts of resources that the cluster's owner has named. accelerator_type and labels: of
    the nodes that will do. concurrency_limit: the name of a global concurrency limit in Prefect, shared by jobs that
    share GPUs.
    """

    actors: Annotated[int, Field(ge=1)] | ActorRange = 2
    cpus: float = Field(default=1, ge=0, strict=False)
    gpus: float = Field(default=0, ge=0, strict=False)
    memory_gb: float | None = Field(default=None, gt=0, strict=False)
    custom: dict[str, Annotated[float, Field(gt=0, strict=False)]] = {}
    accelerator_type: str | None = Field(default=None, min_length=1)
    labels: dict[str, str] = {}
    concurrency_limit: str | None = Field(default=None, min_length=1)

    @field_validator("custom")
    @classmethod
    def _not_rays_own(cls, value: dict[str, float]) -> dict[str, float]:
        ours = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_gb"}
        for name in value:
            if name in ours:
                raise ValueError(f"{name!r} is a resource of Ray's own; write resources.{ours[name]}")
        return value

    @property
    def cores(self) -> int:
        """Whole CPUs of an actor, at least one; this is its number of computing threads."""
        return max(1, int(self.cpus))

    @property
    def min_actors(self) -> int:
        """Actors that must be placed for the pool to start."""
        return self.actors.min if isinstance(self.actors, ActorRange) else self.actors

    @property
    def max_actors(self) -> int:
        """The most actors the pool may grow to."""
        return self.actors.max if isinstance(self.actors, ActorRange) else self.actors


def budget_rows(share: float, rows: int) -> int:
    """The number of rows in a share of `rows`, rounded down.

    0.001 × 1000 is 1: the exact decimal that the user wrote counts, not the nearest binary fraction.
    """
    return int(Fraction(repr(float(share))) * rows)


class Retry(Section):
    """How often and how long is tried, and how many rows may fail. max_quarantined: a share of the run's rows. Times
    are in seconds.

    stall_s: the longest a step of a worker may take (loading the model, reading a piece, one micro-batch, writing
    a part). shard_s: the longest an attempt at one shard may take.
    """

    attempts: int = Field(default=3, ge=1, le=20)
    backoff_s: float = Field(default=5, ge=0, strict=False)
    max_quarantined: float = Field(default=0.001, ge=0, le=1, strict=False)
    stall_s: float = Field(default=600, gt=0, strict=False)
    shard_s: float = Field(default=7200, gt=0, strict=False)


class Rescoring(Section):
    """How much of the night is scored a second time and compared.

    share: of the shards, at least one; 0 for none. tolerance: two numbers agree when they differ by at most this much,
    relative to 1 + their size.
    """

    share: float = Field(default=0, ge=0, le=1, strict=False)
    tolerance: float = Field(default=1e-5, ge=0, strict=False)


class IdentityRules(Section):
    """Rules for the identity.

    strict: refuse a predictor that uses something that the identity does not cover. packages: installed distributions
    whose version and content are part of the identity.
    """

    strict: bool = False
    packages: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"strict": True} if value == "strict" else value

    _listed = field_validator("packages", mode="before")(as_tuple)
