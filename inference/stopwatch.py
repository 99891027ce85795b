"""A stopwatch with laps: each second of a thread counts for exactly one of the things that it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Says what the seconds of one thread were spent on. They add up to the time that has passed, whatever is done
    within what.
    """

    def __init__(self, doing: str, since: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """doing: what the thread does now. since: when that began, by this clock; default: now."""
        self._clock = clock
        self._doing, self._since = doing, clock() if since is None else since
        self._spent: dict[str, float] = {}

    def turn_to(self, doing: str) -> str:
        """The thread does this from here on. Returns what it did before."""
        now, before = self._clock(), self._doing
        self._spent[before] = self._spent.get(before, 0.0) + now - self._since
        self._doing, self._since = doing, now
        return before

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """The thread does this within the block."""
        before = self.turn_to(doing)
        try:
            yield
        finally:
            self.turn_to(before)

    def count_as(self, other: str, doing: str) -> None:
        """What was spent on `doing` until now counts for `other`."""
        self.turn_to(self._doing)
        self._spent[other] = self._spent.get(other, 0.0) + self._spent.pop(doing, 0.0)

    def claim(self) -> dict[str, float]:
        """What was done since this was last asked → seconds, in the order in which it was first done."""
        self.turn_to(self._doing)
        spent, self._spent = self._spent, {}
        return spent
