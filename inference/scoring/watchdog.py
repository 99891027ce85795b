"""Ends a step of a worker that makes no progress for too long.

First an exception is raised in the main thread, so that the worker can report what happened before its process ends. If
the step has another thread, the thread that waits for it looks at it, and reports. Code that never returns to Python
cannot be interrupted. Then the process is ended by force a little later, with its stack in the worker's log; to the run
this looks like any other death.
"""

from __future__ import annotations

import faulthandler
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


class Watchdog:
    """A context in which at most `stall_s` seconds may pass between two signs of progress.

    behind: where another thread is that the one in this context waits for; None if it waits for none.

    Raises:
        ProcessSpoilt: Raised inside the code that hangs. The code was interrupted anywhere, so the process must end.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self._armed = False
        self._forced_at = 0.0
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
        if self._forced_at:
            faulthandler.cancel_dump_traceback_later()
            self._forced_at = 0.0
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
            self._before = None

    def calling(self) -> None:
        """Give a sign of progress before foreign code is called; the time begins again."""
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, self.stall_s)
        # The end by force needs a new thread each time, so it is not renewed for every micro-batch.
        self._sign_at = now = time.monotonic()
        if not self._forced_at or now - self._forced_at > self.stall_s / 20:
            self._forced_at = now
            log = sys.__stderr__ if sys.__stderr__ is not None else sys.stderr
            faulthandler.dump_traceback_later(self.stall_s * _BY_FORCE + 1, exit=True, file=log)

    def look(self) -> None:
        """Look from another thread at the one in this context, which may be one that Python does not interrupt.

        Raises:
            ProcessSpoilt: It makes no progress. It is left as it is, and it is up to the caller to end the process.
        """
        if self._armed and time.monotonic() - self._sign_at > self.stall_s:
            faulthandler.cancel_dump_traceback_later()
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
