"""What was noticed in this process: each thing once, with the nearest line of the user's code."""

from __future__ import annotations

import linecache
import os
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from nightjar.inference.identity.code import MODULE_ENDS
from nightjar.inference.identity.packages import is_litter
from nightjar.inference.records import Seen
from nightjar.inference.witness.places import Places, source_of
from nightjar.inference.witness.seen import LACKING, Collection

_LONGEST = 400

_NIGHTJAR = str(Path(__file__).parents[1]) + "/"
_CALLS_THE_USER = tuple(_NIGHTJAR + name for name in ("job/finding.py", "predictors/user.py", "predictors/__init__.py"))
_ADAPTERS = _NIGHTJAR + "predictors/"
_WITNESS = str(Path(__file__).parent) + "/"
_LINES = linecache.updatecache.__code__.co_filename
_LISTING = {"os", "glob", "pathlib", "pkgutil", "importlib"}
"""Modules and packages that list a folder for their callers."""

_RAY = ("/ray/_private/", "/ray/data/", "/ray/util/")


class Notes:
    """Takes notes for one predictor. It is thread-safe."""

    def __init__(
        self, home: str, covered: Iterable[str] = (), live: str = "", beside: Iterable[str] = (), may_list: bool = False
    ) -> None:
        """home: the folder of the user's code. covered: files and folders of the identity. live: the job's own folder.

        beside: names of files that lay there when the run began, for a node that does not see the folder. may_list: the
        job itself says which further files of its folder are code, so its code may list folders there.
        """
        self.places = Places(home, covered)
        self._homes = (self.places.home, os.path.abspath(home) + "/")  # noqa: PTH100 (links are not resolved)
        self._live = os.path.realpath(live) + "/" if live else ""
        self._beside = _by_folder(beside)
        self._may_list = may_list
        self._seen = Collection()
        self._unreported: deque[Seen] = deque()

    def all(self) -> tuple[Seen, ...]:
        """Everything noticed so far."""
        found = self._seen.all()
        written = set(self.places.written)
        # A named folder says nothing more after a file in it was seen, or was written there.
        names = [*(seen.name for seen in found), *written]
        return tuple(
            seen
            for seen in found
            if not (seen.kind == "named" and seen.name in written)
            and not (seen.kind == "folder" and any(name.startswith(seen.name + "/") for name in names))
        )

    def lacking(self) -> list[Seen]:
        """What the copy of the job's folder lacks."""
        return [seen for seen in self._seen.all() if seen.kind in LACKING]

    def news(self) -> list[Seen]:
        """What was not reported before. Other threads may add notes, or take them, meanwhile."""
        found = list[Seen]()
        with suppress(IndexError):
            while True:
                found.append(self._unreported.popleft())
        return found

    def add(self, kind: str, name: str, by: str) -> None:
        """Keep a thing, if it is new."""
        name = name.encode(errors="backslashreplace").decode()[:_LONGEST]
        if (news := self._seen.add(Seen(kind, name, by))) is not None:
            self._unreported.append(news)

    def path(self, kind: str, path: str | bytes | os.PathLike[str], by: str) -> None:
        """Keep a file that nothing covers; a folder only if it is named."""
        name = self.places.uncovered(path, folders=kind == "named")
        if name is None:
            return
        name = source_of(name)
        if kind == "file" and name.endswith((".py", ".pyc")):
            kind = "module"
        if kind == "named" and Path(name).is_dir():
            kind = "folder"
        elif kind != "named" and self.is_live(name):
            kind = "live"
        self.add(kind, name, by)

    def is_live(self, path: str) -> bool:
        """Whether a path is in the job's folder, of which the run has a copy."""
        return bool(self._live) and os.path.realpath(path).startswith(self._live)

    def lacks(self, path: str | bytes | os.PathLike[str], by: str) -> None:
        """Keep a file of the job's folder that the code looks for and that is not in the copy."""
        name = self._in_copy(path)
        if not name or not self._live or "__pycache__" in name:  # Python looks for bytecode before it compiles a module
            return
        if not Path(self.places.home, name).exists() and self._lies_beside(name):
            self.add("absent", name, by)

    def _lies_beside(self, name: str) -> bool:
        folder, _, last = name.rpartition("/")
        return Path(self._live, name).exists() or last in self._beside.get(folder, ())

    def lacks_module(self, module: str, places: Iterable[str], by: str) -> None:
        """Keep a module of the job's folder that Python found nowhere. places: folders in which it searched."""
        last = module.rpartition(".")[2]
        for place in places:
            if self._in_copy(place) is not None:
                for end in MODULE_ENDS:
                    self.lacks(f"{place}/{last}{end}", by)
                    self.lacks(f"{place}/{last}/__init__{end}", by)

    def lists_itself(self, frame: FrameType | None) -> bool:
        """Whether the user's own line lists a folder, and no library (Python's import, say) does it for itself.

        `importlib.resources` lists a package without `__init__.py` to find one name in it: `joinpath` is no listing.
        """
        while frame is not None and (name := str(frame.f_globals.get("__name__"))).partition(".")[0] in _LISTING:
            if name.startswith("importlib._bootstrap") or frame.f_code.co_name == "joinpath":
                return False
            frame = frame.f_back
        return frame is not None and bool(self.line(frame))

    def lists(self, path: str | bytes | os.PathLike[str], by: str) -> None:
        """Keep a folder that the code lists, if more lies there beside the job than in the copy."""
        name = self._in_copy(path)
        if name is None or self._may_list or not self._live:
            return
        live, copy = (_entries(Path(top, name)) for top in (self._live, self.places.home))
        if not all(map(is_litter, (live or self._beside.get(name, set())) - copy)):
            self.add("listed", name or "the job's folder", by)

    def _in_copy(self, path: str | bytes | os.PathLike[str]) -> str | None:
        """The name of a file in the copy of the job's folder; '' for the folder itself, None for any other file."""
        place = os.path.realpath(os.fsdecode(path)) + "/"
        return place.removeprefix(self.places.home).rstrip("/") if place.startswith(self.places.home) else None

    def line(self, frame: FrameType) -> str:
        """ "predict.py:12" if the frame is the user's, else ''."""
        file = frame.f_code.co_filename
        if not file.startswith(self._homes):
            return ""
        return f"{file[len(max((home for home in self._homes if file.startswith(home)), key=len)) :]}:{frame.f_lineno}"

    def cause(self, frame: FrameType | None) -> tuple[str, bool] | None:
        """The user's line that led to this frame, and whether the predictor did; None for Nightjar, Ray or `linecache`.

        The result is ("", False) for an adapter, whose model may hold code of the user's, and for a library's own
        thread, which has neither the user's nor Nightjar's code on its stack.
        """
        while frame is not None:
            if line := self.line(frame):
                return line, True
            file = frame.f_code.co_filename
            if file == _LINES:
                return None
            if file.startswith(_CALLS_THE_USER):
                return "", True
            if file.startswith(_ADAPTERS):
                return "", False
            # Frames of the witness itself lie between the user's import and what it loads.
            if not file.startswith(_WITNESS) and (file.startswith(_NIGHTJAR) or any(part in file for part in _RAY)):
                return None
            frame = frame.f_back
        return "", False


def _by_folder(names: Iterable[str]) -> dict[str, set[str]]:
    """The names in each folder. names: of files in all of them."""
    found: dict[str, set[str]] = {}
    for name in names:
        while name:
            name, _, last = name.rpartition("/")
            found.setdefault(name, set()).add(last)
    return found


def _entries(folder: Path) -> set[str]:
    """Names in a folder; none if there is no such folder."""
    with suppress(OSError):
        return {each.name for each in folder.iterdir()}
    return set()
