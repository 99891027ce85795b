"""Which releases of the installed packages scored: their versions, what was installed, and what was edited since."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from itertools import pairwise
from pathlib import Path
from typing import Any

from nightjar.inference.identity.packages import editable_folder

_HASHED_BYTES = 1 << 20
"""Larger files, and libraries, are compared by their size only: this is done before every night."""

_DAMAGED = (OSError, ValueError, TypeError, KeyError, csv.Error)

_FILES_MOST = 200
"""So many files of one package are kept by name."""


@dataclass(frozen=True, slots=True)
class Package:
    """One distribution of which something was loaded.

    installed: hash over what its installer says it wrote; '' when it does not say. edited: loaded files that are no
    more what was installed, by their hash. own: loaded files that its installer does not know, as in an editable
    installation, by theirs. read: data that was read, by its.
    """

    version: str
    installed: str = ""
    edited: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)


def loaded_packages(data: Iterable[str] = ()) -> dict[str, Package]:
    """By distribution: what is loaded in this process at this moment. Half a second with the largest of libraries.

    data: files that it has read, wherever they lie.
    """
    files = _loaded_files()
    tops = {name.partition(".")[0] for name in list(sys.modules)}
    found: dict[str, Package] = {}
    for each in distributions():
        installed = _Installed(each)
        # Whatever is damaged about how one was installed, it must not keep the night from beginning.
        with suppress(*_DAMAGED):
            if installed.may_hold(tops) and (package := _package(installed, files, data)):
                # The first one on the path is the one that Python imports from.
                found.setdefault(each.metadata["Name"] or "", package)
    return dict(sorted(found.items()))


def installed_packages(before: Mapping[str, Package]) -> dict[str, Package]:
    """The same packages as they are installed for this process, none of them loaded; without those that are not."""
    found: dict[str, Package] = {}
    for name, old in before.items():
        with suppress(PackageNotFoundError, *_DAMAGED):
            installed = _Installed(distribution(name))
            # Some images leave out what an installer wrote, tests mostly: what is gone was not loaded.
            wrote = {
                file: of
                for file, of in installed.record.items()
                if file.endswith(".py") and os.path.isfile(installed.root + file)  # noqa: PTH113
            }
            edited = [file for file, of in wrote.items() if not _is_as_installed(installed.root + file, *of)]
            own = {file: _hash((installed.source or installed.root) + file) for file in old.own}
            hashes = {file: _hash(installed.root + file) for file in edited[:_FILES_MOST]}
            read = {file: _content(installed.root + file) for file in old.read}
            found[name] = Package(installed.distribution.version, installed.digest, hashes, own, read)
    return found


def as_json(packages: Mapping[str, Package]) -> dict[str, dict[str, Any]]:
    """For the manifest; empty fields left out."""
    return {name: {key: value for key, value in asdict(p).items() if value} for name, p in packages.items()}


def from_json(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Package]:
    """The inverse of `as_json`; keys of a newer version are ignored."""
    known = Package.__dataclass_fields__
    return {name: Package(**{key: item[key] for key in item if key in known}) for name, item in found.items()}


def differences(before: Mapping[str, Package], now: Mapping[str, Package]) -> list[str]:
    """What differs, one clause a package: "numpy 2.4.6 → 2.5.0". Of what only one of them loaded nothing is said."""
    found = (_difference(name, before[name], now[name]) for name in sorted(before.keys() & now.keys()))
    return [clause for clause in found if clause]


States = dict[str, tuple[Package, ...]]
"""By distribution: each of the states in which it was loaded once, in the order in which they came."""


def added(states: States, now: Mapping[str, Package]) -> States:
    """These states and those of now, of which what differs in nothing from a known one adds its files to that."""
    found = dict(states)
    for name, package in now.items():
        before = found.get(name, ())
        same = [at for at, each in enumerate(before) if not _difference(name, each, package)]
        if not same:
            found[name] = (*before, package)
        else:
            at = same[-1]
            own, read = {**before[at].own, **package.own}, {**before[at].read, **package.read}
            found[name] = (*before[:at], replace(before[at], own=own, read=read), *before[at + 1 :])
    return found


def changes(states: States) -> list[str]:
    """From each state of a package to the next, a clause each."""
    return [_difference(name, *pair) for name, each in sorted(states.items()) for pair in pairwise(each)]


def states_as_json(states: States) -> dict[str, list[dict[str, Any]]]:
    """For the manifest."""
    return {name: [as_json({name: package})[name] for package in each] for name, each in states.items()}


def states_from_json(found: Mapping[str, Any]) -> States:
    """The inverse. Manifests of before have one state a package, in no list."""
    lists = {name: each if isinstance(each, list) else [each] for name, each in found.items()}
    return {name: tuple(from_json({name: state})[name] for state in each) for name, each in lists.items()}


def _difference(name: str, old: Package, new: Package) -> str:
    if old.version != new.version:
        return f"{name} {old.version} → {new.version}"
    if old.installed and new.installed and old.installed != new.installed:
        return f"{name} {new.version} is another build of the same version"
    if files := _changed(old, new):
        more = f" and {len(files) - 1} more files" if files[1:] else ""
        return f"{name} {new.version} was edited in place ({files[0]}{more})"
    return ""


def _changed(old: Package, new: Package) -> list[str]:
    """Files edited on one side only, or each time differently. An editable package's may simply not be loaded."""
    edited = [file for file in old.edited.keys() | new.edited.keys() if old.edited.get(file) != new.edited.get(file)]
    own = [file for file in old.own.keys() & new.own.keys() if old.own[file] != new.own[file]]
    read = [file for file in old.read.keys() & new.read.keys() if old.read[file] != new.read[file]]
    return sorted({*edited, *own, *read})


class _Installed:
    """What a distribution's installer wrote down."""

    def __init__(self, distribution: Distribution) -> None:
        self.root = os.path.abspath(str(distribution.locate_file(""))).rstrip("/") + "/"  # noqa: PTH100
        self.distribution = distribution

    @cached_property
    def record(self) -> dict[str, tuple[str, str]]:
        """Hash and size by path, of all files that have them and are no scripts and no notes of the installer's own."""
        rows = csv.reader((self.distribution.read_text("RECORD") or "").splitlines())
        return {
            row[0]: (row[1], row[2])
            for row in rows
            if len(row) == 3 and row[1] and not row[0].startswith("../") and ".dist-info/" not in row[0]
        }

    @property
    def digest(self) -> str:
        """Of all that it says."""
        lines = sorted(f"{name},{digest}" for name, (digest, _) in self.record.items())
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] if lines else ""

    @cached_property
    def source(self) -> str:
        """The folder of an editable installation; else ''."""
        return editable_folder(self.distribution)

    @cached_property
    def folders(self) -> set[str]:
        """Its top-level folders and files. The record of files is long; most say it in a few words, too."""
        names = (self.distribution.read_text("top_level.txt") or "").split()
        return {*names, *(f"{name}.py" for name in names)} or {path.partition("/")[0] for path in self.record}

    def may_hold(self, tops: set[str]) -> bool:
        """Whether one of these top-level modules can be its."""
        return bool(self.source) or not tops.isdisjoint(name.partition(".")[0] for name in self.folders)


def _loaded_files() -> list[str]:
    """Of modules, in the order of their import, each once."""
    found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return list(dict.fromkeys(file for file in found if isinstance(file, str) and os.path.isabs(file)))  # noqa: PTH117


def _package(installed: _Installed, files: list[str], data: Iterable[str]) -> Package | None:
    """What is loaded and read of a distribution; None for nothing."""
    edited: dict[str, str] = {}
    own: dict[str, str] = {}
    read = _read(installed, data)
    loaded = bool(read)
    for name, path in _theirs(installed, files):
        loaded = True
        wrote = installed.record.get(name)
        if wrote is None:
            own |= {name: _hash(path)} if len(own) < _FILES_MOST else {}
        elif not _is_as_installed(path, *wrote) and len(edited) < _FILES_MOST:
            edited[name] = _hash(path)
    if not loaded:
        return None
    return Package(installed.distribution.version, installed.digest, edited, own, read)


def _read(installed: _Installed, data: Iterable[str]) -> dict[str, str]:
    """Of the files that were read those that its installer wrote: others beside them are caches, mostly."""
    names = sorted(path.removeprefix(installed.root) for path in map(os.path.normpath, data))
    found = [name for name in names if name in installed.record]
    return {name: _content(installed.root + name) for name in found[:_FILES_MOST]}


def _theirs(installed: _Installed, files: list[str]) -> Iterator[tuple[str, str]]:
    """The loaded files that are the distribution's: by a name that does not depend on the machine, and the path."""
    for path in files:
        if path.startswith(installed.root):
            name = path.removeprefix(installed.root)
            # Some installers (of a Linux distribution, say) write no record: then the top-level names must do.
            if name in installed.record or (not installed.record and name.partition("/")[0] in installed.folders):
                yield name, path
        elif installed.source and path.startswith(installed.source):
            yield path.removeprefix(installed.source), path


def _is_as_installed(path: str, digest: str, size: str) -> bool:
    now = _size(path)
    if size.isdigit() and now != int(size):
        return False
    kind, _, wanted = digest.partition("=")
    if kind != "sha256" or not path.endswith(".py") or now > _HASHED_BYTES:
        return True
    return base64.urlsafe_b64encode(_digest(path, now)).rstrip(b"=").decode() == wanted


def _digest(path: str, size: int) -> bytes:
    """Of the content, but of a large file or a library of the size only."""
    if size <= _HASHED_BYTES and path.endswith(".py"):
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError), open(path, "rb") as file:  # noqa: PTH123
            return hashlib.sha256(file.read()).digest()
    return hashlib.sha256(str(size).encode()).digest()


def _content(path: str) -> str:
    """Of all of it, whatever its size: weights that a package brings along were just read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:  # as images of containers are stripped
        return ""


def _hash(path: str) -> str:
    return _digest(path, _size(path)).hex()[:16]


def _size(path: str) -> int:
    """Asked for tens of thousands of files: `Path` would take longer than the question."""
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:  # removed since it was loaded, or inside an archive
        return 0
