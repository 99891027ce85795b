"""The `Job` model: everything a user can write, validated. `jobfile` reads one from YAML."""

from __future__ import annotations

import datetime as dt
import re
import string
from collections.abc import Callable
from fractions import Fraction
from itertools import takewhile
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, available_timezones

import pyarrow as pa
from cronsim import CronSim, CronSimError
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from nightjar.inference.job.seams import FRAMEWORKS, SOURCES, TARGETS
from nightjar.inference.messages import nearest
from nightjar.inference.yamlvalues import as_json

LINEAGE = ("_file", "_row")
"""Columns added to the output: the row's source file, and its index there."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Wait(_Model):
    """How long a run waits for its input, and for what: a marker's name below the input, or so many files."""

    for_: str = Field(alias="for")
    until: Annotated[int, Field(ge=1)] | str = 1

    @field_validator("for_", mode="before")
    @classmethod
    def _duration(cls, value: Any) -> Any:
        if not isinstance(value, str) or not re.fullmatch(r"0*[1-9]\d{0,5}\s*(s|min|h)", value):
            raise ValueError(f"{value!r} is no duration; write one as 90s, 30min or 2h")
        return value

    @field_validator("until")
    @classmethod
    def _name(cls, value: str | int) -> str | int:
        if isinstance(value, str) and {"", ".", ".."} & set(value.split("/")):
            raise ValueError(f"{value!r} is no name below the input; write one as _SUCCESS")
        return value

    @property
    def seconds(self) -> int:
        """The longest wait."""
        return int(re.sub(r"\D", "", self.for_)) * {"s": 1, "min": 60, "h": 3600}[re.sub(r"[\d\s]", "", self.for_)]


class Input(_Model):
    """Where tonight's rows are. `uri` is a file, a folder or a glob, local or s3://, gs://, az://.

    wait: until the input is there; None to take it as it is when the run begins.
    """

    uri: str = Field(min_length=1)
    format: str | None = None
    shard_rows: int | None = Field(default=None, ge=1)
    wait: Wait | None = None

    @field_validator("format")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in SOURCES:
            raise ValueError(f"must be {' or '.join(map(repr, SOURCES))}, not {value!r}")
        return value


class Model(_Model):
    """What scores them. `features`: the columns the model sees, in order. `outputs`: name → Arrow type.

    code: patterns, as in `.gitignore`, of the files in the job's folder that score; without them all that lies there.
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

    @field_validator("features", "code", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("uses")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in FRAMEWORKS and not re.fullmatch(r"[\w.]+:\w+", value):
            known = " nor ".join(f'"{name}"' for name in FRAMEWORKS)
            raise ValueError(
                f'{value!r} is neither {known} nor "module:Name" of a class or function' + nearest(value, FRAMEWORKS)
            )
        return value

    @field_validator("outputs")
    @classmethod
    def _types(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if name in LINEAGE:
                raise ValueError(f"{name!r} is the name of a lineage column; choose another")
            try:
                arrow_type(text)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return value

    @property
    def loaded_by(self) -> str:
        """The key that names what is loaded, for messages."""
        return "model.path" if self.uses in FRAMEWORKS else "model.uses"

    def output_types(self) -> dict[str, pa.DataType]:
        """Declared outputs as Arrow types, in order."""
        return {name: arrow_type(text) for name, text in self.outputs.items()}


class TableTarget(_Model):
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


class Output(_Model):
    """Where predictions go. `lineage` adds `_file` and `_row`, from which the audit proves the cover.

    tables: where what is published is shown as a table, too.
    """

    uri: str = Field(min_length=1)
    format: Literal["parquet"] = "parquet"
    lineage: bool = True
    single_writer: bool = False
    tables: tuple[TableTarget, ...] = ()

    @field_validator("tables", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    def at(self, place: Callable[[str], str]) -> Output:
        """The same with each of its places as `place` makes it."""
        tables = tuple(table.model_copy(update={"uri": place(table.uri)}) for table in self.tables)
        return self.model_copy(update={"uri": place(self.uri), "tables": tables})


class ActorRange(_Model):
    """An actor pool that grows and shrinks between two sizes."""

    min: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> ActorRange:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


class Resources(_Model):
    """The actor pool; `cpus` and `gpus` are per actor.

    concurrency_limit: the name of a global concurrency limit in Prefect, shared by jobs that share GPUs.
    """

    actors: Annotated[int, Field(ge=1)] | ActorRange = 2
    cpus: float = Field(default=1, ge=0, strict=False)
    gpus: float = Field(default=0, ge=0, strict=False)
    concurrency_limit: str | None = Field(default=None, min_length=1)

    @property
    def cores(self) -> int:
        """Whole CPUs of an actor, at least one: so many threads compute in it."""
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
    """How many of `rows` a share of them is: as the share was written, rounded down.

    0.001 × 1000 is 1: the decimal that the user wrote counts, not the binary fraction next to it.
    """
    return int(Fraction(repr(float(share))) * rows)


class Retry(_Model):
    """How much is forgiven. `max_quarantined` is a share of the run's rows; times are in seconds.

    stall_s: the longest a step of a worker may take (loading the model, reading a piece, one micro-batch, writing
    a part). shard_s: the longest an attempt at one shard may take.
    """

    attempts: int = Field(default=3, ge=1, le=20)
    backoff_s: float = Field(default=5, ge=0, strict=False)
    max_quarantined: float = Field(default=0.001, ge=0, le=1, strict=False)
    stall_s: float = Field(default=600, gt=0, strict=False)
    shard_s: float = Field(default=7200, gt=0, strict=False)


class Rescoring(_Model):
    """How much of the night is scored a second time and compared.

    share: of the shards, at least one; 0 for none. tolerance: two numbers agree when they differ by at most this much,
    relative to 1 + their size.
    """

    share: float = Field(default=0, ge=0, le=1, strict=False)
    tolerance: float = Field(default=1e-5, ge=0, strict=False)


class IdentityRules(_Model):
    """What else counts as part of what scores, and whether anything may stay outside.

    strict: refuse a predictor that uses what identity does not cover. packages: installed distributions whose version
    and content count.
    """

    strict: bool = False
    packages: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"strict": True} if value == "strict" else value

    @field_validator("packages", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


class ColumnCheck(_Model):
    """Gates on one output or carried column. `nulls` is the largest share of nulls and NaN allowed."""

    column: str
    min: float | None = Field(default=None, strict=False)
    max: float | None = Field(default=None, strict=False)
    nulls: float | None = Field(default=None, ge=0, le=1, strict=False)
    finite: bool | None = None

    @model_validator(mode="after")
    def _asks(self) -> ColumnCheck:
        if self.min is None and self.max is None and self.nulls is None and self.finite is None:
            raise ValueError("asks nothing: give at least one of min, max, nulls, finite")
        return self


class Limits(_Model):
    """How much input there must be, and may be."""

    min: int | None = Field(default=None, ge=0)
    max: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ValueError(f"asks nothing: give at least one of {', '.join(type(self).model_fields)}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


class RowLimits(Limits):
    """The same of rows. `change`: by what share they may differ from those of the night that `against` names."""

    against: Literal["last"] | None = None
    change: float | None = Field(default=None, ge=0, strict=False)

    @model_validator(mode="after")
    def _compares(self) -> RowLimits:
        if (self.against is None) != (self.change is None):
            raise ValueError("against and change belong together: write {against: last, change: 0.3}")
        return self


class RowsCheck(_Model):
    """Gates on the rows of the input."""

    rows: RowLimits


class FilesCheck(_Model):
    """Gates on the files of the input."""

    files: Limits


CHECKS: dict[str, type[_Model]] = {"column": ColumnCheck, "rows": RowsCheck, "files": FilesCheck}
"""The key by which a check says its kind → what else may stand there."""


def _kind_of_check(value: Any) -> str:
    """What the check is on, as written or built; one that does not say is taken for one on a column."""
    if isinstance(value, dict):
        return next((kind for kind in CHECKS if kind in value), "column")
    return next((kind for kind, model in CHECKS.items() if isinstance(value, model)), "column")


def _of_one_kind(value: Any) -> Any:
    if isinstance(value, dict) and len(kinds := [kind for kind in CHECKS if kind in value]) != 1:
        if kinds:
            raise ValueError(f"is on {' and '.join(kinds)}; write a check for each")
        meant = next(filter(None, (nearest(str(key), CHECKS) for key in value)), "")
        raise ValueError(f"is on nothing: give one of {', '.join(CHECKS)}{meant}")
    return value


Check = Annotated[
    Annotated[ColumnCheck, Tag("column")] | Annotated[RowsCheck, Tag("rows")] | Annotated[FilesCheck, Tag("files")],
    Discriminator(_kind_of_check),
    BeforeValidator(_of_one_kind),
]


class Schedule(_Model):
    """When a deployment of the job runs: five fields of cron, in a time zone."""

    cron: str
    timezone: str = "UTC"

    @field_validator("cron")
    @classmethod
    def _five_fields(cls, value: str) -> str:
        fields = value.split()
        problem = "" if len(fields) == 5 else f"it has {len(fields)} fields"
        if not problem and re.search(r"[#?LW]", re.sub(r"(?i)[a-z]{3}", "", value)):
            problem = "L, W, # and ? are not known here"
        if not problem and fields[2] != "*" and fields[4] != "*":
            problem = "day of month and day of week cannot both be given: what that means differs between schedulers"
        try:
            CronSim(value, dt.datetime(2026, 1, 1))
        except CronSimError as error:
            problem = problem or str(error)
        if problem:
            raise ValueError(
                f'{value!r} is no cron expression ({problem}); write five fields, as "0 2 * * *": minute, hour, day '
                "of month, month, day of week"
            )
        return value

    @field_validator("timezone")
    @classmethod
    def _zone(cls, value: str) -> str:
        if value not in available_timezones():
            raise ValueError(
                f"{value!r} is no time zone; write one as Europe/Berlin{nearest(value, available_timezones())}"
            )
        return value

    def fires(self, wall: dt.datetime) -> bool:
        """Whether it is due at that minute, by the clock on the wall."""
        minute = wall.replace(second=0, microsecond=0)
        return bool(next(CronSim(self.cron, minute - dt.timedelta(minutes=1))) == minute)

    def dates(self, first: dt.date, last: dt.date) -> list[dt.date]:
        """The logical dates from first to last on which it fires, each once."""
        # Without a time zone: a night that daylight saving shortens is a night all the same.
        times = CronSim(self.cron, dt.datetime.combine(first, dt.time()) - dt.timedelta(minutes=1))
        return list(dict.fromkeys(takewhile(lambda date: date <= last, (time.date() for time in times))))


class Job(_Model):
    """One job file. Locations are absolute once loaded; `{date}` stands until `at`.

    places: the local folders below which input and output of every date lie. templates: input and output themselves,
    as patterns whose dates stay open.
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
        """Earlier releases had `audit: {rescore: 0.01}` for `rescore: {share: 0.01}`: their job files go on."""
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

    @field_validator("carry", "checks", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("preprocess")
    @classmethod
    def _callable(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[\w.]+:\w+", value):
            raise ValueError(f'{value!r} must be "module:name" of a callable')
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Job:
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
        if (framework := FRAMEWORKS.get(self.model.uses)) and self.model.path is None:
            raise ValueError(f"model.path: the {self.model.uses} adapter needs the path of {framework.model}")
        written = carried | set(self.model.outputs)
        for index, check in enumerate(self.checks):
            if isinstance(check, ColumnCheck) and check.column not in written:
                raise ValueError(
                    f"checks[{index}].column: {check.column!r} is neither an output nor a carried column"
                    + nearest(check.column, written)
                )
        return self

    @property
    def checked_columns(self) -> tuple[str, ...]:
        """The columns that checks are on, each once."""
        return tuple({check.column: None for check in self.checks if isinstance(check, ColumnCheck)})

    def date_of(self, moment: dt.datetime) -> dt.date:
        """The logical date of a moment (with time zone): the date in the schedule's time zone, by default UTC."""
        if self.schedule is None:
            return moment.astimezone(dt.UTC).date()
        zone, hour, utc = ZoneInfo(self.schedule.timezone), dt.timedelta(hours=1), moment.astimezone(dt.UTC)
        local, later = (each.astimezone(zone).replace(tzinfo=None) for each in (utc, utc + hour))
        # Where clocks are put forward at midnight, a night due in the hour that is left out is run an hour before it.
        if later - local > hour and not self.schedule.fires(local) and self.schedule.fires(local + hour):
            local += hour
        return local.date()

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

    def modules(self) -> dict[str, str]:
        """The modules of the user's that the job names, by key."""
        named = {"model.uses": self.model.uses, "preprocess": self.preprocess}
        return {key: spec.partition(":")[0] for key, spec in named.items() if spec and ":" in spec}

    def scoring_keys(self) -> dict[str, Any]:
        """Everything here that can change an output, and nothing else, as JSON: part of every shard's identity."""
        model = self.model.model_dump(include={"uses", "version", "features", "outputs", "batch_size", "options"})
        # Column order matters to readers, so outputs are a list of pairs.
        model["outputs"] = list(self.model.outputs.items())
        model["options"] = as_json(self.model.options)
        return {
            "model": model,
            "preprocess": self.preprocess,
            "carry": self.carry,
            "label": self.label,
            "checked": sorted(self.checked_columns),
            "lineage": self.output.lineage,
            "format": self.output.format,
            "gpu": self.resources.gpus > 0,
        }


def arrow_type(text: str) -> pa.DataType:
    """`float32`, `string`, `timestamp[us, UTC]`, `list<float32>`, `float32[384]` … as an Arrow type.

    Raises:
        ValueError: the text names no type.
    """
    text = text.strip()
    if match := re.fullmatch(r"list<(.+)>", text):
        return pa.list_(arrow_type(match[1]))
    if match := re.fullmatch(r"timestamp\[(s|ms|us|ns),\s*(.+)\]", text):
        return pa.timestamp(match[1], tz=match[2])
    if match := re.fullmatch(r"(\w+)\[(\d+)\]", text):
        return pa.list_(arrow_type(match[1]), int(match[2]))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not an Arrow type; write float32, int64, string, bool, timestamp[us], "
            "list<float32> or float32[384]"
        ) from None


_AS_WRITTEN = {"halffloat": "float16", "float": "float32", "double": "float64"}


def type_name(kind: pa.DataType) -> str:
    """An Arrow type as a job file has it: Arrow itself calls a float32 `float`."""
    return _AS_WRITTEN.get(str(kind), str(kind))


def fill(text: str, date: dt.date) -> str:
    """A location with its dates filled in."""
    return text.format(date=date)


def is_dated(uri: str) -> bool:
    """Whether a location is another one for each date."""
    return any(field is not None for _, field, _, _ in string.Formatter().parse(uri))
