"""What a run sends to a Ray on other machines."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import nightjar.flows
import nightjar.inference


def shipped(env: dict[str, str], staging: Path) -> dict[str, Any]:
    """The runtime environment for other machines: this package. The job's code is sent separately, as a snapshot."""
    package = staging / "nightjar"
    for module in (nightjar.flows, nightjar.inference):
        assert module.__file__ is not None
        source = Path(module.__file__).parent
        shutil.copytree(source, package / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return {"env_vars": env, "py_modules": [str(package)]}
