"""Files and folders that only this user may use: passwords, tokens, and what lies where everybody may write."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""The bits of a mode that let somebody else in."""


def private_folder(path: Path) -> Path:
    """The folder, made if there is none, and closed to others. Raises OSError if somebody else may have planted it."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not is_own(path):
        raise PermissionError(errno.EPERM, "not a folder of this user", str(path))
    path.chmod(0o700)
    return path


def private_text(path: Path, make: Callable[[], str]) -> str:
    """The text of a file. If there is none, or others could read it, it is made anew. Raises OSError."""
    if not is_own(path, stat.S_IFREG) or path.stat().st_mode & OTHERS:
        path.unlink(missing_ok=True)
        create_private(path, make())
    return path.read_text()


def create_private(path: Path, text: str) -> None:
    """Create the file atomically, unless another process does so now."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, made = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        with suppress(FileExistsError):
            os.link(made, path)
    finally:
        Path(made).unlink()


def is_own(path: Path, kind: int = stat.S_IFDIR) -> bool:
    """Whether there is such a file, of this kind and of this user; a link is of another kind."""
    with suppress(FileNotFoundError):
        found = path.lstat()
        return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.getuid()
    return False
