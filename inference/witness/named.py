"""Notes the files that the user's code names while it loads and scores, because reads by C code cannot be seen.

This makes each call of a Python function a little slower, so it is done only in preflight.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any
from urllib.parse import urlsplit

from nightjar.inference.witness.notes import Notes

_LONGEST = 1024
_ITEMS = 64
"""The number of values of a list or mapping that are inspected."""

_VALUES = 200_000
"""The number of values that are inspected in all, so that preflight ends."""

_STORES = re.compile(
    r"(s3a?|gs|gcs|az|abfss?|wasbs?|hf|hdfs|mongodb(\+srv)?|redis|postgres(ql)?(\+\w+)?|mysql(\+\w+)?)://"
)


class _Names:
    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._mine = _Mine(notes)
        self._known: set[str] = set()
        self._scanned: set[tuple[str, int, str]] = set()
        self._left = _VALUES

    def look(self, value: Any, by: str, depth: int = 2) -> None:
        """Note the existing files that a value names, and those that the values in it name."""
        self._left -= 1
        if self._left < 0:
            return
        if isinstance(value, (str, bytes)):
            self._text(value, by)
        elif isinstance(value, os.PathLike):
            try:
                named = os.fspath(value)
            except AttributeError:  # it is just being made, and has no path yet
                return
            self._text(named, by)
        elif depth and type(value) is dict:  # other mappings may compute their values
            self._each(list(value.values())[:_ITEMS], by, depth)
        elif depth and type(value) in {list, tuple, set, frozenset}:
            self._each(list(value)[:_ITEMS], by, depth)

    def _each(self, values: list[Any], by: str, depth: int) -> None:
        for value in values:
            self.look(value, by, depth - 1)

    def _text(self, value: str | bytes, by: str) -> None:
        text = os.fsdecode(value)
        if len(text) > _LONGEST or text in self._known or not ("/" in text or "." in text) or "\n" in text:
            return
        self._known.add(text)
        if _STORES.match(text):
            parts = urlsplit(text)
            # Without password and signature.
            self._notes.add("named", f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", by)
        elif "\0" not in text:
            self._notes.path("named", os.path.expanduser(text), by, folders=True)  # noqa: PTH111

    def tracer(self) -> Callable[[FrameType, str, Any], Any]:
        """The function for `sys.settrace`. It is called when a function begins, and when a chosen function returns."""
        mine, act = self._mine, self._act

        # Importing a large library calls a million functions, so this must be short.
        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            caller = frame.f_back
            if mine[frame.f_code.co_filename] or (caller is not None and mine[caller.f_code.co_filename]):
                return act(frame, event, arg, trace)
            return None

        return trace

    def _act(self, frame: FrameType, event: str, arg: Any, trace: Any) -> Any:
        own = self._mine[frame.f_code.co_filename]
        if self._left < 0 or self._notes.reads_input(frame if own else frame.f_back):
            return None
        frame.f_trace_lines = False
        try:
            if own:
                self._own(frame, event)
            elif frame.f_back is not None:
                given = [value for name, value in frame.f_locals.items() if name != "self"] if event == "call" else arg
                self.look(given, self._notes.line(frame.f_back))
        except Exception:  # noqa: BLE001 (an odd value of the user's; an error here would stop the user's code)
            self._notes.failures += 1
        return trace

    def _own(self, frame: FrameType, event: str) -> None:
        if event == "call":
            self._constants(frame.f_code, self._notes.line(frame))
        elif event == "return":
            self._variables(frame)

    def _variables(self, frame: FrameType) -> None:
        by = self._notes.line(frame)
        for name, value in list(frame.f_locals.items()):
            self.look(getattr(value, "__dict__", None) if name == "self" else value, by)

    def _constants(self, code: CodeType, by: str) -> None:
        key = code.co_filename, code.co_firstlineno, code.co_name
        if key not in self._scanned:
            self._scanned.add(key)
            self.look(code.co_consts, by)


class _Mine(dict[str, bool]):
    """Whether a source file is the user's."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def __missing__(self, file: str) -> bool:
        self[file] = self._notes.is_mine(file)
        return self[file]


def _importer(notes: Notes, trace: Any, original: Any) -> Any:
    """An `__import__` that does not trace modules that are not the user's: tracing their import would take seconds."""

    def importing(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if sys.gettrace() is not trace or level:
            return original(name, globals, locals, fromlist, level)
        # Without the trace already while it is looked whose the module is: what looks may import, too, as `pathlib` of
        # Python 3.12.3 does for each path, and would end here again.
        sys.settrace(None)
        try:
            if not notes.places.has_module(name):
                return original(name, globals, locals, fromlist, level)
        finally:
            sys.settrace(trace)
        return original(name, globals, locals, fromlist, level)

    return importing


@contextmanager
def naming(notes: Notes, options: Mapping[str, Any]) -> Iterator[None]:
    """Note what the user's code and the job's options name. Does nothing under a debugger, which uses the same hook."""
    names = _Names(notes)
    names.look(dict(options), "model.options")
    if sys.gettrace() is not None:
        yield
        return
    trace, original = names.tracer(), builtins.__import__
    builtins.__import__ = _importer(notes, trace, original)
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)
        builtins.__import__ = original
