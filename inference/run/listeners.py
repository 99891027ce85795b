"""The seam of the listeners: who is told of a run while it goes on. A listener knows nothing of how it is scored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from nightjar.inference.ledger.progress import Progress
from nightjar.inference.messages import clip
from nightjar.inference.records import Event

_log = logging.getLogger("nightjar")


class Listener(Protocol):
    """Who is told of a run. Called in the thread that drives it: what takes long belongs in a thread of its own."""

    def progress(self, progress: Progress) -> None:
        """How far the run is: when a step begins, and when the ledger has more than before.

        progress: the run's own, which goes on changing; a copy has to be taken of what is to be kept.
        """

    def events(self, events: Sequence[Event]) -> None:
        """What workers said, as it comes. A receipt among it is in the ledger only when `progress` counts it."""


class Listeners:
    """All who are told. One that raises costs nothing: it is said once, and that one is not told any more."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._told = list(listeners)

    def progress(self, progress: Progress) -> None:
        """As of `Listener`."""
        self._tell(lambda each: each.progress(progress))

    def events(self, events: Sequence[Event]) -> None:
        """As of `Listener`."""
        if events:
            self._tell(lambda each: each.events(events))

    def _tell(self, tell: Callable[[Listener], None]) -> None:
        for each in tuple(self._told):
            try:
                tell(each)
            except Exception as error:  # noqa: BLE001 (whatever it is, it must not cost the run)
                self._told.remove(each)
                said = f"{type(error).__name__}: {clip(str(error))}"
                _log.warning("the listener %s failed and is not told any more: %s", type(each).__name__, said)
