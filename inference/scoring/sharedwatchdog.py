"""Watchdogs of several threads of one process.

A process has only one timer that ends it by force, so a watchdog that sets or stops the timer for itself would take it
from the others. Those of one `ByForce` share it: it is set for the one whose time is over first.
"""

from __future__ import annotations

import faulthandler
import math
import signal
import sys
import threading
import time
from types import TracebackType

from nightjar.inference.scoring.watchdog import Watchdog

_BY_FORCE = 1.2
"""The time until the process is ended by force, in multiples of `stall_s`; Python can be interrupted before."""


class ByForce:
    """Ends the process by force when the time of a step is over, with the stacks of all threads in its log.

    slack_s: the seconds by which the end may come too early. Setting the timer needs a new thread each time, so it is
    not set for every sign of progress.
    """

    def __init__(self, slack_s: float) -> None:
        self._slack_s = slack_s
        self._lock = threading.Lock()
        self._ends: dict[Watchdog, float] = {}
        self._set_to = math.inf

    def end_at(self, watchdog: Watchdog, at: float) -> None:
        """The time of this watchdog's step is over then, on the monotonic clock; infinity if it has no step."""
        with self._lock:
            self._ends.pop(watchdog, None)
            if at != math.inf:
                self._ends[watchdog] = at
            first = min(self._ends.values(), default=math.inf)
            if self._set_to <= first <= self._set_to + self._slack_s:
                return
            self._set_to = first
            if first == math.inf:
                faulthandler.cancel_dump_traceback_later()
                return
            log = sys.__stderr__ if sys.__stderr__ is not None else sys.stderr
            left = max(first - time.monotonic(), self._slack_s)
            faulthandler.dump_traceback_later(left, exit=True, file=log)


class SharedWatchdog(Watchdog):
    """As `Watchdog`, beside those of other threads. One thread at a time may be in its context."""

    def __init__(self, stall_s: float, by_force: ByForce) -> None:
        super().__init__(stall_s)
        self._end = by_force

    def calling(self) -> None:
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, self.stall_s)
        self._sign_at = time.monotonic()
        self._end.end_at(self, self._sign_at + self.stall_s * _BY_FORCE + 1)

    def __exit__(self, *given: type[BaseException] | BaseException | TracebackType | None) -> None:
        super().__exit__(*given)
        self._end.end_at(self, math.inf)
