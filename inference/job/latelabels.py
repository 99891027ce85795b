"""The section `late_labels` of a job file: labels that come after the night, and how they find their rows."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from nightjar.inference.job.checks import as_key
from nightjar.inference.job.input import Input
from nightjar.inference.job.sections import Section


class LateLabels(Section):
    """Labels that come after the night, for `nightjar evaluate`.

    key: the columns, one or several, that a label and its row have in common. label: the column with the label. input:
    where the labels are, written as an input; None if each command names them.
    """

    key: Annotated[tuple[str, ...], BeforeValidator(as_key)]
    label: str = Field(min_length=1)
    input: Input | None = None

    @field_validator("input")
    @classmethod
    def _there_already(cls, value: Input | None) -> Input | None:
        if value is not None and value.wait is not None:
            raise ValueError("wait: nothing waits for labels; repeat `nightjar evaluate` when more have come")
        return value
