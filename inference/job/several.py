"""One of several models in a job file."""

from __future__ import annotations

import re

from pydantic import field_validator

from nightjar.inference.job.preprocess import Preprocess
from nightjar.inference.job.sections import Model


class NamedModel(Model):
    """One of several models. name: its outputs are the columns `<name>_<output>`.

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
    def called(self) -> str:
        """Its name."""
        return self.name
