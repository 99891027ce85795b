"""The user's code that does not score, in a process of its own: functions that judge a night, and accumulators.

It is as it was when the run began.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pydantic import SecretStr

from nightjar.inference.identity.identity import ScoringSet
from nightjar.inference.identity.unpacking import place_code
from nightjar.inference.job.model import Job
from nightjar.inference.messages import clip, hide
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


def located(key: str, spec: str, error: BaseException, job: Job, folders: tuple[Path, ...]) -> str:
    """What the user's code raised, with its file and line. job: as its file is. folders: where the code lies here."""
    said = f"{key}: {spec} failed with {clip(f'{type(error).__name__}: {error}')}"
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    for file, line in reversed(frames):
        for folder in folders:
            if Path(file).is_relative_to(folder):
                return f"{said}, in {Path(job.folder, Path(file).relative_to(folder))}, line {line}"
    return said + (f", in {frames[-1][0]}, line {frames[-1][1]}" if frames else "")
