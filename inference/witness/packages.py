"""Records which installed packages scored: their versions, what was installed, and which files were edited since."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email.parser import HeaderParser
from functools import cached_property
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from nightjar.inference.identity.packages import editable_in
from nightjar.inference.jsonform import SELDOM

_HASHED_BYTES = 1 << 20
"""Larger files, and libraries, are compared only by size, because this happens before every night."""

_DAMAGED = (OSError, ValueError, TypeError, KeyError, csv.Error)

_SETTLED_S = 2.0
"""A file that was changed less than this many seconds ago is hashed again next time: a file system's clock is coarse,
so that a second change may leave the file's times as they are."""

_FILES_MOST = 200
"""The most files of one package that are kept by name."""

_State = tuple[int, ...]
"""What tells whether a file is as it was: its inode, its size and its times."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Package:
    """One distribution of which files were loaded.

    installed: a hash of what its installer recorded; '' if it recorded nothing. The others map files to their hashes.
    edited: loaded files that differ from what was installed. own: loaded files that the installer does not know, as in
    an editable installation. read: data files that were read.
    """

    version: str
    installed: str = field(default="", metadata=SELDOM)
    edited: Mapping[str, str] = field(default_factory=dict, metadata=SELDOM)
    own: Mapping[str, str] = field(default_factory=dict, metadata=SELDOM)
    read: Mapping[str, str] = field(default_factory=dict, metadata=SELDOM)


def loaded_packages(data: Iterable[str] = ()) -> dict[str, Package]:
    """The packages loaded in this process, by distribution, in half a second at first. data: files that it has read."""
    files, data = _Loaded(), sorted(map(os.path.normpath, data))
    tops = {name.partition(".")[0] for name in sys.modules.copy()}
    found: dict[str, Package] = {}
    for each in distributions():
        installed = _Installed(each)
        # A package with a damaged installation must not stop the night.
        with suppress(*_DAMAGED):
            if installed.may_hold(tops) and (package := _package(installed, files, data)):
                # Python imports from the first one on the path.
                found.setdefault(installed.named[0] or "", package)
    return dict(sorted(found.items()))


def installed_packages(before: Mapping[str, Package]) -> dict[str, Package]:
    """The same packages as they are installed now, without loading them, and without those no longer installed."""
    found: dict[str, Package] = {}
    for name, old in before.items():
        with suppress(PackageNotFoundError, *_DAMAGED):
            installed = _Installed(distribution(name))
            # Some images remove installed files, mostly tests; a missing file was not loaded.
            wrote = (file for file in installed.record if file.endswith(".py"))
            edited = [file for file in wrote if installed.is_edited(file, if_there=True)]
            own = {file: _hash((installed.source or installed.root) + file) for file in old.own}
            hashes = {file: _hash(installed.root + file) for file in edited[:_FILES_MOST]}
            read = {file: _content(installed.root + file) for file in old.read}
            found[name] = Package(installed.named[1], installed.digest, hashes, own, read)
    return found


def differences(before: Mapping[str, Package], now: Mapping[str, Package]) -> list[str]:
    """The differences, one clause per package: "numpy 2.4.6 → 2.5.0". Packages in only one of the two are left out."""
    found = (_difference(name, before[name], now[name]) for name in sorted(before.keys() & now.keys()))
    return [clause for clause in found if clause]


States = dict[str, tuple[Package, ...]]
"""Distribution → the states in which it was loaded, in the order in which they came."""


def added(states: States, now: Mapping[str, Package]) -> States:
    """Add the present packages to the states. A package that equals a known state adds its files to that state."""
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
    """One clause for each change from one state of a package to the next."""
    return [_difference(name, *pair) for name, each in sorted(states.items()) for pair in pairwise(each)]


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
    """Files that are edited on one side only, or differently on both; of an editable package loaded ones only."""
    edited = [file for file in old.edited.keys() | new.edited.keys() if old.edited.get(file) != new.edited.get(file)]
    own = [file for file in old.own.keys() & new.own.keys() if old.own[file] != new.own[file]]
    read = [file for file in old.read.keys() & new.read.keys() if old.read[file] != new.read[file]]
    return sorted({*edited, *own, *read})


def installed_version(name: str) -> str:
    """The version of an installed package.

    `importlib.metadata` would parse the package's long description each time.

    Raises:
        PackageNotFoundError: It is not installed.
    """
    return _Installed(distribution(name)).named[1]


def _name_and_version(metadata: str) -> tuple[str, str] | None:
    """None if there is no text."""
    head = HeaderParser().parsestr(metadata.partition("\n\n")[0])
    return (head["Name"], head["Version"]) if metadata else None


def _top_level(text: str) -> set[str]:
    names = text.split()
    return {*names, *(f"{name}.py" for name in names)}


_made: dict[str, tuple[_State, Any]] = {}
"""Path → the state in which a file was read, and what was made of it."""


def _once(path: str, now: os.stat_result, make: Callable[[], _T]) -> _T:
    """What `make` makes of a file. It is made again when the file has changed."""
    state, found = _made.get(path, ((), None))
    if state == _state(now):
        kept: _T = found
        return kept
    made = make()
    if _settled(now):
        _made[path] = _state(now), made
    return made


def _made_of(distribution: Distribution, note: str, make: Callable[[str], _T]) -> _T:
    """What `make` makes of a note of the installer, '' if there is none."""
    folder = getattr(distribution, "_path", None)  # a distribution may also be in an archive, or made by a finder
    path = f"{folder}/{note}" if isinstance(folder, Path) else ""
    if not path:
        return make(distribution.read_text(note) or "")
    now = _stat(path)
    return make("") if now is None else _once(path, now, lambda: make(distribution.read_text(note) or ""))


class _Record:
    """What an installer recorded of a distribution's files."""

    def __init__(self, text: str) -> None:
        rows = list(csv.reader(text.splitlines()))
        self.place = next((row[0] for row in rows if row and row[0].endswith(".dist-info/RECORD")), "")
        self.files: Mapping[str, tuple[str, str]] = {
            row[0]: (row[1], row[2])
            for row in rows
            if len(row) == 3 and row[1] and not row[0].startswith("../") and ".dist-info/" not in row[0]
        }
        self.folders = {path.partition("/")[0] for path in self.files}

    @cached_property
    def digest(self) -> str:
        """A hash of all of it; '' if it is empty."""
        lines = sorted(f"{name},{digest}" for name, (digest, _) in self.files.items())
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] if lines else ""


class _Installed:
    """The records of a distribution's installer."""

    def __init__(self, distribution: Distribution) -> None:
        self.root = os.path.abspath(str(distribution.locate_file(""))).rstrip("/") + "/"  # noqa: PTH100
        self.distribution = distribution

    @cached_property
    def named(self) -> tuple[str, str]:
        """Name and version. `importlib.metadata` parses the long description below them, too, and for each of them."""
        if found := _made_of(self.distribution, "METADATA", _name_and_version):
            return found
        head = self.distribution.metadata
        return head["Name"], head["Version"]

    @cached_property
    def _recorded(self) -> _Record:
        return _made_of(self.distribution, "RECORD", _Record)

    @property
    def record(self) -> Mapping[str, tuple[str, str]]:
        """Path → hash and size, for files that have both, without scripts and the installer's own notes."""
        return self._recorded.files

    @property
    def digest(self) -> str:
        """A hash of the whole record."""
        return self._recorded.digest

    @cached_property
    def _recorded_at(self) -> int:
        """When the record was written, in nanoseconds, after all files; 0 if that is not known."""
        written = _stat(self.root + self._recorded.place) if self._recorded.place else None
        return written.st_mtime_ns if written else 0

    def is_edited(self, file: str, *, if_there: bool = False) -> bool:
        """Whether a file of the record is not as it was installed. if_there: one that was removed is not edited."""
        now = _stat(self.root + file)
        if now is None and if_there:
            return False
        # Every change sets this time, and no program can set it back. In a copied folder it is later; then the file is
        # read. An equal time may be later, too, because a file system's clock is coarse.
        if now is not None and now.st_ctime_ns < self._recorded_at:
            return False
        return not _is_as_installed(self.root + file, now, *self.record[file])

    @cached_property
    def source(self) -> str:
        """The folder of an editable installation; else ''."""
        return _made_of(self.distribution, "direct_url.json", editable_in)

    @cached_property
    def folders(self) -> set[str]:
        """Its top-level folders and files, from a shorter list than the record of all files if there is one."""
        return _made_of(self.distribution, "top_level.txt", _top_level) or self._recorded.folders

    def may_hold(self, tops: set[str]) -> bool:
        """Whether one of these top-level modules may belong to it."""
        return bool(self.source) or not tops.isdisjoint(name.partition(".")[0] for name in self.folders)


class _Loaded:
    """The files of the modules of this process, in the order of their import, each once. place: of each file in it."""

    def __init__(self) -> None:
        found = [getattr(module, "__file__", None) for module in sys.modules.copy().values()]
        absolute = [file for file in found if isinstance(file, str) and file.startswith("/")]
        self.place = {file: at for at, file in enumerate(dict.fromkeys(absolute))}
        self._below: dict[str, dict[str, str]] = {}

    def below(self, folder: str) -> dict[str, str]:
        """Those in a folder (with a slash at its end), by their names there. Most distributions share one folder."""
        if folder not in self._below:
            self._below[folder] = {file[len(folder) :]: file for file in self.place if file.startswith(folder)}
        return self._below[folder]


def _package(installed: _Installed, files: _Loaded, data: Sequence[str]) -> Package | None:
    """What is loaded and read of a distribution; None for nothing."""
    edited: dict[str, str] = {}
    own: dict[str, str] = {}
    read = _read(installed, data)
    loaded = bool(read)
    for name, path in _theirs(installed, files):
        loaded = True
        if name not in installed.record:
            own |= {name: _hash(path)} if len(own) < _FILES_MOST else {}
        elif len(edited) < _FILES_MOST and installed.is_edited(name):
            edited[name] = _hash(path)
    if not loaded:
        return None
    return Package(installed.named[1], installed.digest, edited, own, read)


def _read(installed: _Installed, data: Sequence[str]) -> dict[str, str]:
    """The read files that its installer wrote; other files beside them are mostly caches."""
    names = (path.removeprefix(installed.root) for path in data)
    found = sorted(name for name in names if name in installed.record)
    return {name: _content(installed.root + name) for name in found[:_FILES_MOST]}


def _theirs(installed: _Installed, files: _Loaded) -> Iterator[tuple[str, str]]:
    """The loaded files that are the distribution's: by a name that does not depend on the machine, and the path."""
    below = files.below(installed.root)
    if installed.record:
        # An intersection, because most files in the folder are of other distributions.
        found = ((name, below[name]) for name in below.keys() & installed.record.keys())
        yield from sorted(found, key=lambda each: files.place[each[1]])
    else:
        # Some installers (of a Linux distribution, say) write no record: then the top-level names must do.
        yield from ((name, path) for name, path in below.items() if name.partition("/")[0] in installed.folders)
    if installed.source:
        yield from ((n, p) for n, p in files.below(installed.source).items() if not p.startswith(installed.root))


def _is_as_installed(path: str, now: os.stat_result | None, digest: str, size: str) -> bool:
    if size.isdigit() and _size(now) != int(size):
        return False
    kind, _, wanted = digest.partition("=")
    if kind != "sha256" or not path.endswith(".py") or _size(now) > _HASHED_BYTES:
        return True
    return base64.urlsafe_b64encode(_digest(path, now)).rstrip(b"=").decode() == wanted


def _digest(path: str, now: os.stat_result | None) -> bytes:
    """A hash of the content; of a large file or a library, a hash of the size only."""
    if now is not None and now.st_size <= _HASHED_BYTES and path.endswith(".py"):
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return _once(path, now, lambda: hashlib.sha256(Path(path).read_bytes()).digest())
    return hashlib.sha256(str(_size(now)).encode()).digest()


def _content(path: str) -> str:
    """A hash of the whole content, whatever its size: such files, for example a package's weights, were just read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:  # removed from a container's image
        return ""


def _hash(path: str) -> str:
    return _digest(path, _stat(path)).hex()[:16]


def _stat(path: str) -> os.stat_result | None:
    """A file's size and times. `Path` would be too slow for tens of thousands of files."""
    try:
        return os.stat(path)  # noqa: PTH116
    except OSError:  # removed since it was loaded, or inside an archive
        return None


def _state(now: os.stat_result) -> _State:
    return now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def _settled(now: os.stat_result) -> bool:
    """Whether a further change would show in the file's times."""
    return time.time() - max(now.st_mtime, now.st_ctime) > _SETTLED_S


def _size(now: os.stat_result | None) -> int:
    return now.st_size if now else 0
