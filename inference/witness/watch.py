"""The watch over a process: Python's audit hook, a last finder of modules, and the process's mapped files.

An audit hook cannot be removed. Hook and finder are installed once, and do nothing while nobody watches.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nightjar.inference.errors import OutsideIdentity
from nightjar.inference.witness import constants
from nightjar.inference.witness.events import CALLS, FILES, LISTS, PATH_AT
from nightjar.inference.witness.notes import Notes
from nightjar.inference.witness.places import is_installed
from nightjar.inference.witness.records import UNSURE, Seen, sentences

_EVENTS = {**FILES, **CALLS}

_notes: Notes | None = None
_installed = False
_inside = threading.local()


def watch(
    home: str | os.PathLike[str],
    covered: Iterable[str] = (),
    live: str = "",
    whole: bool = False,
) -> Notes:
    """Begin to watch all threads of this process; an earlier watch ends. See `Notes`."""
    global _notes, _installed
    begun = Notes(os.fspath(home), covered, live, whole=whole)
    if not _installed:
        _installed = True
        sys.addaudithook(_hook)
        sys.meta_path.append(_NotFound)
    _notes = begun
    return begun


def unwatch() -> None:
    """End the watch. What was noticed stays."""
    global _notes
    _notes = None


def note_names(options: Iterable[Mapping[str, Any]]) -> None:
    """Note the files that the user's modules and the models' options name; nothing without a watch."""
    if _notes is not None:
        constants.note_names(_notes, options)


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


@contextmanager
def watching(home: str | os.PathLike[str], covered: Iterable[str] = (), live: str = "") -> Iterator[Notes]:
    """Watch what happens within this context."""
    notes = watch(home, covered, live)
    try:
        yield notes
    finally:
        unwatch()


class _NotFound:
    """The last finder of modules. Python asks it for a module that no other finder has found.

    The code may catch the `ImportError` and score without the module, and `importlib` raises no audit event for it.
    """

    @staticmethod
    def find_spec(module: str, path: Iterable[str] | None = None, target: object = None) -> None:
        """Note the module, if it lies beside the job. Finds nothing."""
        notes = _notes
        if notes is None or getattr(_inside, "busy", False):
            return
        _inside.busy = True
        try:
            if (cause := notes.cause(sys._getframe(1))) is not None:
                notes.lacks_module(module, sys.path if path is None else path, cause[0])
        except Exception:  # noqa: BLE001 (as in `_hook`)
            notes.failures += 1
        finally:
            _inside.busy = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    notes = _notes
    if notes is None or event not in _EVENTS or getattr(_inside, "busy", False):
        return
    if event in PATH_AT and is_installed(arguments[PATH_AT[event]]):
        return  # the import of a library causes thousands of these
    frame = sys._getframe(1)
    if event in LISTS and not notes.lists_itself(frame):
        return
    _inside.busy = True
    try:
        cause = notes.cause(frame)
        if cause is not None and (cause[1] or event in FILES):
            _EVENTS[event](notes, cause[0], *arguments)
    except Exception:  # noqa: BLE001 (an error here would stop the user's code)
        notes.failures += 1
    finally:
        _inside.busy = False
