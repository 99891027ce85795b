"""The section `preprocess:` of a job file: the user's own step before the model, and the CPU stage."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from nightjar.inference.job.sections import ActorRange, Section, as_tuple, once


class Preprocess(Section):
    """A function or class of the user's, batch → batch. The short form `prep:decode` is `{uses: "prep:decode"}`.

    uses: empty if there is no such step, and the section is only about a stage that scores some of several models.
    options: keywords for it. columns: those that it is given, in order; by default every column that is not carried and
    not the label. placement: `fused` in the model's actors, `staged` in CPU workers of its own, which hand
    over what they prepared, or `auto`, which measures both and chooses. cpus: of each such worker. workers: their
    number; by default as many as keep the model busy and the cluster has CPUs for.
    """

    uses: str = ""
    options: dict[str, Any] = Field(default={})
    columns: tuple[str, ...] | None = Field(default=None, min_length=1)
    placement: Literal["auto", "fused", "staged"] = "auto"
    cpus: float = Field(default=1, ge=0)
    workers: Annotated[int, Field(ge=1)] | ActorRange | None = None

    _listed = field_validator("columns", mode="before")(as_tuple)
    _once = field_validator("columns")(once)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"uses": value} if isinstance(value, str) else value

    @field_validator("uses")
    @classmethod
    def _callable(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.]+:\w+", value):
            raise ValueError(f'{value!r} must be "module:name" of a callable')
        return value

    @property
    def cores(self) -> int:
        """Whole CPUs of a worker, at least one; this is its number of computing threads."""
        return max(1, int(self.cpus))

    @property
    def min_workers(self) -> int:
        """Workers that must be placed for the stage to start."""
        return self.workers.min if isinstance(self.workers, ActorRange) else self.workers or 1

    @property
    def max_workers(self) -> int | None:
        """The most workers; None if the job leaves it open."""
        return self.workers.max if isinstance(self.workers, ActorRange) else self.workers
