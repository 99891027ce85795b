"""What is said of an identity: what a run is scored by, and what differs between two of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nightjar.inference.identity.identity import Identity, ScoringSet
from nightjar.inference.job.model import Job
from nightjar.inference.job.scoringkeys import counted_format
from nightjar.inference.yamlvalues import mapping

_FILES = 20
"""The most files of the code that have a line each."""

_SHOWN = 5


def described(job: Job, scoring: ScoringSet) -> list[str]:
    """Lines for people that say what the identity is made of, and why each file is code."""
    code = [f"{file.name} ({scoring.reasons.get(file.name, 'kept')})" for file in scoring.code.files]
    lines = [f"code: {each}" for each in code[:_FILES]]
    if len(code) > _FILES:
        lines.append(f"code: {summed(code[_FILES:])}")
    for each, taken in zip(job.each, scoring.models, strict=False):
        if taken.files:
            key = f"models.{each.model.called}.path" if each.model.called else "model.path"
            lines.append(f"{key}: {_listed([file.name or str(each.model.path) for file in taken.files])}")
    lines += map(_called, scoring.packages)
    for each in job.each:
        if each.model.version is not None:
            key = f"models.{each.model.called}.version" if each.model.called else "model.version"
            lines.append(f"{key}: {each.model.version}")
    if given := counted_format(job):
        lines.append(f"input.format: {given}")
    for snapshot in scoring.snapshots:
        lines += [
            f"{file.source}: too large to copy; it is read where it lies, and watched for changes"
            for file in snapshot.linked
        ]
    return lines


def _listed(names: list[str]) -> str:
    return f"{len(names)} {'file' if len(names) == 1 else 'files'} ({summed(names)})"


def differences(before: Identity, now: Identity) -> list[str]:
    """The differences in words, the most important first; empty if there are none."""
    found = [
        *_files("", before.code, now.code),
        *_files("model.path", before.model, now.model),
        *(
            f"{_called(name)} changed" if name in before.packages else f"{_called(name)} counts now, and did not before"
            for name, content in now.packages.items()
            if before.packages.get(name) != content
        ),
        *(f"{_called(name)} does not count any more" for name in before.packages if name not in now.packages),
        *_keys(_plain(before.job), _plain(now.job)),
    ]
    if _plain([before.columns, before.kept]) != _plain([now.columns, now.kept]) and not found:
        found.append("the columns of the input changed")
    return found


def _called(name: str) -> str:
    """A package, or a file or folder whose content counts like that of one."""
    return name if "/" in name else f"package {name}"


def _files(key: str, before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    prefix = f"{key} " if key else ""
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            what = "changed" if name in before and name in now else "is new" if name in now else "is gone"
            yield f"{prefix}{name}".strip() + f" {what}"


def _keys(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        inner_old, inner_new = mapping(old), mapping(new)
        if inner_old is not None and inner_new is not None:
            inner = list(_keys(inner_old, inner_new, f"{prefix}{key}."))
            yield from inner or ([f"{prefix}{key} has another order in the job"] if old != new else [])
        elif old != new:
            # The columns that a pattern names may have changed in the input.
            yield "the carried columns changed" if prefix + key == "carry" else f"{prefix}{key} changed in the job"


def summed(found: list[str]) -> str:
    """The first few items, and the number of the others, for one line."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _plain(value: Any) -> Any:
    """The value as it comes back from storage, where tuples are lists."""
    return json.loads(json.dumps(value))
