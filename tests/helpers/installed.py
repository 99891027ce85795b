"""Nobody installs anything while tests run: what is read of this environment's packages is remembered.

Each night reads it in the process that scores, and the manifest's writer once more. Imported by the process that those
are forked off, this also imports what most nights use, and reads it all before the first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import metadata
from typing import Any

import pyarrow.dataset  # noqa: F401

import nightjar.inference.input.sources.parquet  # noqa: F401
from nightjar.inference.identity import packages
from nightjar.inference.predictors.adapter import frameworks


def _remembered(read: Callable[[metadata.Distribution], Any]) -> Callable[[metadata.Distribution], Any]:
    """The function, which reads once of each package of this environment. Others are a test's own, and may change."""

    @cache
    def of_environment(path: str) -> Any:
        return read(metadata.Distribution.at(path))

    def of(distribution: metadata.Distribution) -> Any:
        path = str(getattr(distribution, "_path", ""))
        return of_environment(path) if path.startswith(sys.prefix) else read(distribution)

    return of


packages.modules_of = _remembered(packages.modules_of)
packages.editable_folder = _remembered(packages.editable_folder)
metadata.PathDistribution.metadata = property(_remembered(metadata.Distribution.metadata.fget))  # type: ignore[assignment, attr-defined]
packages.loaded_packages()
list(frameworks())
