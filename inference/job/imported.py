"""Which modules of this process were imported from a folder, as that of a job or of a run's copy of it."""

from __future__ import annotations

import os
import sys
from types import ModuleType

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
