"""Records which installed packages are loaded where a model scores, and their versions."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from itertools import pairwise
from pathlib import Path

from nightjar.inference.identity.packages import editable_folder

Versions = Mapping[str, str]
"""Distribution → its version; of an editable installation with a hash of its loaded files: "0.3 (editable 5f1c…)"."""

States = dict[str, tuple[str, ...]]
"""Distribution → the versions with which a run scored, in the order in which they came."""

_EDITABLE = " (editable "


def loaded_packages() -> dict[str, str]:
    """The distributions of which this process has imported a module."""
    loaded = {name.partition(".")[0] for name in sys.modules.copy()}
    owners = metadata.packages_distributions()
    names = {owner for top in loaded for owner in owners.get(top, ())}
    found: dict[str, str] = {}
    for each in metadata.distributions():  # a damaged installation must not stop the night
        with suppress(OSError, ValueError, KeyError, TypeError):
            folder = editable_folder(each)
            content = _content(folder) if folder else ""
            if each.name in names or content:
                found.setdefault(each.name, each.version + (f"{_EDITABLE}{content})" if folder else ""))
    return dict(sorted(found.items()))


def installed_packages(before: Versions) -> dict[str, str]:
    """The same distributions as they are installed now, without loading them; without the editable ones, which are told
    by what is loaded.
    """
    found: dict[str, str] = {}
    for name, version in before.items():
        with suppress(metadata.PackageNotFoundError, OSError, ValueError, KeyError, TypeError):
            if _EDITABLE not in version:
                found[name] = metadata.version(name)
    return found


def added(states: States, now: Versions) -> States:
    """Add the present versions to the states, where they are not known."""
    found = dict(states)
    for name, version in now.items():
        if version not in (before := found.get(name, ())):
            found[name] = (*before, version)
    return found


def changes(states: States) -> list[str]:
    """One clause for each change: "numpy 2.4.6 → 2.5.0"."""
    return [f"{name} {old} → {new}" for name, each in sorted(states.items()) for old, new in pairwise(each)]


def _content(folder: str) -> str:
    """A hash of the loaded modules that lie in a folder; '' for none."""
    files = sorted(set(_loaded(folder)))
    digest = hashlib.sha256()
    for file in files:
        with suppress(OSError):
            digest.update(f"{file[len(folder) :]}\0".encode() + Path(file).read_bytes())
    return digest.hexdigest()[:12] if files else ""


def _loaded(folder: str) -> Iterator[str]:
    for module in sys.modules.copy().values():
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(folder) and "/site-packages/" not in file:
            yield file
