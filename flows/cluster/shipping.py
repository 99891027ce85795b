"""What a run on another machine's Ray takes along."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import nightjar.flows
import nightjar.inference


def shipped(env: dict[str, str], staging: Path) -> dict[str, Any]:
    """What other machines need: this package. The job's code travels with the run, as a snapshot."""
    package = staging / "nightjar"
    for module in (nightjar.flows, nightjar.inference):
        assert module.__file__ is not None
        source = Path(module.__file__).parent
        shutil.copytree(source, package / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return {"env_vars": env, "py_modules": [str(package)]}
