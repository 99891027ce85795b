"""One of several models in a job file."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import field_validator, model_validator

from nightjar.inference.job.preprocess import Preprocess
from nightjar.inference.job.sections import Model


class NamedModel(Model):
    """One of several models. name: its outputs are the columns `<name>_<output>`.

    preprocess: in place of the job's, for this model alone; where it runs is said by the job's. placement: `fused` in
    the actors, with `resources`; or `staged` in the workers of the CPU stage, which then also do its preprocess.
    """

    name: str
    placement: Literal["fused", "staged"] = "fused"
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

    @model_validator(mode="after")
    def _has_its_own_step(self) -> Self:
        if self.preprocess and not self.preprocess.uses:
            raise ValueError("preprocess.uses: is required")
        return self

    @property
    def staged(self) -> bool:
        """Whether the workers of the CPU stage score with it."""
        return self.placement == "staged"

    @property
    def called(self) -> str:
        """Its name."""
        return self.name
