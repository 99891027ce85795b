"""Translates Python's audit events into notes about files, libraries, addresses and programs."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nightjar.inference.witness.notes import Notes

_PROBES = {"ldconfig", "gcc", "g++", "cc", "c++", "ld", "objdump", "uname", "lscpu", "nvidia-smi", "ptxas", "file"}
"""Programs that libraries start to inspect the machine."""

_OWN_SOCKET = re.compile(r"(^\0|/pymp-[^/]+/)listener-")
"""The sockets of `multiprocessing`, by which a process and the processes that it starts exchange data."""

_resolved = threading.local()


def _opened(notes: Notes, by: str, path: Any, mode: Any, flags: Any) -> None:
    if isinstance(path, int):  # a file descriptor, noted when it was opened
        return
    writes = isinstance(flags, int) and flags & os.O_ACCMODE != os.O_RDONLY
    if writes:
        notes.places.made(path)
    if not writes or not flags & (os.O_TRUNC | os.O_EXCL | os.O_WRONLY):  # "a+" reads, too
        if by and isinstance(mode, str):  # Python's `open`; the path of `os.open` may be relative to a descriptor
            notes.lacks(path, by)
        notes.path("file", path, by)


def _listed(notes: Notes, by: str, path: Any) -> None:
    if by and not isinstance(path, int):
        notes.lists(path or ".", by)


def _made(notes: Notes, by: str, path: Any) -> None:
    notes.places.made(path)


def _moved(notes: Notes, by: str, source: Any, target: Any, *_: Any) -> None:
    notes.places.moved(source, target)


def _imported(notes: Notes, by: str, module: Any, file: Any, *_: Any) -> None:
    if file:
        notes.path("library", file, by)


def _loaded(notes: Notes, by: str, name: Any) -> None:
    # The system searches for a bare name; the mapped files tell which file it found.
    if isinstance(name, (str, bytes)) and b"/" in os.fsencode(name):
        notes.path("library", name, by)


def _asked_for(notes: Notes, by: str, host: Any, port: Any, *_: Any) -> None:
    """Note the host's name, which says more than the address of the connection that follows."""
    host = host.decode() if isinstance(host, bytes) else host
    if host and str(port).isdigit():
        _resolved.last = int(port), by
        notes.add("network", f"{host}:{port}", by)


def _connected(notes: Notes, by: str, socket: Any, address: Any) -> None:
    if not isinstance(address, tuple):
        if not _OWN_SOCKET.search(name := os.fsdecode(address)):
            notes.add("network", name, by)
    elif getattr(_resolved, "last", None) != (address[1], by):
        notes.add("network", f"{address[0]}:{address[1]}", by)


def _queried(notes: Notes, by: str, database: Any) -> None:
    name = os.fsdecode(database)
    if name.startswith("file:"):
        name = name.removeprefix("file:").partition("?")[0]
    if name and name != ":memory:":
        notes.path("database", name, by)


def _started(notes: Notes, by: str, program: Any, arguments: Any = (), *_: Any) -> None:
    """Note a program. Of its arguments only files are noted, because others may be secrets."""
    words = [arguments] if isinstance(arguments, (str, bytes)) else list(arguments or [program])
    text = [os.fsdecode(word) for word in words if isinstance(word, (str, bytes, os.PathLike))]
    pieces = [piece for word in text for piece in word.split()]
    if not pieces or Path(pieces[0]).name in _PROBES:
        return
    notes.add("program", pieces[0], by)
    for piece in pieces[1:]:
        if "/" in piece:
            notes.path("named", piece.rpartition("=")[2], by)


Handler = Callable[..., None]

FILES: dict[str, Handler] = {
    "open": _opened,
    "tempfile.mkstemp": _made,
    "tempfile.mkdtemp": _made,
    "os.mkdir": lambda notes, by, path, *_: _made(notes, by, path),
    "os.rename": _moved,
    "import": _imported,
    "os.listdir": _listed,
    "os.scandir": _listed,
    "ctypes.dlopen": _loaded,
}
"""Events about files. They are noted whoever causes them, because a library's thread may read for the predictor."""

LISTS = {"os.listdir", "os.scandir"}

PATH_AT = {"open": 0, "import": 1, "ctypes.dlopen": 0}
"""The index of the path in an event's arguments."""

CALLS: dict[str, Handler] = {
    "sqlite3.connect": _queried,
    "socket.connect": _connected,
    "socket.getaddrinfo": _asked_for,
    "subprocess.Popen": _started,
    "os.system": lambda notes, by, command: _started(notes, by, command, command),
    "os.posix_spawn": _started,
    "os.exec": _started,
}
"""Events that are noted only if the predictor causes them: Ray and threads of libraries have connections of their
own."""
