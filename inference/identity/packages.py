"""Installed packages: the versions that are part of the identity, and those that are loaded where a model scores.

A package that is worked on where it lies counts by content. None is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nightjar.inference.errors import JobError
from nightjar.inference.messages import INSTALLED, nearest

_ENVIRONMENT = {"pyvenv.cfg", "conda-meta"}
"""Every virtual environment, whatever its name, contains one of these."""


IsData = Callable[[str], bool]
"""Whether a file or folder is input or output of the job, or its model."""


def _is_none(_: str) -> bool:
    return False


@dataclass(frozen=True)
class Package:
    """What counts of an installed package, or of a file or folder.

    version: '' if it does not tell what is in it. files: those whose content counts, with their names.
    """

    version: str = ""
    files: tuple[tuple[str, Path], ...] = ()

    @property
    def content(self) -> str:
        """The version, and a SHA-256 over the names and contents of the files."""
        return " ".join(filter(None, [self.version, _hash(self.files) if self.files else ""]))


def package_of(module: str, outside: str = "", is_data: IsData = _is_none) -> Package:
    """The installed package that holds a module: its version, or its files if it is worked on, in an editable
    installation or anywhere on Python's path. Nothing counts of the standard library.

    outside: the job's folder, which may be on this process's path. A package in it does not count as installed, unless
    it is in a virtual environment there. is_data: of files and folders that do not count.

    Raises:
        LookupError: There is no such package.
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return Package()
    if not (roots := _roots(top, outside)):
        raise LookupError(top)
    if owners := _owners(top, roots):
        return Package(", ".join(f"{each} {metadata.version(each)}" for each in sorted(owners)))
    return Package(files=tuple(file for root in roots for file in _files(root, is_data)))


def is_installed(module: str, outside: str = "") -> bool:
    """Whether `package_of` knows a module's package."""
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or bool(_roots(top, outside))


def package_at(place: str) -> Package:
    """A file, or all files of a folder."""
    return Package(files=tuple(_files(Path(place))))


def distribution(name: str, is_data: IsData = _is_none) -> Package:
    """A distribution's version, and in an editable installation all modules and packages of its folder. is_data: as of
    `package_of`.

    Raises:
        JobError: It is not installed, or is an editable installation of a folder without modules. Names
            `identity.packages`.
    """
    try:
        installed = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        known = {each.name for each in metadata.distributions() if each.name}
        raise JobError(
            f"identity.packages: {name!r} is not installed" + (nearest(name, known) or "; install it, or remove it")
        ) from None
    files = tuple(_importable(Path(editable), is_data)) if (editable := editable_folder(installed)) else ()
    if editable and not files:
        raise JobError(
            f"identity.packages: {name!r} is an editable installation of {editable}, where no module lies; install it "
            "without --editable"
        )
    return Package(installed.version, files)


def editable_folder(distribution: metadata.Distribution) -> str:
    """The folder of an editable installation, with a slash at its end; '' for any other installation."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return ""
    editable = isinstance(origin, dict) and (origin.get("dir_info") or {}).get("editable")
    return unquote(urlsplit(origin["url"]).path).rstrip("/") + "/" if editable else ""


def modules_of(distribution: metadata.Distribution) -> set[str]:
    """A distribution's top-level modules.

    `metadata.packages_distributions` makes an object of each installed file, which takes half a second for all.
    """
    if named := distribution.read_text("top_level.txt"):
        return set(named.split())
    record = distribution.read_text("RECORD") or ""
    tops = {line.partition(",")[0].partition("/")[0] for line in record.splitlines()}
    return {name for top in tops if "." not in (name := inspect.getmodulename(top) or top)}


def _roots(top: str, outside: str) -> list[Path]:
    """The folders of a package, or the file of a module; none if there is no such package."""
    spec: ModuleSpec | None = None
    with suppress(ValueError):  # loaded by hand, without a spec
        spec = importlib.util.find_spec(top)
    found = [Path(each) for each in (spec.submodule_search_locations or [spec.origin or ""])] if spec else []
    return [each for each in found if not _lies_in(each, outside)]


def _owners(top: str, roots: list[Path]) -> set[str]:
    """The distributions whose versions tell what is in a package; none if it is worked on where it lies."""
    if not all(any(part in str(root) for part in INSTALLED) for root in roots):
        return set()
    return {each.name for each in metadata.distributions() if top in modules_of(each)}


def _hash(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(files):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{name}\0{content}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _files(root: Path, is_data: IsData = _is_none) -> Iterator[tuple[str, Path]]:
    """All files of a folder but litter and data, also those that links lead to, or the file itself."""
    if root.is_file():
        yield root.name, root
    if is_data(str(root)):
        is_data = _is_none  # code in a folder of data is code
    seen = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(each for each in folders if not is_litter(each) and not is_data(f"{folder}/{each}"))
        for path in (Path(folder, file) for file in files if not is_litter(file)):
            if path.is_file() and not is_data(str(path)):
                yield path.relative_to(root).as_posix(), path


def _importable(folder: Path, is_data: IsData) -> Iterator[tuple[str, Path]]:
    """The modules of a folder, and all files of its packages. Other files there may be a run's output."""
    if not folder.is_dir() or (folder / "__init__.py").is_file():
        yield from _files(folder, is_data)
        return
    with os.scandir(folder) as items:
        entries = sorted(items, key=lambda item: item.name)
    if is_environment(entry.name for entry in entries):
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.is_dir() and not entry.name.startswith(".") and entry.name != "__pycache__":
            if (path / "__init__.py").is_file() or not entry.is_symlink():  # any other link may lead back here
                yield from ((f"{entry.name}/{name}", file) for name, file in _importable(path, is_data))
        elif entry.name.endswith((".py", *EXTENSION_SUFFIXES)) and entry.is_file():
            yield entry.name, path


def _lies_in(path: Path, folder: str) -> bool:
    return bool(folder) and path.absolute().is_relative_to(folder) and not in_environment(str(path), folder)


def is_litter(name: str) -> bool:
    """Whether a file or folder is hidden, an editor's copy or bytecode: it is no part of a whole package or folder."""
    return name.startswith(".") or name.endswith("~") or name == "__pycache__"


def is_environment(names: Iterable[str]) -> bool:
    """Whether a folder with these names in it is a virtual environment."""
    return not _ENVIRONMENT.isdisjoint(names)


def in_environment(path: str, folder: str) -> bool:
    """Whether a path in a folder belongs to a Python installation in that folder, and so is not the folder's own code.

    Many people keep the virtual environment beside their code.
    """
    top = os.path.realpath(folder)
    place = os.path.abspath(path)  # noqa: PTH100 (links are not resolved: an environment may be linked to)
    while os.path.realpath(place) != top and place != "/":
        if place in _installations() or any(map(os.path.exists, (f"{place}/{name}" for name in _ENVIRONMENT))):
            return True
        place = os.path.dirname(place)  # noqa: PTH120 (text, as above)
    return False


@lru_cache(1)
def _installations() -> frozenset[str]:
    paths = sysconfig.get_paths()
    installed = (paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    places = {*installed, *site.getsitepackages(), site.getusersitepackages(), sys.prefix, sys.base_prefix}
    return frozenset(map(os.path.abspath, places))


# ---- what is loaded where a model scores ---------------------------------------------------------------------

Versions = Mapping[str, str]
"""Distribution → its version."""

States = dict[str, tuple[str, ...]]
"""Distribution → the versions that the preflights of a run have loaded, in the order in which they came."""


def loaded_packages() -> dict[str, str]:
    """The distributions of which this process has imported a module."""
    loaded = {name.partition(".")[0] for name in sys.modules.copy()}
    found: dict[str, str] = {}
    for each in metadata.distributions():  # a damaged installation must not stop the night
        with suppress(OSError, ValueError, KeyError, TypeError):
            folder = editable_folder(each)
            if _is_loaded(folder) if folder else not loaded.isdisjoint(modules_of(each)):
                about = each.metadata  # read and parsed anew each time
                found.setdefault(about["Name"], about["Version"])
    return dict(sorted(found.items()))


def installed_packages(names: Iterable[str]) -> dict[str, str]:
    """The distributions of these names that are installed now, without loading them."""
    found: dict[str, str] = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError, OSError, ValueError, KeyError, TypeError):
            if version := metadata.version(name):  # None of a damaged installation
                found[name] = version
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


def _is_loaded(folder: str) -> bool:
    files = (getattr(module, "__file__", None) for module in sys.modules.copy().values())
    return any(isinstance(file, str) and file.startswith(folder) and "/site-packages/" not in file for file in files)
