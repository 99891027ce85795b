"""The section `input` of a job file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import pyarrow as pa
from pydantic import AfterValidator, Field, field_validator, model_validator

from nightjar.inference.arrow_types import arrow_type, is_native_number, is_text
from nightjar.inference.errors import JobError
from nightjar.inference.job.locations import absolute, check_database, check_place, is_database
from nightjar.inference.job.seams import SOURCES
from nightjar.inference.job.sections import SPEC, Section, form, listed_twice, one_or_more, with_types
from nightjar.inference.job.where import columns_of
from nightjar.inference.messages import nearest
from nightjar.inference.storage.locations import location


class Wait(Section):
    """How long a run waits for its input. until: a marker's name below the input, or a number of files."""

    for_: Annotated[str, Field(pattern=r"^0*[1-9][0-9]{0,5}\s*(s|min|h)$"), form("a duration, as 90s, 30min or 2h")] = (
        Field(alias="for")
    )
    until: Annotated[
        Annotated[int, Field(ge=1)] | str, form("the name of a marker, as _SUCCESS, or a number of files, 1 or more")
    ] = 1

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


def _different(value: tuple[str, ...]) -> tuple[str, ...]:
    if twice := listed_twice(value):
        raise ValueError(f"{location(twice)!r} is listed twice")
    return value


class Input(Section):
    """Where tonight's rows are. uris (`uri` in the file): a file, a folder or a glob, local or s3://, gs://, az://, or
    a file of a web server; or a list of these. list_ (`list` in the file): a text file with one of these on each line,
    in place of `uri`; `uris` is empty until it is read. lines: once it is read, the lines that `uris` come from.

    anonymous: whether its buckets are read without credentials. within: places below which data may name locations:
    lines of a list, links in a folder, files of a table, redirects of a web server.
    options: those of the format, which checks them. partitions: columns from `key=value` folders of the files' paths,
    with their Arrow types. declared (`schema` in the file): the Arrow types of columns of the files, in place of the
    types that the files give them. where: a condition of SQL; only rows for which it is true are scored. wait: how to
    wait for the input; None to use the input that is there when the run begins.
    """

    uris: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        Field(min_length=1),
        form("a place, or a list of places, none of them empty"),
        one_or_more(Annotated[str, Field(min_length=1)]),
        AfterValidator(_different),
    ] = Field(default=(), alias="uri")
    list_: str | None = Field(default=None, alias="list", min_length=1)
    format: str | None = None
    options: dict[str, Any] = Field(default={})
    shard_rows: int | None = Field(default=None, ge=1)
    wait: Wait | None = None
    partitions: dict[str, str] = Field(default={})
    declared: dict[str, str] = Field(default={}, alias="schema")
    where: str | None = None
    anonymous: bool = False
    within: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    lines: tuple[int, ...] = Field(default=(), exclude=True)

    @property
    def uri(self) -> str:
        """The first of the inputs; empty for a list that is not read yet."""
        return next(iter(self.uris), "")

    @property
    def key(self) -> str:
        """The key that says what the input is, for messages."""
        return "input.list" if self.list_ else "input.uri"

    @property
    def shown(self) -> str:
        """The inputs for messages."""
        if self.list_:
            return f"the list {location(self.list_)}"
        more = len(self.uris) - 1
        return f"{location(self.uri)} and {more} more" if more else location(self.uri)

    def at(self, place: Callable[[str], str], aside: Callable[[str], str] | None = None) -> Self:
        """The same input with each location changed by `place`; by `aside`, if it is given, those of the list and of
        `within`.
        """
        aside = aside or place
        return self.model_copy(
            update={
                "uris": tuple(map(place, self.uris)),
                "list_": aside(self.list_) if self.list_ else None,
                "within": tuple(map(aside, self.within)),
            }
        )

    def listing(self, found: Mapping[str, int]) -> Self:
        """With the inputs that the list has. found: each, and its line."""
        return self.model_copy(update={"uris": tuple(found), "lines": tuple(found.values())})

    @field_validator("format")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in SOURCES and not re.fullmatch(SPEC, value):
            known = " or ".join(map(repr, SOURCES))
            raise ValueError(
                f'must be {known}, or "module:Name" of a class of yours, not {value!r}' + nearest(value, SOURCES)
            )
        return value

    @property
    def own(self) -> str:
        """The user's own source, as "module:Name"; empty for a format of Nightjar's."""
        return self.format if self.format and ":" in self.format else ""

    _typed = field_validator("declared")(with_types)

    @field_validator("partitions")
    @classmethod
    def _from_text(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in with_types(value).items():
            kind = arrow_type(text)
            if not (is_text(kind) or is_native_number(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
                raise ValueError(
                    f"{name}: {text!r} is no type of a folder's name; write string, int32, float64, bool, date32 or "
                    "timestamp[us]"
                )
        return value

    @field_validator("where")
    @classmethod
    def _condition(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                columns_of(value)
            except JobError as error:
                raise ValueError(str(error).removeprefix("input.where: ")) from None
        return value

    @model_validator(mode="after")
    def _says_each_once(self) -> Input:
        if not self.uris and not self.list_:
            raise ValueError("uri is required, or list for a file that lists them")
        if self.uris and self.list_:
            raise ValueError("uri and list both say what the input is; keep one of them")
        if both := sorted(set(self.partitions) & set(self.declared)):
            raise ValueError(
                f"{both[0]!r} is in partitions and in schema; a column comes from the path or from the files"
            )
        return self

    def partition_types(self) -> dict[str, pa.DataType]:
        """The columns from the path as Arrow types, in order."""
        return {name: arrow_type(text) for name, text in self.partitions.items()}

    def compared(self) -> tuple[str, ...]:
        """The columns that `where` names."""
        return columns_of(self.where) if self.where else ()

    def column_types(self) -> dict[str, pa.DataType]:
        """The declared types of the files' columns as Arrow types."""
        return {name: arrow_type(text) for name, text in self.declared.items()}


def named_input(given: Input | None, uris: Sequence[str], option: str) -> Input:
    """The input for places of the command line, which are relative to the current folder. given: has its other keys.
    option: names them, for messages.

    Raises:
        JobError: One of them is no place.
    """
    for uri in uris:
        check_database(uri, option) if is_database(uri) else check_place(uri, option, web=True)
    places = tuple(absolute(each, Path.cwd(), pattern=True) for each in uris)
    return (given or Input(uri=places)).model_copy(update={"uris": places, "list_": None, "lines": ()})
