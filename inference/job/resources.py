"""The sections `resources` and `cost`: the actors, their environment, and what machines cost."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from nightjar.inference.errors import JobError
from nightjar.inference.job.sections import Section, form


class ActorRange(Section):
    """An actor pool that grows and shrinks between two sizes."""

    min: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> ActorRange:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


class RuntimeEnv(Section):
    """What the scoring processes have besides what their nodes have installed.

    pip: requirements for Ray to install. env_vars: `${NAME}` is the variable's value where the run is begun.
    """

    pip: tuple[str, ...] = ()
    env_vars: dict[str, SecretStr] = Field(default={})

    @field_validator("env_vars")
    @classmethod
    def _settable(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} is no name of an environment variable")
            if name in _READ_AT_START:
                raise ValueError(
                    f"{name} is read when a process starts, and these are set before your code is imported; set it "
                    "where Ray is started"
                )
        return value

    def variables(self, environment: Mapping[str, str]) -> dict[str, SecretStr]:
        """The environment variables with their values. environment: for those whose values are taken from there.

        Raises:
            JobError: It lacks one of these. Names the key.
        """
        found = {}
        for name, value in self.env_vars.items():
            source = TAKEN.fullmatch(value.get_secret_value())
            if source and source[1] not in environment:
                raise JobError(
                    f"resources.runtime_env.env_vars.{name}: the environment variable {source[1]} is not set where "
                    "this command runs; set it, or write a value"
                )
            found[name] = SecretStr(environment[source[1]]) if source else value
        return found

    def secret(self, name: str) -> bool:
        """Whether the value of a variable is taken from an environment, so that nobody must see it."""
        return TAKEN.fullmatch(self.env_vars[name].get_secret_value()) is not None

    @property
    def counted(self) -> dict[str, str]:
        """The variables that count in the identity, with their values: those that the job file says."""
        return {name: value.get_secret_value() for name, value in self.env_vars.items() if not self.secret(name)}

    def identity(self) -> dict[str, Any]:
        """The part that can change an output; values from an environment are secrets, or differ by place."""
        own = self.counted
        digests = {name: hashlib.sha256(f"{name}={value}".encode()).hexdigest() for name, value in own.items()}
        named = {"pip": sorted(self.pip), "env_vars": dict(sorted(digests.items()))}
        return {key: value for key, value in named.items() if value}


TAKEN = re.compile(r"\$\{(\w+)\}")
"""A value that is taken from a variable of the environment."""

_READ_AT_START = {"PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "LD_PRELOAD"}
_READ_AT_START |= {"CUDA_VISIBLE_DEVICES"}
"""Variables that have no effect on a process that runs already, or that Ray sets."""


class Resources(Section):
    """The actor pool; everything but `actors` is per actor.

    memory_gb: in GiB. custom: amounts of resources that the cluster's owner or Ray has named. labels: of the nodes that
    will do.
    """

    actors: Annotated[
        Annotated[int, Field(ge=1)] | ActorRange, form("a number of actors, 1 or more, or {min: 1, max: 8}", ActorRange)
    ] = 2
    cpus: float = Field(default=1, ge=0)
    gpus: float = Field(default=0, ge=0)
    memory_gb: float | None = Field(default=None, gt=0)
    custom: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    labels: dict[str, str] = Field(default={})
    runtime_env: RuntimeEnv = RuntimeEnv()

    @field_validator("custom")
    @classmethod
    def _not_rays_own(cls, value: dict[str, float]) -> dict[str, float]:
        ours = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_gb"}
        for name in value:
            if name in ours:
                raise ValueError(f"{name!r} is a resource of Ray's own; write resources.{ours[name]}")
        return value

    @property
    def cores(self) -> int:
        """Whole CPUs of an actor, at least one; this is its number of computing threads."""
        return max(1, int(self.cpus))

    @property
    def prepares_ahead(self) -> bool:
        """Whether an actor prepares the next batch in a thread: not on a single core, which the model needs."""
        return self.gpus > 0 or self.cores > 1

    @property
    def min_actors(self) -> int:
        """Actors that must be placed for the work to start."""
        return self.actors.min if isinstance(self.actors, ActorRange) else self.actors

    @property
    def max_actors(self) -> int:
        """The most actors the pool may grow to."""
        return self.actors.max if isinstance(self.actors, ActorRange) else self.actors


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
