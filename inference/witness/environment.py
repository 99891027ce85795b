"""Notes who reads which environment variable, by a subclass of `os.environ`'s class."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

from nightjar.inference.witness.notes import EVERY, Notes

_PLUMBING = {"HOME", "PATH", "USER", "LOGNAME", "SHELL", "TMPDIR", "TEMP", "TMP", "LANG", "TERM", "PWD", "HOSTNAME"}
_SETTINGS = ("/pydantic_settings/", "/environs/", "/decouple.py", "/dotenv/", "/dynaconf/", "/environ/")
"""Libraries that read the environment for their callers."""

_STANDARD = (os.__file__, sys.modules["_collections_abc"].__file__ or "", "<frozen", __file__)
"""The files of `os.getenv`, `.get` and `.items`, which read for their callers."""

notes: Notes | None = None
"""Where reads are noted; None for nowhere."""


class _Environment(os._Environ):  # type: ignore[type-arg]
    """`os.environ` that notes which of the user's lines asks for which variable."""

    def __getitem__(self, key: Any) -> Any:
        _asked(key, sys._getframe(1))
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        _asked(EVERY, sys._getframe(1))
        return super().__iter__()

    def __setitem__(self, key: Any, value: Any) -> None:
        if notes is not None:
            notes.places.variables.add(_text(key))
        super().__setitem__(key, value)


def install() -> None:
    """Make `os.environ` note reads from now on. The object and its content stay the same for code that refers to it."""
    for environ in (os.environ, os.environb):
        if type(environ) is os._Environ:
            environ.__class__ = _Environment


def _asked(key: Any, frame: FrameType | None) -> None:
    """Note a read by the user's own code, or by a library of settings. Other libraries read for themselves."""
    if notes is None:
        return
    taking, settings = notes, False
    while frame is not None:
        file = frame.f_code.co_filename
        if line := taking.line(frame) or taking.places.line_of_package(frame):
            name = _text(key)
            if name not in _PLUMBING and name not in taking.places.variables and not taking.every(line):
                taking.add("environment", name, line)
            return
        if not file.startswith(_STANDARD):
            settings = settings or any(part in file for part in _SETTINGS)
            if not settings:
                return
        frame = frame.f_back


def _text(key: Any) -> str:
    return os.fsdecode(key) if isinstance(key, (str, bytes)) else repr(key)
