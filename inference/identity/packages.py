"""Installed packages as part of the identity, by version and content. None of them is imported."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import xxhash

from nightjar.inference.errors import JobError
from nightjar.inference.identity.ownstate import FileId, file_id
from nightjar.inference.messages import nearest

_READ_BYTES = 8 << 20
"""Larger files are hashed by xxh3, which is six times as fast as SHA-256; some compiled libraries have gigabytes."""

_NOTHING = hashlib.sha256().hexdigest()
"""The content of a package of which no file was found."""

_ENVIRONMENT = {"pyvenv.cfg", "conda-meta"}
"""Every virtual environment, whatever its name, contains one of these."""


def content_of(module: str, outside: str = "") -> str:
    """SHA-256 over the files of the installed package that holds a module; '' for the standard library.

    outside: the job's folder, which may be on this process's path. A package in it does not count as installed, unless
    it is in a virtual environment there.

    Raises:
        LookupError: There is no such package.
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return ""
    return _hash(_files(top, outside))


def files_of(module: str, outside: str = "") -> list[Path]:
    """The files whose content `content_of` includes; empty for a package that is not installed."""
    top = module.partition(".")[0]
    with suppress(LookupError):
        return [path for _, path in _files(top, outside)] if top not in sys.stdlib_module_names else []
    return []


def content_at(place: str) -> str:
    """SHA-256 over a file, or over all files of a folder."""
    return _hash(_at(place))


def files_at(place: str) -> list[Path]:
    """The files whose content `content_at` includes."""
    return [path for _, path in _at(place)]


def _at(place: str) -> Iterable[tuple[str, Path]]:
    path = Path(place)
    return _below(path) if path.is_dir() else [("", path)]


def _hash(files: Iterable[tuple[str, Path]]) -> str:
    """SHA-256 over names and contents."""
    digest = hashlib.sha256()
    for name, path in sorted(files):
        found = path.stat()
        stamp = found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
        content = path.read_bytes() if found.st_size <= _READ_BYTES else _large(path, stamp)
        digest.update(f"{name}\0{found.st_size}\0".encode(errors="surrogateescape") + content)
    return digest.hexdigest()


@lru_cache
def _large(path: Path, stamp: tuple[int, ...]) -> bytes:
    """A large file's hash. A process computes it again only if the file has changed."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.digest()


def is_installed(module: str, outside: str = "") -> bool:
    """Whether `content_of` knows a module's package. Reads none of its files."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    try:
        next(_files(top, outside), None)
    except LookupError:
        return False
    return True


def is_imported(name: str) -> bool:
    """Whether this process has imported an installed package, or a module of the distribution with this name."""
    return not sys.modules.keys().isdisjoint([name, *_modules_of(name)])


def places_of(module: str) -> list[str]:
    """The paths of an installed module's package: its folders, or its file."""
    spec = _spec(module.partition(".")[0])
    if spec is None:
        return []
    return list(spec.submodule_search_locations or filter(None, [spec.origin]))


def of_distribution(name: str) -> str:
    """A distribution's version and a hash of its packages' content.

    Raises:
        JobError: It is not installed, or none of its files is found. Names `identity.packages`.
    """
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        known = {each.name for each in metadata.distributions() if each.name}
        raise JobError(
            f"identity.packages: {name!r} is not installed" + (nearest(name, known) or "; install it, or remove it")
        ) from None
    installed = metadata.distribution(name)
    contents = {top: _known(top) for top in _modules_of(name)}
    digest = hashlib.sha256("".join(f"{top}\0{content}\0" for top, content in contents.items()).encode())
    try:
        linked = [_hash(_importable(place)) for place in _linked_folders(installed)]
    except OSError as error:
        raise JobError(f"identity.packages: {name!r} cannot be read: {error}") from error
    editable = editable_folder(installed)
    # In an editable installation a name that begins with an underscore belongs to a loader, and is none of its modules.
    found = {content for top, content in contents.items() if not (editable and top.startswith("_"))}
    if found.union(linked) <= {"", _NOTHING}:
        what = (
            "is an editable installation that does not tell where its modules are; install it without --editable"
            if editable
            else "has no modules, so its content would not count; name the package that has them, or remove it"
        )
        raise JobError(f"identity.packages: {name!r} {what}")
    digest.update("".join(f"{content}\0" for content in linked).encode())
    return f"{version} {digest.hexdigest()}"


def files_of_distribution(name: str) -> list[Path]:
    """The files whose content `of_distribution` includes; empty for a distribution that it refuses."""
    with suppress(metadata.PackageNotFoundError, OSError):
        linked = [path for place in _linked_folders(metadata.distribution(name)) for _, path in _importable(place)]
        return [path for top in _modules_of(name) for path in files_of(top)] + linked
    return []


def _modules_of(name: str) -> list[str]:
    """A distribution's top-level modules."""
    wanted = _normalized(name)
    return sorted(
        top for top, owners in metadata.packages_distributions().items() if wanted in map(_normalized, owners)
    )


def _normalized(name: str) -> str:
    """The one spelling of a distribution's name: `importlib.metadata` finds it by any."""
    return re.sub(r"[-_.]+", "-", name).lower()


def editable_folder(distribution: metadata.Distribution) -> str:
    """The folder of an editable installation, with a slash at its end; '' for any other installation."""
    return editable_in(distribution.read_text("direct_url.json") or "")


def editable_in(text: str) -> str:
    """The same, from the text of the installation's `direct_url.json`; '' where there is none."""
    try:
        origin = json.loads(text or "{}")
    except ValueError:
        return ""
    editable = isinstance(origin, dict) and (origin.get("dir_info") or {}).get("editable")
    return unquote(urlsplit(origin["url"]).path).rstrip("/") + "/" if editable else ""


def _linked_folders(distribution: metadata.Distribution) -> list[Path]:
    """Folders that a distribution adds to the path, as many editable installations do."""
    found = []
    for file in distribution.files or ():
        if file.suffix == ".pth":
            path = Path(str(file.locate()))
            with suppress(OSError, UnicodeDecodeError):
                lines = (path.parent / line.strip() for line in path.read_text().splitlines() if line.strip())
                found += [line for line in lines if line.is_dir()]
    return found


def _importable(folder: Path) -> Iterator[tuple[str, Path]]:
    """The modules of a folder, and all files of its packages. Other files there may be a run's output."""
    with os.scandir(folder) as items:
        entries = sorted(items, key=lambda item: item.name)
    names = {entry.name for entry in entries}
    if is_environment(names):
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.is_dir() and not entry.name.startswith(".") and entry.name != "__pycache__":
            if (path / "__init__.py").is_file():
                yield from ((f"{entry.name}/{name}", file) for name, file in _below(path))
            elif not entry.is_symlink():  # a link may lead back here
                yield from ((f"{entry.name}/{name}", file) for name, file in _importable(path))
        elif entry.name.endswith((".py", *EXTENSION_SUFFIXES)) and entry.is_file():
            yield entry.name, path


def _known(top: str) -> str:
    try:
        return content_of(top)
    except LookupError:  # its distribution lists it, but it is not a module: a script or a namespace
        return ""


def _spec(top: str) -> ModuleSpec | None:
    with suppress(ValueError):  # loaded by hand, without a spec
        return importlib.util.find_spec(top)
    return None


def _files(top: str, outside: str) -> Iterator[tuple[str, Path]]:
    spec = _spec(top)
    if spec is None:
        raise LookupError(top)
    if not spec.submodule_search_locations:
        path = Path(spec.origin or "")
        if _lies_in(path, outside):
            raise LookupError(top)
        if path.is_file():
            yield path.name, path
        return
    roots = [root for root in spec.submodule_search_locations if not _lies_in(Path(root), outside)]
    if not roots:
        raise LookupError(top)
    for root in roots:
        yield from _below(Path(root))


def _below(root: Path) -> Iterator[tuple[str, Path]]:
    """All files of a package's folder, also those that links lead to."""
    above: dict[str, frozenset[FileId]] = {}
    for folder, folders, files in os.walk(root, followlinks=True):
        around = above.pop(folder, frozenset())
        try:
            here = file_id(os.stat(folder))  # noqa: PTH116 (for each folder)
        except OSError:  # it is gone
            continue
        if here in around:  # a link leads back to it
            folders.clear()
            continue
        folders[:] = sorted(each for each in folders if each != "__pycache__")
        above |= {f"{folder}/{each}": around | {here} for each in folders}
        for file in files:
            path = Path(folder, file)
            if path.is_file():
                yield path.relative_to(root).as_posix(), path


def _lies_in(path: Path, folder: str) -> bool:
    return bool(folder) and path.absolute().is_relative_to(folder) and not in_environment(str(path), folder)


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
    """The folders of this Python and its packages."""
    paths = sysconfig.get_paths()
    installed = (paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    places = {*installed, *site.getsitepackages(), site.getusersitepackages(), sys.prefix, sys.base_prefix}
    return frozenset(map(os.path.abspath, places))


def importable_places(folder: str) -> list[str]:
    """Folders in the job's folder where modules are found: itself, and others on the path, as `src/`."""
    places = [""]
    for entry in sys.path:
        below = os.path.relpath(entry or ".", folder)
        if below != "." and not below.startswith(".."):
            places.append(below.replace(os.sep, "/") + "/")
    return places


def module_files(module: str) -> list[str]:
    """The relative file names that a module can have in a folder on the path; the files of its packages come first."""
    words = module.split(".")
    ends = ["/__init__.py", *(f"/__init__{end}" for end in EXTENSION_SUFFIXES), ".py", *EXTENSION_SUFFIXES, ".pyc"]
    return [
        "/".join(words[:depth]) + end
        for depth in range(1, len(words) + 1)
        for end in ends
        if depth == len(words) or end.startswith("/")
    ]
