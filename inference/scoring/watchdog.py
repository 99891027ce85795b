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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from nightjar.inference.errors import ProcessSpoilt
from nightjar.inference.predictors import StreamingScorer

_BY_FORCE = 1.2
"""The time until the process is ended by force, in multiples of the time until it is interrupted."""


class _Timer:
    """Ends the process by force when the time of a step is over, with the stacks of all threads in its log.

    A process has only one timer for that, which the watchdogs of its threads share: it is set for the step whose time
    is over first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[Watchdog, float] = {}
        self._set_to = math.inf

    def end_at(self, watchdog: Watchdog, at: float) -> None:
        """The time of this watchdog's step is over then, on the monotonic clock; infinity if it has no step."""
        # Setting the timer starts a thread each time, so it is not set for every sign of progress: the end may come
        # this much too early.
        slack_s = watchdog.stall_s / 20
        with self._lock:
            self._ends.pop(watchdog, None)
            if at != math.inf:
                self._ends[watchdog] = at
            first = min(self._ends.values(), default=math.inf)
            if self._set_to <= first <= self._set_to + slack_s:
                return
            self._set_to = first
            if first == math.inf:
                faulthandler.cancel_dump_traceback_later()
                return
            log = sys.__stderr__ if sys.__stderr__ is not None else sys.stderr
            faulthandler.dump_traceback_later(max(first - time.monotonic(), slack_s), exit=True, file=log)


_TIMER = _Timer()


class Watchdog:
    """A context in which at most `stall_s` seconds may pass between two signs of progress. One thread at a time may be
    in it.

    behind: the frame of another thread that the one in this context waits for; None if it waits for none.

    Raises:
        ProcessSpoilt: Raised inside the code that hangs. The code was interrupted anywhere, so the process must end.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self._armed = False
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
        _TIMER.end_at(self, math.inf)
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
            self._before = None

    def calling(self) -> None:
        """Give a sign of progress before foreign code is called; the time begins again."""
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, self.stall_s)
        self._sign_at = time.monotonic()
        _TIMER.end_at(self, self._sign_at + self.stall_s * _BY_FORCE + 1)

    @property
    def stalls(self) -> bool:
        """Whether the time of the step is over."""
        return self._armed and time.monotonic() - self._sign_at > self.stall_s

    def look(self) -> None:
        """Look from another thread at the one in this context, which may be one that Python does not interrupt.

        Raises:
            ProcessSpoilt: It makes no progress. It is left as it is, and it is up to the caller to end the process.
        """
        if self.stalls:
            _TIMER.end_at(self, math.inf)
            raise self.stalled(self.behind() or sys._current_frames().get(self._thread))

    def stalled(self, frame: FrameType | None = None) -> ProcessSpoilt:
        """What to raise for a step that hangs. frame: where it does."""
        return ProcessSpoilt("Stalled", f"no progress for retry.stall_s = {self.stall_s:g} s{_where(frame)}")

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        if not self._armed:  # the alarm came while the last step ended
            return
        raise self.stalled(self.behind() or frame)


@contextmanager
def answering(scorers: Iterable[object], watchdog: Watchdog) -> Iterator[None]:
    """In this context each answer of a language model is a sign of progress, while its batch is waited for."""
    models = [each.requests for each in scorers if isinstance(each, StreamingScorer)]
    for each in models:
        each.alive = watchdog.calling
    try:
        yield
    finally:
        for each in models:
            each.alive = None


def _where(frame: FrameType | None) -> str:
    """The innermost line of Python that hung."""
    if frame is None:
        return ""
    return f", in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
