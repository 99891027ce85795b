"""Versions of objects: the times, the inode and more of a local file; the etag of an object in a bucket.

A table's file has a version of three fields with a space between them, see `of_table`. An etag has no space.
"""

from __future__ import annotations

import os

_LOCAL = 4
"""The number of fields in a local file's version."""


def local_version(found: os.stat_result) -> str:
    """A local file's version: modification and status-change times in ns; inode; links, permissions and owners.

    A copy may keep the size and the modification time. Nobody can set the status-change time.
    """
    links = f"{found.st_nlink}.{found.st_mode:o}.{found.st_uid}.{found.st_gid}"
    return f"{found.st_mtime_ns}+{found.st_ctime_ns}+{found.st_ino}+{links}"


def of_table(stored: str, content: str, snapshot: str) -> str:
    """The version of a table's file. stored: of the object. content: as `SnapshotFile`. snapshot: not compared."""
    return f"{stored} {content} {snapshot}"


def snapshot_of(version: str) -> str:
    """The snapshot of the table that a file was listed in; empty for a file of no table."""
    return version.partition(" ")[2].partition(" ")[2]


def same_version(now: str, then: str) -> bool:
    """Whether an object still has the version that an earlier command saw.

    For local files the times decide, in old ledgers the modification time; a new mount may have other inodes.
    """
    known = _fields(then)[:2]
    return _fields(now)[: len(known)] == known and _content(now) == _content(then)


def untouched(now: str, then: str) -> bool:
    """Whether nobody has written to an object, or replaced it, since this command saw that version.

    New links, permissions or owners of the same file change its status-change time, too, but are no reason to fail.
    """
    new, old = _fields(now), _fields(then)
    if len(old) < _LOCAL:  # an etag, or a version in the plan of an older release
        return new[0] == old[0]
    return new[0] == old[0] and (new[1] == old[1] or (new[2] == old[2] and new[3] != old[3]))


def _content(version: str) -> str:
    return version.partition(" ")[2].partition(" ")[0]


def _fields(version: str) -> list[str]:
    """The fields of an object's version; an etag is one field, whatever it contains."""
    stored = version.partition(" ")[0]
    if stored.startswith('"'):  # Azure puts quotes around an etag in one answer, and none in another
        return [stored.strip('"')]
    return stored.split("+") if stored[:1].isdecimal() else [stored]
