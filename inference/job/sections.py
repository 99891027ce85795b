"""The base of a job file's sections, and the sections that have no module of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nightjar.inference.arrow_types import arrow_type
from nightjar.inference.job.seams import TARGETS
from nightjar.inference.messages import nearest

LINEAGE = ("_file", "_row")
"""Columns added to the output: the row's source file, and its index there."""

SPEC = r"\w+(\.\w+)*:[^\W\d]\w*"
"""The form of "module:name". A file whose name begins with a digit can be imported, too."""


class Section(BaseModel):
    """Keys of a job file that belong together. An unknown key is an error, and only lists are converted: to tuples,
    because the models are frozen.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _knows_keys(cls, given: Any) -> Any:
        """Run after the validators of a section's own, which may take other forms and keys."""
        if isinstance(given, cls):
            return given
        known = [field.alias or name for name, field in cls.model_fields.items() if not field.exclude]
        if not isinstance(given, dict):
            words = f"a mapping with the keys {', '.join(known)}"
            raise PydanticCustomError("form", "{words}", {"words": words})
        for key in given:
            if key not in known:
                raise PydanticCustomError("unknown_key", "{key}", {"key": key, "known": known})
        return given

    @field_validator("*", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


def form(words: str, section: type[BaseModel] | None = None) -> Any:
    """For a key that takes several forms, one fault that says `words`. A mapping is a `section`, whose faults are told
    key by key.
    """

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if section is not None and isinstance(value, dict):
            return section.model_validate(value)
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("form", "{words}", {"words": words}) from None

    return WrapValidator(check)


def once(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Check that each name is listed once."""
    if twice := listed_twice(value):
        raise ValueError(f"{twice!r} is listed twice")
    return value


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def one_or_more(kind: Any) -> Any:
    """For a key that names one, or a list of at least one. kind: of each."""
    return BeforeValidator(_as_list, json_schema_input_type=kind | Annotated[tuple[kind, ...], Field(min_length=1)])


Names = Annotated[tuple[str, ...], AfterValidator(once)]
"""Names, each listed once."""

SomeNames = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(once)]
"""At least one of them."""


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


class TableTarget(Section):
    """A table of what is published: `{delta: s3://lake/predictions}`. kind: of `TARGETS`. uri: its own place."""

    kind: str = Field(exclude=True)
    uri: str = Field(exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _knows_keys(cls, value: Any) -> Any:
        """In place of that of other sections: the key is the kind."""
        known = ", ".join(TARGETS)
        if not isinstance(value, dict) or len(value) != 1:
            raise ValueError(f"is one key and the table's place, as {{delta: tables/predictions}}; kinds: {known}")
        ((kind, uri),) = value.items()
        if kind not in TARGETS:
            raise ValueError(f"{kind!r} is no kind of table{nearest(str(kind), TARGETS) or f'; known: {known}'}")
        if not isinstance(uri, str) or not uri:
            raise ValueError(f"{kind}: is the table's place, a path or s3://, gs:// or az:// with a bucket")
        return {"kind": kind, "uri": uri}


MOST_NIGHTS = 36_500
"""The most nights that can be kept: of a hundred years."""


class Keeping(Section):
    """How much of what was published stays. nights: the newest ones of what readers see, by their logical dates; and
    those of which readers see something new since that many days.
    """

    nights: int = Field(ge=1, le=MOST_NIGHTS)


class Output(Section):
    """Where predictions go.

    tables: the tables that also show what is published. rows: which rows are written if there are several models: those
    that `any` of them can score, or only those that `all` can. keep: what is not deleted after each publication; None:
    everything.
    """

    uri: str = Field(min_length=1)
    format: Literal["parquet"] = "parquet"
    single_writer: bool = False
    tables: tuple[TableTarget, ...] = ()
    rows: Literal["any", "all"] = "any"
    keep: Keeping | None = None

    def at(self, place: Callable[[str], str]) -> Output:
        """The same output with each location changed by `place`."""
        tables = tuple(table.model_copy(update={"uri": place(table.uri)}) for table in self.tables)
        return self.model_copy(update={"uri": place(self.uri), "tables": tables})


def budget_rows(share: float, rows: int) -> int:
    """The number of rows in a share of `rows`, rounded down, by the decimal as written: 0.001 × 1000 is 1."""
    return int(Fraction(repr(float(share))) * rows)


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


class Profiling(Section):
    """Which columns are described, so that nights can be compared. columns: `all`, `outputs` or their names. share: of
    the rows that are described, drawn at random; each row of a file either is or is not, however often it is scored.
    None: all rows, or as many of a large night as are enough.
    """

    columns: Annotated[Literal["all", "outputs"] | tuple[str, ...], form("all, outputs or a list of columns")] = ()
    share: float | None = Field(default=None, gt=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return value if isinstance(value, dict | Profiling) else {"columns": value}


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
