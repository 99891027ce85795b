"""How often Python looks for garbage while much is imported, and at the end of a command.

What is imported stays, but Python looks through it again and again while more comes: that is a sixth of the time that a
model's framework, Ray and Prefect take to import. It does so once more at the end, which takes another second.
"""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 100_000
"""The new objects after which Python looks for garbage among them, in place of 700 or 2,000: some 20 MB."""

_one_command = threading.Event()
"""Set while all objects of this process may stay to its end, because it is one command and none is the user's."""


def collect_seldom() -> None:
    """Look for garbage seldom in this process, in which no code of the user runs: what that leaves may be large."""
    gc.set_threshold(_MANY)


def kept_to_the_end() -> None:
    """This process is one command: at its end Python need not look through what it has imported."""
    _one_command.set()
    atexit.register(gc.freeze)


def users_code_begins() -> None:
    """From now on there may be objects of the user, which Python shall find at the end: an open file that is written
    then, say. Does nothing unless this process is one command; whatever else a process holds is not ours.
    """
    if _one_command.is_set():
        _one_command.clear()
        atexit.unregister(gc.freeze)
        gc.freeze()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for garbage seldom in this context; afterwards as often as before.

    Of two threads that are in it at once, the first one ends it, so that what it was before is not lost. A process that
    looks as seldom by itself, or never, goes on with that; and code that changes it meanwhile has the last word.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < _MANY:
        yield
        return
    collect_seldom()
    try:
        yield
    finally:
        if gc.get_threshold()[0] == _MANY:
            gc.set_threshold(*before)
