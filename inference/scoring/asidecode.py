"""The user's code that does not score, in a process of its own: functions that judge a night, and accumulators.

It is as it was when the run began.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pydantic import SecretStr

from nightjar.inference.identity.identity import ScoringSet
from nightjar.inference.identity.unpacking import place_code
from nightjar.inference.job.model import Job
from nightjar.inference.messages import hide
from nightjar.inference.scoring.assignment import enter_copy


class OfRun(Protocol):
    """What is asked of a run here; fields as of a `RunRequest` and of a `WorkerSpec`."""

    @property
    def job(self) -> Job: ...

    @property
    def scoring(self) -> ScoringSet: ...

    @property
    def cache(self) -> str: ...

    @property
    def environment(self) -> Mapping[str, SecretStr]: ...


def enter(run: OfRun) -> Job:
    """Set the run's variables and switch to a copy of the code that the run began with. Returns the job there."""
    variables = run.job.resources.runtime_env
    hide(value.get_secret_value() for name, value in run.environment.items() if variables.secret(name))
    os.environ.update({name: value.get_secret_value() for name, value in run.environment.items()})
    whole = run.scoring.checks if not run.job.modules() else run.scoring.code
    return enter_copy(run.job, whole, Path(run.cache))[0]


def aside_folder(run: OfRun, job: Job) -> Path:
    """Where the job's own checks and accumulators lie: in a copy of their own, which becomes the working directory."""
    if not run.job.modules() or not run.scoring.checks.files:
        return Path(job.folder)
    folder = place_code(run.scoring.checks, Path(run.cache))[0]
    os.chdir(folder)
    return Path(folder)
