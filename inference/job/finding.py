"""Imports the user's own objects, and lists which modules of this process come from a folder."""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
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
    """Unload packages and modules of other folders that have the names of modules of this one."""
    names = {path.name.removesuffix(".py") for path in folder.iterdir()} - set(sys.stdlib_module_names) - {"__main__"}
    for name, module in sys.modules.copy().items():
        top, file = name.partition(".")[0], getattr(module, "__file__", None)
        if top not in names or file is None:
            continue
        # Compiled modules have longer suffixes. A module of a nested folder is no module of this one.
        place, path = folder.joinpath(*name.split(".")), Path(file).absolute()
        if path.parent / path.name.partition(".")[0] in (place, place / "__init__"):
            continue
        # A package without `__init__.py` may be spread over several folders.
        ours = (
            folder / f"{top}.py",
            folder / top / "__init__.py",
            place.with_suffix(".py"),
        )
        if any(path.is_file() for path in ours):
            for each in [each for each in sys.modules if f"{each}.".startswith(f"{top}.")]:
                del sys.modules[each]


_OURS = {"__main__", "nightjar"}
"""Modules that stay imported, wherever they are: the job's folder may be that of the program that runs it."""


def modules_in(folder: str) -> dict[str, ModuleType]:
    """The modules that were read from a folder, without packages that are installed below it.

    A package without `__init__.py` has no file, and would keep its modules: it counts by its folders.
    """
    base = os.path.realpath(folder).rstrip("/") + "/"

    @cache  # a process has thousands of modules, and few folders
    def is_inside(place: str) -> bool:
        real = f"{os.path.realpath(place)}/"
        return real.startswith(base) and "site-packages" not in real[len(base) :]

    found = {}
    for name, module in sys.modules.copy().items():  # whole, because other threads import meanwhile
        file = getattr(module, "__file__", None)
        if file:
            its = [os.path.dirname(file)]  # noqa: PTH120 (pathlib takes ten times as long)
        else:
            # Of an object that only stands for a module any other attribute may be an error.
            its = [each for each in getattr(module, "__dict__", {}).get("__path__") or () if isinstance(each, str)]
        if any(map(is_inside, its)) and name.partition(".")[0] not in _OURS:
            found[name] = module
    return found
