"""Yields items that a thread makes, with ticks in between, so that the caller can do other things."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from nightjar.inference.engine.protocol import TICK_S

T = TypeVar("T")

_AHEAD = 256
"""The most items that may wait to be taken."""

_CLOSING_S = 5.0
"""Seconds to wait for a thread that was told to stop."""


def streamed(make: Callable[[], Iterable[T]], *, ahead: int = _AHEAD) -> Generator[T | None, None, None]:
    """Yield the items of `make()`, which runs in a thread of its own, and None on a tick. Closing it ends the thread.

    Raises:
        Exception: The error that `make()` raised, after the items before it.
    """
    arrived: queue.Queue[tuple[T] | Exception | None] = queue.Queue(maxsize=ahead)
    closed = threading.Event()

    def consume() -> None:
        try:
            for item in make():
                arrived.put((item,))
                if closed.is_set():
                    return
            arrived.put(None)
        except Exception as error:  # noqa: BLE001 (raised again where the items are wanted)
            arrived.put(error)

    thread = threading.Thread(target=consume, daemon=True, name="nightjar-events")
    thread.start()
    try:
        while True:
            try:
                item = arrived.get(timeout=TICK_S)
            except queue.Empty:
                yield None
                continue
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item[0]
    finally:
        closed.set()
        while not arrived.empty():
            arrived.get_nowait()
        thread.join(_CLOSING_S)
