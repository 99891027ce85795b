"""The sections of a job file, each a model of its keys; the input, checks and schedule have modules of their own."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, Self, get_args

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from nightjar.inference.errors import JobError
from nightjar.inference.job.outputtypes import arrow_type
from nightjar.inference.job.seams import FRAMEWORKS, OWN, TARGETS, Framework
from nightjar.inference.messages import nearest

LINEAGE = ("_file", "_row")
"""Columns added to the output: the row's source file, and its index there."""


class Section(BaseModel):
    """Keys of a job file that belong together. An unknown key is an error, and nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def as_tuple(value: Any) -> Any:
    """Convert a list to a tuple, because the models are frozen."""
    return tuple(value) if isinstance(value, list) else value


def once(value: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Check that each name is listed once."""
    if value and (twice := listed_twice(value)):
        raise ValueError(f"{twice!r} is listed twice")
    return value


def listed_twice(names: Sequence[str]) -> str | None:
    """The first name that is listed more than once; None if each is listed once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


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

    batch_bytes: the most bytes of the features of a micro-batch, in place of `batch_size`.
    rows: `dependent` says that a row's output depends on more than the row: on its neighbours, on earlier batches, or
    on chance.
    trusted: whether its file may be a program, which runs when it is loaded.
    code: patterns, as in `.gitignore`, for further files of the job's folder that score; `!` leaves files out.
    """

    uses: str = Field(min_length=1)
    path: str | None = None
    version: str | None = None
    features: tuple[str, ...] | None = Field(default=None, min_length=1)
    outputs: dict[str, str] = Field(min_length=1)
    batch_size: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    batch_bytes: int | None = Field(default=None, ge=1)
    rows: Literal["independent", "dependent"] = "independent"
    options: dict[str, Any] = {}
    trusted: bool = False
    code: tuple[str, ...] = ()

    _listed = field_validator("features", "code", mode="before")(as_tuple)
    _once = field_validator("features")(once)

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

    @model_validator(mode="before")
    @classmethod
    def _one_size(cls, value: Any) -> Any:
        if isinstance(value, dict) and "batch_size" in value and value.get("batch_bytes") is not None:
            raise ValueError("batch_size and batch_bytes both say how large a micro-batch is; keep one of them")
        return value

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
    def finds_size(self) -> bool:
        """Whether the job leaves open how large a micro-batch is."""
        return self.batch_size == "auto" and self.batch_bytes is None

    @property
    def loaded_by(self) -> str:
        """The key that names what is loaded, for messages."""
        return "model.path" if self.framework.model else "model.uses"

    @property
    def options_key(self) -> str:
        """The key that the options stand below, for messages."""
        return "model" if self.framework.own_keys else "model.options"

    @property
    def keeps_answers(self) -> bool:
        """Whether answers are kept until the shard that they are for is written."""
        return self.framework.streams and bool(self.options.get("journal"))

    @property
    def called(self) -> str:
        """Its name; '' for an only model, which needs none."""
        return ""

    @property
    def staged(self) -> bool:
        """Whether the workers of the CPU stage score with it; an only model is in the actors."""
        return False

    @property
    def prefix(self) -> str:
        """What the names of its output columns begin with."""
        return f"{self.called}_" if self.called else ""

    def output_types(self) -> dict[str, pa.DataType]:
        """Declared outputs as Arrow types, in order, by the names that the model gives them."""
        return {name: arrow_type(text) for name, text in self.outputs.items()}


class TableTarget(Section):
    """A table of what is published: `{delta: s3://lake/predictions}`. kind: of `TARGETS`. uri: its own place."""

    kind: str = Field(exclude=True)
    uri: str = Field(exclude=True)

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


ExportForm = Literal["csv", "csv.gz", "jsonl", "jsonl.gz"]
EXPORTS: tuple[str, ...] = get_args(ExportForm)
"""The forms in which parts can be there once more; they are also the ends of the files' names."""


class Output(Section):
    """Where predictions go. `lineage` adds `_file` and `_row`, from which the audit proves the cover.

    partition_by: the columns whose values name the folders of the published files, as `country=de`, outermost first.
    exports: the forms in which each part is there once more. tables: the tables that also show what is published. rows:
    which rows are written if there are several models: those that `any` of them can score, or only those that `all`
    can.
    """

    uri: str = Field(min_length=1)
    format: Literal["parquet"] = "parquet"
    partition_by: tuple[str, ...] = ()
    exports: tuple[ExportForm, ...] = ()
    lineage: bool = True
    single_writer: bool = False
    tables: tuple[TableTarget, ...] = ()
    rows: Literal["any", "all"] = "any"

    _listed = field_validator("tables", "exports", "partition_by", mode="before")(as_tuple)
    _once = field_validator("exports", "partition_by")(once)

    @field_validator("partition_by")
    @classmethod
    def _columns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name in LINEAGE:
                raise ValueError(f"{name!r} is a lineage column, which tells each row from all others")
        return value

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


class RuntimeEnv(Section):
    """What the scoring processes have besides what their nodes have installed.

    pip, uv: requirements for Ray to install. env_vars: `${NAME}` is the variable's value where the run is begun.
    """

    pip: tuple[str, ...] = ()
    uv: tuple[str, ...] = ()
    env_vars: dict[str, SecretStr] = {}

    _listed = field_validator("pip", "uv", mode="before")(as_tuple)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for key in ("working_dir", "py_modules"):
                if key in value:
                    raise ValueError(
                        f"{key}: the files in the job's folder go to every process that scores, and count in the "
                        "identity; put the code and files there, and leave the key out"
                    )
        return value

    @field_validator("env_vars")
    @classmethod
    def _settable(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} is no name of an environment variable")
            if name in _READ_AT_START:
                raise ValueError(
                    f"{name} is read when a process starts, and these are set before your code is imported; set it "
                    "where Ray is started"
                )
        return value

    @model_validator(mode="after")
    def _one_installer(self) -> RuntimeEnv:
        if self.pip and self.uv:
            raise ValueError("pip and uv are two ways to install; keep one of them")
        return self

    @property
    def installs(self) -> tuple[str, ...]:
        """The requirements that are installed for the run."""
        return self.pip or self.uv

    def variables(self, environment: Mapping[str, str]) -> dict[str, SecretStr]:
        """The environment variables with their values. environment: for those whose values are taken from there.

        Raises:
            JobError: It lacks one of these. Names the key.
        """
        found = {}
        for name, value in self.env_vars.items():
            source = _TAKEN.fullmatch(value.get_secret_value())
            if source and source[1] not in environment:
                raise JobError(
                    f"resources.runtime_env.env_vars.{name}: the environment variable {source[1]} is not set where "
                    "this command runs; set it, or write a value"
                )
            found[name] = SecretStr(environment[source[1]]) if source else value
        return found

    def secret(self, name: str) -> bool:
        """Whether the value of a variable is taken from an environment, so that nobody must see it."""
        return _TAKEN.fullmatch(self.env_vars[name].get_secret_value()) is not None

    @property
    def counted(self) -> dict[str, str]:
        """The variables that count in the identity, with their values: those that the job file says."""
        return {name: value.get_secret_value() for name, value in self.env_vars.items() if not self.secret(name)}

    def identity(self) -> dict[str, Any]:
        """The part that can change an output; values from an environment are secrets, or differ by place."""
        own = self.counted
        digests = {name: hashlib.sha256(f"{name}={value}".encode()).hexdigest() for name, value in own.items()}
        named = {"pip": sorted(self.pip), "uv": sorted(self.uv), "env_vars": dict(sorted(digests.items()))}
        return {key: value for key, value in named.items() if value}


_TAKEN = re.compile(r"\$\{(\w+)\}")
"""A variable's value that is taken from the environment."""

_READ_AT_START = {"PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "LD_PRELOAD"}
_READ_AT_START |= {"CUDA_VISIBLE_DEVICES"}
"""Variables that have no effect on a process that runs already, or that Ray sets."""


class Resources(Section):
    """The actor pool; everything but `actors` and `concurrency_limit` is per actor. `actors: 0` is no pool, but tasks.

    memory_gb: in GiB. custom: amounts of resources that the cluster's owner has named. accelerator_type and labels: of
    the nodes that will do. concurrency_limit: the name of a global concurrency limit in Prefect, shared by jobs that
    share GPUs.
    """

    actors: Annotated[int, Field(ge=0)] | ActorRange = 2
    cpus: float = Field(default=1, ge=0)
    gpus: float = Field(default=0, ge=0)
    memory_gb: float | None = Field(default=None, gt=0)
    custom: dict[str, Annotated[float, Field(gt=0)]] = {}
    accelerator_type: str | None = Field(default=None, min_length=1)
    labels: dict[str, str] = {}
    runtime_env: RuntimeEnv = RuntimeEnv()
    concurrency_limit: str | None = Field(default=None, min_length=1)

    @field_validator("custom")
    @classmethod
    def _not_rays_own(cls, value: dict[str, float]) -> dict[str, float]:
        ours = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_gb"}
        for name in value:
            if name in ours:
                raise ValueError(f"{name!r} is a resource of Ray's own; write resources.{ours[name]}")
        return value

    @model_validator(mode="after")
    def _no_gpus_for_tasks(self) -> Resources:
        if self.as_tasks and self.gpus:
            raise ValueError(
                "actors: 0 scores in tasks, whose processes would hold a GPU's memory while they are idle; with gpus "
                "write actors: 1 or more"
            )
        return self

    @property
    def as_tasks(self) -> bool:
        """Whether shards are scored by tasks, as many at once as the cluster has room for, and not by a pool."""
        return self.actors == 0

    @property
    def cores(self) -> int:
        """Whole CPUs of an actor, at least one; this is its number of computing threads."""
        return max(1, int(self.cpus))

    @property
    def prepares_ahead(self) -> bool:
        """Whether an actor prepares the next batch in a thread: not on a single core, which the model needs."""
        return self.gpus > 0 or self.cores > 1

    @property
    def min_actors(self) -> int:
        """Actors, or tasks, that must be placed for the work to start."""
        return self.actors.min if isinstance(self.actors, ActorRange) else max(1, self.actors)

    @property
    def max_actors(self) -> int:
        """The most actors the pool may grow to; for tasks a number to reckon with."""
        return self.actors.max if isinstance(self.actors, ActorRange) else self.actors or _TASKS


def budget_rows(share: float, rows: int) -> int:
    """The number of rows in a share of `rows`, rounded down, by the decimal as written: 0.001 × 1000 is 1."""
    return int(Fraction(repr(float(share))) * rows)


_TASKS = 16
"""How many tasks are assumed to run at once when shards are made: a plan must not depend on tonight's cluster."""


class Retry(Section):
    """How often and how long is tried, and how many rows may fail. max_quarantined: a share of the run's rows. Times
    are in seconds.

    stall_s: the longest a step of a worker may take (loading the model, reading a piece, one micro-batch, writing
    a part). shard_s: the longest an attempt at one shard may take.
    """

    attempts: int = Field(default=3, ge=1, le=20)
    backoff_s: float = Field(default=5, ge=0)
    max_quarantined: float = Field(default=0.001, ge=0, le=1)
    stall_s: float = Field(default=600, gt=0)
    shard_s: float = Field(default=7200, gt=0)


class Rescoring(Section):
    """How much of the night is scored a second time and compared.

    share: of the shards, at least one; 0 for none. tolerance: two numbers agree when they differ by at most this much,
    relative to 1 + their size. differing: the share of the compared rows that may differ.
    """

    share: float = Field(default=0, ge=0, le=1)
    tolerance: float = Field(default=1e-5, ge=0)
    differing: float = Field(default=0, ge=0, lt=1)


def profiled_columns(value: Any) -> Any:
    """What `profile`, or `profile.columns`, may name."""
    if (isinstance(value, str) and value not in ("all", "outputs")) or not isinstance(value, str | list | tuple):
        raise ValueError(f"must be all, outputs or a list of columns, not {value!r}")
    return as_tuple(value)


class Profiling(Section):
    """Which columns are described, so that nights can be compared. columns: `all`, `outputs` or their names. share: of
    the rows that are described, drawn at random; each row of a file either is or is not, however often it is scored.
    None: all rows, or as many of a large night as are enough.
    """

    columns: Literal["all", "outputs"] | tuple[str, ...] = ()
    share: float | None = Field(default=None, gt=0, le=1)

    _columns = field_validator("columns", mode="before")(profiled_columns)


class IdentityRules(Section):
    """Rules for the identity.

    strict: refuse a predictor that uses something that the identity does not cover. packages: installed distributions
    whose versions are part of the identity.
    """

    strict: bool = False
    packages: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"strict": True} if value == "strict" else value

    _listed = field_validator("packages", mode="before")(as_tuple)
