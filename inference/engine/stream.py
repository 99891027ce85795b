"""What is made in a thread, handed on with a tick now and then, so that who waits can look after other things."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from nightjar.inference.engine.protocol import TICK_S

T = TypeVar("T")

_AHEAD = 256
"""So many items may wait to be taken."""

_CLOSING_S = 5.0
"""So long a thread is waited for that is to make no more."""


def streamed(make: Callable[[], Iterable[T]], *, ahead: int = _AHEAD) -> Generator[T | None, None, None]:
    """The items of `make()`, which runs in a thread of its own; None on a tick. Closing it ends the thread.

    Raises:
        Exception: whatever `make()` raised, once the items before it are taken.
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
