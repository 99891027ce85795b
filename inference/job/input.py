"""The section `input` of a job file."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from nightjar.inference.arrow_types import is_native_number, is_text
from nightjar.inference.job.outputtypes import arrow_type
from nightjar.inference.job.seams import SOURCES
from nightjar.inference.job.sections import Section, with_types


class Wait(Section):
    """How long a run waits for its input. until: a marker's name below the input, or a number of files."""

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


class Input(Section):
    """Where tonight's rows are. `uri` is a file, a folder or a glob, local or s3://, gs://, az://.

    options: those of the format, which checks them. partitions: columns from `key=value` folders of the files' paths,
    with their Arrow types. declared (`schema` in the file): the Arrow types of columns of the files, in place of the
    types that the files give them. wait: how to wait for the input; None to use the input that is there when the run
    begins.
    """

    uri: str = Field(min_length=1)
    format: str | None = None
    options: dict[str, Any] = Field(default={})
    shard_rows: int | None = Field(default=None, ge=1)
    wait: Wait | None = None
    partitions: dict[str, str] = Field(default={})
    declared: dict[str, str] = Field(default={}, alias="schema")

    @field_validator("format")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in SOURCES:
            raise ValueError(f"must be {' or '.join(map(repr, SOURCES))}, not {value!r}")
        return value

    _typed = field_validator("declared")(with_types)

    @field_validator("partitions")
    @classmethod
    def _from_text(cls, value: dict[str, str]) -> dict[str, str]:
        for name, kind in with_types(value).items():
            if not _is_written_in_paths(arrow_type(kind)):
                raise ValueError(
                    f"{name}: {kind!r} is no type of a folder's name; write string, int32, float64, bool, date32 or "
                    "timestamp[us]"
                )
        return value

    @model_validator(mode="after")
    def _declared_once(self) -> Input:
        if both := sorted(set(self.partitions) & set(self.declared)):
            raise ValueError(
                f"{both[0]!r} is in partitions and in schema; a column comes from the path or from the files"
            )
        return self

    def partition_types(self) -> dict[str, pa.DataType]:
        """The columns from the path as Arrow types, in order."""
        return {name: arrow_type(text) for name, text in self.partitions.items()}

    def column_types(self) -> dict[str, pa.DataType]:
        """The declared types of the files' columns as Arrow types."""
        return {name: arrow_type(text) for name, text in self.declared.items()}


def _is_written_in_paths(kind: pa.DataType) -> bool:
    """Whether the name of a folder can say a value of this type."""
    return is_text(kind) or is_native_number(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)
