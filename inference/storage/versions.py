"""What tells one version of an object from another: of a local file its times and its inode, in a bucket its etag."""

from __future__ import annotations

import os

_LOCAL = 4
"""Fields of a local file's version."""


def local_version(found: os.stat_result) -> str:
    """A local file's: the times, in ns, of its last write and change; its inode; its links, permissions and owners.

    A copy may keep size and time of writing; the time of change is the system's own, and nobody can set it.
    """
    links = f"{found.st_nlink}.{found.st_mode:o}.{found.st_uid}.{found.st_gid}"
    return f"{found.st_mtime_ns}+{found.st_ctime_ns}+{found.st_ino}+{links}"


def same_version(now: str, then: str) -> bool:
    """Whether an object is of the version that an earlier command saw.

    Of local files the times decide, as far as they are known: old ledgers have the last write alone. Not the inode:
    a mounted file system may give out others when it is mounted again.
    """
    known = _fields(then)[:2]
    return _fields(now)[: len(known)] == known


def untouched(now: str, then: str) -> bool:
    """Whether nobody wrote to an object, or replaced it, since this command saw that version.

    New links, permissions or owners of the same file move the time of its change, too: those are no reason to fail.
    """
    new, old = _fields(now), _fields(then)
    if len(old) < _LOCAL:  # an etag, or what an older version planned
        return new[0] == old[0]
    return new[0] == old[0] and (new[1] == old[1] or (new[2] == old[2] and new[3] != old[3]))


def _fields(version: str) -> list[str]:
    """An etag is one, whatever is in it."""
    return version.split("+") if version[:1].isdecimal() else [version]
