"""`cost`: what machines take for an hour, by which a run says what it cost. It changes no output."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from nightjar.inference.job.sections import Resources, Section

_MOST = 1e9
"""The highest price that is no slip of the pen, in any currency."""


class Cost(Section):
    """cpu_hour, gpu_hour: the price of one for an hour. currency: of these prices, in letters, as USD."""

    cpu_hour: float = Field(default=0, ge=0, le=_MOST)
    gpu_hour: float = Field(default=0, ge=0, le=_MOST)
    currency: str = Field(default="", pattern="^[A-Za-z]{0,10}$")

    @model_validator(mode="after")
    def _asks(self) -> Self:
        if not self.cpu_hour and not self.gpu_hour:
            raise ValueError("give cpu_hour, gpu_hour or both")
        return self

    def of(self, resources: Resources, seconds: float) -> float:
        """What actors with these resources cost. seconds: for which they are held, all together."""
        return (resources.cpus * self.cpu_hour + resources.gpus * self.gpu_hour) * seconds / 3600
