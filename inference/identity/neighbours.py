"""Finds what belongs to other jobs in a job's folder: their input, output and models."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nightjar.inference.errors import JobError
from nightjar.inference.input.everydate import EveryDate, beside
from nightjar.inference.job.locations import absolute, fixed, is_dated
from nightjar.inference.job.yamlfile import MAX_BYTES

_JOB_KEYS = {"name", "input", "output"}

_OPEN = re.compile(r"[*?\[{]")


@dataclass(frozen=True)
class Owned:
    """A file or folder that belongs to another job, and that job's file."""

    place: str
    job: str


class Neighbours:
    """The other jobs in a folder.

    with_models: whether their models belong to them alone. Their data and results always do.
    """

    def __init__(self, folder: Path, jobs: Iterable[Path], with_models: bool) -> None:
        self._places: dict[str, str] = {}
        self._among: list[tuple[EveryDate, str]] = []
        keys = {"input": "uri", "output": "uri", **({"model": "path"} if with_models else {})}
        for job in jobs:
            for section, uri, ends in _locations(job, keys):
                place = fixed(uri, job.parent)
                if f"{folder}/".startswith(f"{place}/"):
                    self._add_open(section, uri, ends, job)
                elif section != "output" or not os.path.isfile(place):  # noqa: PTH113 (text, as a location is)
                    self._places |= dict.fromkeys((place, *(f"{place}{end}" for end in ends)), str(job))

    def owner(self, path: str) -> Owned | None:
        """The other job that a file or folder belongs to; None if no other job names it."""
        for place, job in self._places.items():
            if f"{path}/".startswith(f"{place}/"):
                return Owned(place, job)
        return next((Owned(path, job) for each, job in self._among if each.takes(path)), None)

    def _add_open(self, section: str, uri: str, ends: tuple[str, ...], job: Path) -> None:
        """Note data and results that lie among the code, by the patterns of their names."""
        with suppress(JobError, ValueError, RuntimeError):  # an error of the other job, reported when that job is used
            if (section == "input" and _OPEN.search(uri)) or (section == "output" and is_dated(uri)):
                self._among.append((EveryDate(absolute(uri, job.parent, pattern=True), ends=ends), str(job)))


def is_job(path: str) -> bool:
    """Whether a file is a whole job file. Any other YAML may be what a predictor reads."""
    if not path.lower().endswith((".yaml", ".yml")):
        return False
    content = _parsed(Path(path))
    return set(content) >= _JOB_KEYS and any("uses" in model for model in _models(content))


def _models(content: dict[Any, Any]) -> list[dict[Any, Any]]:
    """The model of a job file, or its several models."""
    several = content.get("models")
    given = [content.get("model"), *(several if isinstance(several, list) else [])]
    return [model for model in given if isinstance(model, dict)]


def _locations(job: Path, keys: dict[str, str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The section and text of each local location that a job file names, and the ends of files that belong to it."""
    content = _parsed(job)
    for section, key in keys.items():
        for given in _models(content) if section == "model" else [content.get(section)]:
            value = given.get(key) if isinstance(given, dict) else None
            ends = beside(str(given.get("format"))) if section == "input" and isinstance(given, dict) else ()
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, str) and "://" not in each.removeprefix("sqlite:///"):
                    yield section, each, ends


def _parsed(path: Path) -> dict[Any, Any]:
    """The keys of a YAML file; empty if it is certainly not a job file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.stat().st_size <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
