"""Folders that Nightjar, Prefect and Ray write for themselves on this machine. They never score.

They can be inside the job's folder if that is the home folder, as in many containers, or a temporary one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "nightjar"

_TEMPORARY = ("njray-", "nightjar-")
"""Beginnings of the names of Nightjar's folders in the folder for temporary files."""

FileId = tuple[int, int]
"""Device and inode, because a folder can have several names."""


def file_id(found: os.stat_result) -> FileId:
    """Device and inode of a file."""
    return found.st_dev, found.st_ino


class OwnState:
    """The folders of Nightjar, Prefect and Ray that exist now."""

    def __init__(self) -> None:
        prefect = os.environ.get("PREFECT_HOME") or "~/.prefect"
        self._folders = _found([str(CACHE), prefect, "~/.ray"])
        self._temporary = _found([tempfile.gettempdir(), os.environ.get("RAY_TMPDIR", ""), "/tmp"])

    def has(self, folder: FileId, entry: os.DirEntry[str]) -> bool:
        """Whether an entry of a folder is one of them."""
        if folder in self._temporary and (entry.name == "ray" or entry.name.startswith(_TEMPORARY)):
            return True
        with suppress(OSError):  # it is gone
            return file_id(entry.stat()) in self._folders
        return False


def _found(paths: Iterable[str]) -> frozenset[FileId]:
    """The paths that exist."""
    found = set()
    for path in filter(None, paths):
        with suppress(OSError):
            found.add(file_id(os.stat(os.path.expanduser(path))))  # noqa: PTH111, PTH116 (Path raises without a home folder)
    return frozenset(found)
