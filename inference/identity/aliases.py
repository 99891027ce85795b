"""The several paths of one file: a link or a mount leads to a folder that a job file names by another path."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from nightjar.inference.identity.ownstate import FileId, file_id


class Aliases:
    """Finds the paths by which a job may name a file. places: folders and files that the job names."""

    def __init__(self, places: Iterable[str] = ()) -> None:
        self._ids: dict[str, FileId | None] = {}
        self._places: dict[FileId, list[str]] = {}
        for place in places:
            self.add(place)

    def add(self, place: str) -> None:
        """A further place. One that does not exist, or is not on this machine, has no other path."""
        if (found := self._id(place)) is not None:
            self._places.setdefault(found, []).append(place)

    def of(self, path: str) -> tuple[str, ...]:
        """The paths of a file or folder: the given one, the one without links, and those that begin with a place."""
        real = os.path.realpath(path)
        return tuple(dict.fromkeys((path, real, *(place + real[len(above) :] for above, place in self._above(real)))))

    def above(self, folder: str) -> set[str]:
        """The paths of a folder, those of all folders above it, and the places that are one of them."""
        names = {above for name in self.of(folder) for above in upward(name)}
        return {"/", *names, *(place for _, place in self._above(os.path.realpath(folder)))}

    def _above(self, real: str) -> Iterator[tuple[str, str]]:
        for above in upward(real):
            if (found := self._id(above)) is not None:
                yield from ((above, place) for place in self._places.get(found, ()))

    def _id(self, path: str) -> FileId | None:
        if path not in self._ids:
            try:
                self._ids[path] = file_id(os.stat(path)) if path.startswith("/") else None  # noqa: PTH116 (for each file)
            except (OSError, ValueError):  # it does not exist, or its name is none
                self._ids[path] = None
        return self._ids[path]


def upward(path: str) -> Iterator[str]:
    """A path and the folders above it, without the root."""
    while path and path != "/":
        yield path
        path = path.rpartition("/")[0]
