"""Ends what hangs: a step of a worker that makes no progress for too long.

At first by an exception out of whatever the main thread waits for, so that the worker can say what happened
before its process ends. What no exception can interrupt, code that never comes back to Python, is ended by
force a little later, its stack in the worker's log; that looks like any other death.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from nightjar.inference.errors import ProcessSpoilt

_BY_FORCE = 1.2
"""When the process is ended by force, in multiples of the time after which it is interrupted."""


class Watchdog:
    """While entered, at most `stall_s` seconds may pass between two signs of progress.

    Raises:
        ProcessSpoilt: out of the code that hangs. It was interrupted anywhere, so the process must end.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self._armed = False
        self._forced_at = 0.0
        self._before: Any = None

    def __enter__(self) -> Watchdog:
        # Python runs handlers in its main thread only; elsewhere there is the end by force.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGALRM, self._interrupt)
            signal.setitimer(signal.ITIMER_REAL, self.stall_s)
        self._armed = True
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._armed = False
        if self._forced_at:
            faulthandler.cancel_dump_traceback_later()
            self._forced_at = 0.0
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
            self._before = None

    def calling(self) -> None:
        """A sign of progress, before foreign code is called: the time begins anew."""
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, self.stall_s)
        # That one costs a thread each time, so it is not renewed for every micro-batch.
        now = time.monotonic()
        if not self._forced_at or now - self._forced_at > self.stall_s / 20:
            self._forced_at = now
            log = sys.__stderr__ if sys.__stderr__ is not None else sys.stderr
            faulthandler.dump_traceback_later(self.stall_s * _BY_FORCE + 1, exit=True, file=log)

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        if not self._armed:  # it rang while the last step ended
            return
        self._armed = False
        raise ProcessSpoilt("Stalled", f"no progress for retry.stall_s = {self.stall_s:g} s{_where(frame)}")


def _where(frame: FrameType | None) -> str:
    """The innermost line of Python that hung."""
    if frame is None:
        return ""
    return f", in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
