"""The seam of the listeners: they get a run's progress and events as they happen, and do not know the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from nightjar.inference.ledger.progress import Progress
from nightjar.inference.messages import clip
from nightjar.inference.records import Event

_log = logging.getLogger("nightjar")


class Listener(Protocol):
    """A listener to a run. It is called in the thread that drives the run, so slow work belongs in another thread."""

    def progress(self, progress: Progress) -> None:
        """Called when a step begins, and when the ledger has more than before.

        progress: the run's own object, which keeps changing; copy what you want to keep.
        """

    def events(self, events: Sequence[Event]) -> None:
        """Called with the workers' events as they come. A receipt is in the ledger only when `progress` counts it."""


class Listeners:
    """All listeners. If one raises, this is logged once, and it is not called any more; the run goes on."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._listeners = list(listeners)

    def progress(self, progress: Progress) -> None:
        """As of `Listener`."""
        self._tell(lambda each: each.progress(progress))

    def events(self, events: Sequence[Event]) -> None:
        """As of `Listener`."""
        if events:
            self._tell(lambda each: each.events(events))

    def _tell(self, tell: Callable[[Listener], None]) -> None:
        for each in tuple(self._listeners):
            try:
                tell(each)
            except Exception as error:  # noqa: BLE001 (whatever it is, it must not cost the run)
                self._listeners.remove(each)
                said = f"{type(error).__name__}: {clip(str(error))}"
                _log.warning("the listener %s failed and is not called any more: %s", type(each).__name__, said)
