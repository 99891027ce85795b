"""Ends a step of a worker that makes no progress for too long.

First an exception is raised in the main thread, so that the worker can report what happened before its process ends. If
the step has another thread, the thread that waits for it looks at it, and reports. Code that never returns to Python
cannot be interrupted. Then the process is ended by force a little later, with its stack in the worker's log; to the run
this looks like any other death.
"""

from __future__ import annotations

import faulthandler
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from nightjar.inference.errors import ProcessSpoilt

_BY_FORCE = 1.2
"""The time until the process is ended by force, in multiples of the time until it is interrupted."""


class ByForce:
    """Ends the process by force when the time of a step is over, with the stacks of all threads in its log.

    A process has only one timer for that, so a watchdog that sets or stops it for itself would take it from the others.
    Those of several threads share it: it is set for the one whose time is over first.

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


class Watchdog:
    """A context in which at most `stall_s` seconds may pass between two signs of progress. One thread at a time may be
    in it.

    by_force: shared with the watchdogs of other threads of this process; None if there are none. behind: where
    another thread is that the one in this context waits for; None if it waits for none.

    Raises:
        ProcessSpoilt: Raised inside the code that hangs. The code was interrupted anywhere, so the process must end.
    """

    def __init__(self, stall_s: float, by_force: ByForce | None = None) -> None:
        self.stall_s = stall_s
        self._armed = False
        self._by_force = by_force or ByForce(stall_s / 20)
        self._before: Any = None
        self._sign_at = 0.0
        self._thread = 0
        self.behind: Callable[[], FrameType | None] = lambda: None

    def __enter__(self) -> Watchdog:
        # Python runs signal handlers only in its main thread; in other threads there is only the end by force.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGALRM, self._interrupt)
            signal.setitimer(signal.ITIMER_REAL, self.stall_s)
        self._thread, self._sign_at = threading.get_ident(), time.monotonic()
        self._armed = True
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._armed = False
        self._by_force.end_at(self, math.inf)
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
            self._before = None

    def calling(self) -> None:
        """Give a sign of progress before foreign code is called; the time begins again."""
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, self.stall_s)
        self._sign_at = time.monotonic()
        self._by_force.end_at(self, self._sign_at + self.stall_s * _BY_FORCE + 1)

    def look(self) -> None:
        """Look from another thread at the one in this context, which may be one that Python does not interrupt.

        Raises:
            ProcessSpoilt: It makes no progress. It is left as it is, and it is up to the caller to end the process.
        """
        if self._armed and time.monotonic() - self._sign_at > self.stall_s:
            self._by_force.end_at(self, math.inf)
            raise self.stalled(self.behind() or sys._current_frames().get(self._thread))

    def stalled(self, frame: FrameType | None = None) -> ProcessSpoilt:
        """What to raise for a step that hangs. frame: where it does."""
        return ProcessSpoilt("Stalled", f"no progress for retry.stall_s = {self.stall_s:g} s{_where(frame)}")

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        if not self._armed:  # the alarm came while the last step ended
            return
        raise self.stalled(self.behind() or frame)


def _where(frame: FrameType | None) -> str:
    """The innermost line of Python that hung."""
    if frame is None:
        return ""
    return f", in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
