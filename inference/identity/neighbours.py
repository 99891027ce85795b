"""Finds what belongs to other jobs in a job's folder: their input, output and models."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nightjar.inference.errors import JobError
from nightjar.inference.identity.aliases import Aliases, upward
from nightjar.inference.input.everydate import EveryDate, EveryList, beside
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
    """The other jobs in a folder. with_models: whether models, as data and results always, belong to one job alone."""

    def __init__(self, folder: Path, jobs: Iterable[Path], with_models: bool) -> None:
        self._folder = str(folder)
        self._places: dict[str, str] = {}
        self._results: set[str] = set()
        self._among: list[tuple[Callable[[str], bool], str]] = []
        found = [(job, each) for job in jobs for each in _named(job) if with_models or each.section != "model"]
        self._aliases = Aliases(fixed(each.uri, job.parent) for job, each in found)
        self._above = self._aliases.above(self._folder)
        self._linked: dict[str, tuple[tuple[str, ...], Owned | None]] = {}
        for job, each in found:
            self._add(each, job)

    def owner(self, path: str) -> Owned | None:
        """The other job that a file or folder belongs to; None if no other job names it."""
        for place, job in self._places.items():
            if f"{path}/".startswith(f"{place}/"):
                return Owned(place, job)
        folder, _, name = path.rpartition("/")
        paths, linked = self._of(folder)
        if linked or (linked := self._of(path)[1] if os.path.islink(path) else None):  # noqa: PTH114 (for each file)
            return linked
        names = [f"{each}/{name}" for each in paths]
        return next((Owned(path, job) for takes, job in self._among if any(map(takes, names))), None)

    def _of(self, path: str) -> tuple[tuple[str, ...], Owned | None]:
        """The paths of a file or folder, and the other job to whose place a link or a mount leads on the way there."""
        if path not in self._linked:
            above = self._of(path.rpartition("/")[0])[1] if path.startswith(f"{self._folder}/") else None
            paths = self._aliases.of(path)
            self._linked[path] = paths, above or self._reached(path, paths)
        return self._linked[path]

    def _reached(self, path: str, paths: tuple[str, ...]) -> Owned | None:
        jobs = [self._places.get(each) for each in paths]
        jobs += [self._places[above] for each in paths for above in upward(each) if above in self._results]
        return next((Owned(path, job) for job in jobs if job), None)

    def _add(self, named: _Named, job: Path) -> None:
        place = fixed(named.uri, job.parent)
        with suppress(JobError, ValueError, RuntimeError):  # an error of the other job, reported when that job is used
            if place in self._above:
                # Data and results that lie among the code are known by the patterns of their names.
                if (named.section == "input" and _OPEN.search(named.uri)) or is_dated(named.uri):
                    every = EveryDate(absolute(named.uri, job.parent, pattern=True), ends=named.ends)
                    self._among.append((every.takes, str(job)))
            elif named.section != "output" or not os.path.isfile(place):  # noqa: PTH113 (text, as a location is)
                self._places |= dict.fromkeys((place, *(f"{place}{end}" for end in named.ends)), str(job))
                self._results |= {place} if named.section == "output" else set()
            if named.is_list:
                every_list = EveryList(absolute(named.uri, job.parent, pattern=True), named.kind, job.parent)
                self._among.append((every_list.takes, str(job)))


@dataclass(frozen=True)
class _Named:
    """A local location that a job file names.

    section: of the job file: `input`, `output` or `model`. uri: its text. kind: `input.format`. ends: of the files that
    belong to a file there. is_list: whether a list of further input lies there.
    """

    section: str
    uri: str
    kind: str = ""
    ends: tuple[str, ...] = ()
    is_list: bool = False


def is_job(path: str) -> bool:
    """Whether a file is a whole job file. Any other YAML may be what a predictor reads."""
    if not path.lower().endswith((".yaml", ".yml")):
        return False
    content = _parsed(Path(path))
    return set(content) >= _JOB_KEYS and any("uses" in model for model in _models(content))


def _models(content: dict[Any, Any]) -> list[dict[Any, Any]]:
    """The model of a job file, or its several models."""
    return _maps([content.get("model"), *_maps(content.get("models"))])


def _named(job: Path) -> Iterator[_Named]:
    """Each local location that a job file names."""
    content = _parsed(job)
    source, target = _section(content, "input"), _section(content, "output")
    kind = str(source.get("format") or "")
    tables = target.get("tables")
    found = [
        *(_Named("input", uri, kind, beside(kind)) for uri in _texts(source.get("uri"))),
        *(_Named("input", uri, kind, is_list=True) for uri in _texts(source.get("list"))),
        *(_Named("output", uri) for uri in _texts(target.get("uri"))),
        *(_Named("output", uri) for table in _maps(tables) for uri in _texts(list(table.values()))),
        *(_Named("model", uri) for model in _models(content) for uri in _texts(model.get("path"))),
    ]
    return (each for each in found if "://" not in each.uri.removeprefix("sqlite:///"))


def _section(content: dict[Any, Any], key: str) -> dict[Any, Any]:
    found = content.get(key)
    return found if isinstance(found, dict) else {}


def _maps(given: Any) -> list[dict[Any, Any]]:
    """The maps of a list; none if it is none."""
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []


def _texts(given: Any) -> list[str]:
    """A text, or the texts of a list."""
    return [each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)]


def _parsed(path: Path) -> dict[Any, Any]:
    """The keys of a YAML file; empty if it is certainly not a job file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.stat().st_size <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
