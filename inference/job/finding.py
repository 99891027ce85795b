"""Imports the user's own objects, and lists which modules of this process come from a folder."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from nightjar.inference.errors import JobError, raised, traced
from nightjar.inference.job.model import Job
from nightjar.inference.messages import nearest


def folder_of(job: Job) -> Path:
    """The folder of the user's own modules: that of the job file."""
    return Path(job.folder or Path.cwd()).absolute()


def find(key: str, spec: str, folder: Path) -> Any:
    """Import the object that "module:Name" names. The folder is searched first, and stays on the path.

    Raises:
        JobError: There is no such module or name; or importing the module raised (the error is the cause).
    """
    name, _, attribute = spec.partition(":")
    module = _import(key, name, folder)
    try:
        return getattr(module, attribute)
    except AttributeError:
        known = {word for word in vars(module) if not word.startswith("_")}
        raise JobError(
            f"{key}: module {name!r} ({_place(module, folder)}) has no {attribute!r}" + nearest(attribute, known)
        ) from None


def _import(key: str, name: str, folder: Path) -> ModuleType:
    _put_first(folder)
    _forget_namesakes(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(key, name, error) from error
        raise JobError(f"{key}: there is no module {name!r} in {folder} or among the installed packages") from None
    except Exception as error:
        raise _broken(key, name, error) from error


def _broken(key: str, name: str, error: Exception) -> JobError:
    return traced(JobError(f"{key}: importing module {name!r} failed with {raised(error)}"), error)


def _place(module: ModuleType, folder: Path) -> str:
    """A module's file, relative to the folder if it lies there, because the folder may be a copy of the job's."""
    file = getattr(module, "__file__", None)
    if file is None:
        return "built in"
    return str(Path(file).relative_to(folder)) if Path(file).is_relative_to(folder) else file


def _put_first(folder: Path) -> None:
    path = str(folder)
    if not sys.path or sys.path[0] != path:
        sys.path[:] = [path, *(entry for entry in sys.path if entry != path)]
    importlib.invalidate_caches()


def _forget_namesakes(folder: Path) -> None:
    """Unload modules of another job that have the same names as modules of this folder."""
    ours = {path.stem: path for path in folder.glob("*.py")}
    ours |= {path.parent.name: path for path in folder.glob("*/__init__.py")}
    for top, path in ours.items():
        file = getattr(sys.modules.get(top), "__file__", None)
        if file is None or top == "__main__" or top in sys.stdlib_module_names or Path(file).absolute() == path:
            continue
        _forget(top)
    for top in _namesakes_without_init(folder):
        _forget(top)


def _forget(top: str) -> None:
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{top}.")]:
        del sys.modules[name]


def _namesakes_without_init(folder: Path) -> set[str]:
    """Packages without `__init__.py` of which a module is loaded from elsewhere, and has a namesake in this folder."""
    found = set()
    for name, module in sys.modules.copy().items():
        top, _, below = name.partition(".")
        file = getattr(module, "__file__", None)
        if not below or file is None or getattr(sys.modules.get(top), "__file__", None) is not None:
            continue
        ours = folder.joinpath(top, *below.split(".")).with_suffix(".py")
        if Path(file) != ours and ours.is_file():
            found.add(top)
    return found


_OURS = {"__main__", "nightjar"}
"""Modules that stay imported, wherever they are: the job's folder may be that of the program that runs it."""


def modules_in(folder: str) -> dict[str, ModuleType]:
    """The modules that were read from a folder, without packages that are installed below it.

    A package without `__init__.py` has no file, and would keep its modules: it counts by its folders.
    """
    base, found = os.path.realpath(folder).rstrip("/") + "/", {}
    places: dict[str, str] = {}
    inside: dict[str, bool] = {}  # asked once of each folder: a process has thousands of modules

    def is_inside(place: str) -> bool:
        if place not in inside:
            at = f"{_real(place, places)}/"
            inside[place] = at.startswith(base) and "site-packages" not in at[len(base) :]
        return inside[place]

    for name, module in sys.modules.copy().items():  # whole, because other threads import meanwhile
        file = getattr(module, "__file__", None)
        if file:
            its = [file.rpartition("/")[0] or os.path.dirname(file)]  # noqa: PTH120 (of "/a.py" it is the root)
        else:
            # Of an object that only stands for a module any other attribute may be an error.
            its = [each for each in getattr(module, "__dict__", {}).get("__path__") or () if isinstance(each, str)]
        if any(map(is_inside, its)) and name.partition(".")[0] not in _OURS:
            found[name] = module
    return found


def _real(folder: str, known: dict[str, str]) -> str:
    """As `os.path.realpath`, but a folder that many have in common is asked once. known: what was found so far."""
    if folder not in known:
        above, _, name = folder.rpartition("/")
        plain = folder.startswith("/") and above and name not in ("", ".", "..")
        at = f"{_real(above, known)}/{name}" if plain else ""
        known[folder] = at if at and not os.path.islink(at) else os.path.realpath(folder)  # noqa: PTH114 (as above)
    return known[folder]
