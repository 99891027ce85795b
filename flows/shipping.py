"""What a run on another machine's Ray takes along."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import nightjar.flows
import nightjar.inference
from nightjar.inference.job import Job

_EXCLUDED = (".git/", ".venv/", "venv/", "__pycache__/", ".mypy_cache/", ".ruff_cache/", ".pytest_cache/")


def shipped(job: Job, env: dict[str, str], staging: Path) -> dict[str, Any]:
    """What other machines need: this package and the job's folder, without its data."""
    package = staging / "nightjar"
    for module in (nightjar.flows, nightjar.inference):
        assert module.__file__ is not None
        source = Path(module.__file__).parent
        shutil.copytree(source, package / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return {
        "env_vars": env,
        "py_modules": [str(package)],
        "working_dir": job.folder,
        "excludes": [*_EXCLUDED, *_inside(job)],
    }


def _inside(job: Job) -> list[str]:
    """The job's input and output, where they lie in its folder: data is read where it is, never shipped."""
    found = []
    for place in job.places:
        relative = os.path.relpath(place, job.folder)
        if not relative.startswith("..") and relative != ".":
            found.append("/" + relative)
    return found
