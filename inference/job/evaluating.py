"""How the labels of a job are compared with its outputs."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from nightjar.inference.job.sections import Section, as_tuple

MOST_SLICED = 8
"""The most columns by whose values the rows are divided: each has states of its own for every shard."""


def as_columns(value: Any) -> Any:
    """Check a list of columns, each named once."""
    value = as_tuple(value)
    if not isinstance(value, tuple) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"must be a list of columns, not {value!r}")
    if len(set(value)) != len(value):
        raise ValueError("a column is listed twice")
    return value


class Evaluating(Section):
    """How the label is compared with the outputs. slices: carried columns or outputs with few values; each value's rows
    are compared by themselves, too.
    """

    slices: tuple[str, ...] = Field(default=(), max_length=MOST_SLICED)

    _columns = field_validator("slices", mode="before")(as_columns)
