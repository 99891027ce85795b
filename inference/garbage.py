"""How often Python looks for garbage while much is imported.

What is imported stays, but Python looks through it again and again while more comes: that is a sixth of the time that a
model's framework, Ray and Prefect take to import.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 100_000
"""The new objects after which Python looks for garbage among them, in place of 700 or 2,000: some 20 MB."""


def collect_seldom() -> None:
    """Look for garbage seldom in this process, in which no code of the user runs: what that leaves may be large."""
    gc.set_threshold(_MANY)


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
