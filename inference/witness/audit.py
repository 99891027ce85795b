"""The watch over a process: Python's audit hook, and a last finder of modules.

An audit hook cannot be removed. Hook and finder are installed once, and do nothing while nobody watches.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from nightjar.inference.errors import OutsideIdentity
from nightjar.inference.records import Seen
from nightjar.inference.witness import literals
from nightjar.inference.witness.notes import Notes
from nightjar.inference.witness.places import is_installed
from nightjar.inference.witness.seen import UNSURE, sentences

_PROBES = {"ldconfig", "gcc", "g++", "cc", "c++", "ld", "objdump", "uname", "lscpu", "nvidia-smi", "ptxas", "file"}
"""Programs that libraries start to inspect the machine."""

_OWN_SOCKET = re.compile(r"(^\0|/pymp-[^/]+/)listener-")
"""The sockets of `multiprocessing`, by which a process and the processes that it starts exchange data."""

_notes: Notes | None = None
_installed = False
_thread = threading.local()
"""busy: whether this thread is taking a note. resolved: the port and line of the last host name that it looked up."""


def watch(notes: Notes | None) -> None:
    """Begin to watch all threads of this process; an earlier watch ends. notes: None to watch no more."""
    global _notes, _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_hook)
        sys.meta_path.append(_NotFound)
    _notes = notes


def note_names(options: Iterable[Mapping[str, Any]]) -> None:
    """Note the files that the user's modules and the models' options name; nothing without a watch."""
    if _notes is not None:
        literals.note_names(_notes, options)


def seen() -> tuple[Seen, ...]:
    """What was noticed since the watch began; empty without a watch."""
    return _notes.all() if _notes is not None else ()


def news() -> list[Seen]:
    """What was noticed and not reported yet."""
    return _notes.news() if _notes is not None else []


def lacking() -> list[str]:
    """One sentence for each file beside the job that the code looked for and that is not part of what scores."""
    return sentences(_notes.lacking(), most=3) if _notes is not None else []


def refuse(*, strict: bool) -> None:
    """Raise if the code lacks a file of the job's folder, or, in a strict job, if anything was noticed.

    Raises:
        OutsideIdentity: Something was noticed; the message lists it.
    """
    if found := lacking():
        raise OutsideIdentity("; ".join(found))
    if strict and (used := [each for each in seen() if each.kind not in UNSURE]):
        raise OutsideIdentity(f"identity: strict: {'; '.join(sentences(used, most=3))}")


# ---- the events ---------------------------------------------------------------------------------------------


def _opened(notes: Notes, by: str, path: Any, mode: Any, flags: Any) -> None:
    # A file descriptor was noted when it was opened; a name with a null byte cannot be opened.
    if isinstance(path, int) or "\0" in os.fsdecode(path):
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


def _made(notes: Notes, by: str, path: Any, *_: Any) -> None:
    notes.places.made(path)


def _moved(notes: Notes, by: str, source: Any, target: Any, *_: Any) -> None:
    notes.places.moved(source, target)


def _imported(notes: Notes, by: str, module: Any, file: Any, *_: Any) -> None:
    if file:
        notes.path("library", file, by)


def _loaded(notes: Notes, by: str, name: Any) -> None:
    if isinstance(name, (str, bytes)) and b"/" in os.fsencode(name):  # the system searches for a bare name
        notes.path("library", name, by)


def _looked_up(notes: Notes, by: str, host: Any, port: Any, *_: Any) -> None:
    """Note the host's name, which says more than the address of the connection that follows."""
    host = host.decode() if isinstance(host, bytes) else host
    if host and str(port).isdigit():
        _thread.resolved = int(port), by
        notes.add("network", f"{host}:{port}", by)


def _connected(notes: Notes, by: str, socket: Any, address: Any) -> None:
    if not isinstance(address, tuple):
        if not _OWN_SOCKET.search(name := os.fsdecode(address)):
            notes.add("network", name, by)
    elif getattr(_thread, "resolved", None) != (address[1], by):
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


def _not_found(notes: Notes, by: str, module: str, places: Iterable[str]) -> None:
    notes.lacks_module(module, places, by)


_LISTS = {"os.listdir", "os.scandir"}

_FILES: dict[str, Callable[..., None]] = {
    "open": _opened,
    "tempfile.mkstemp": _made,
    "tempfile.mkdtemp": _made,
    "os.mkdir": _made,
    "os.rename": _moved,
    "import": _imported,
    **dict.fromkeys(_LISTS, _listed),
    "ctypes.dlopen": _loaded,
    "find_spec": _not_found,
}
"""Events about files; `find_spec` is from `_NotFound`. They are noted whoever causes them, because a library's thread
may read for the predictor.
"""

_EVENTS: dict[str, Callable[..., None]] = {
    **_FILES,
    "sqlite3.connect": _queried,
    "socket.connect": _connected,
    "socket.getaddrinfo": _looked_up,
    "subprocess.Popen": _started,
    "os.system": lambda notes, by, command: _started(notes, by, command, command),
    "os.posix_spawn": _started,
    "os.exec": _started,
}
"""The other events are noted only if the predictor causes them: Ray and libraries have connections of their own."""

_PATH_AT = {"open": 0, "import": 1, "ctypes.dlopen": 0}
"""The index of the path in an event's arguments."""


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    notes = _notes
    if notes is None or event not in _EVENTS or getattr(_thread, "busy", False):
        return
    if event in _PATH_AT and is_installed(arguments[_PATH_AT[event]]):
        return  # the import of a library causes thousands of these
    frame = sys._getframe(1)
    if event in _LISTS and not notes.lists_itself(frame):
        return
    _thread.busy = True
    try:
        cause = notes.cause(frame)
        if cause is not None and (cause[1] or event in _FILES):
            _EVENTS[event](notes, cause[0], *arguments)
    except Exception:  # noqa: BLE001 (an error here would stop the user's code)
        notes.add("unnoted", event, "")
    finally:
        _thread.busy = False


class _NotFound:
    """The last finder of modules. Python asks it for a module that no other finder has found.

    The code may catch the `ImportError` and score without the module, and `importlib` raises no audit event for it.
    """

    @staticmethod
    def find_spec(module: str, path: Iterable[str] | None = None, target: object = None) -> None:
        """Note the module, if it lies beside the job. Finds nothing."""
        _hook("find_spec", (module, sys.path if path is None else path))
