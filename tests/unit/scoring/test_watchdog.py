"""What hangs is ended: by an exception where Python can be interrupted, by force where it cannot."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from nightjar.inference.errors import ProcessSpoilt
from nightjar.inference.scoring import watchdog as watching
from nightjar.inference.scoring.watchdog import Watchdog

NEVER_RETURNS = """
import ctypes
from nightjar.inference.scoring.watchdog import Watchdog

libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # keeps the interpreter's lock
libc.pthread_mutex_lock(mutex)
with Watchdog(0.5) as watchdog:
    watchdog.calling()
    libc.pthread_mutex_lock(mutex)  # a deadlock inside a library
"""


def waits_for_ever() -> None:
    threading.Event().wait()


def test_what_hangs_is_interrupted_and_named() -> None:
    said = r"Stalled: no progress for retry.stall_s = 0.2 s, in wait \(.*threading"
    with pytest.raises(ProcessSpoilt, match=said), Watchdog(0.2):
        waits_for_ever()


def test_code_that_catches_everything_does_not_hold_it_up() -> None:
    """A model's own retry loop must not swallow the end."""
    with pytest.raises(ProcessSpoilt), Watchdog(0.2):
        while True:
            with contextlib.suppress(Exception):
                waits_for_ever()


def test_code_that_swallows_the_end_is_interrupted_again() -> None:
    """Even an exception that no retry loop should catch may be caught."""
    with pytest.raises(ProcessSpoilt), Watchdog(0.2) as watchdog:
        with contextlib.suppress(BaseException):
            waits_for_ever()
        watchdog.calling()
        waits_for_ever()


def test_signs_of_progress_keep_it_quiet() -> None:
    """Many short steps may together take longer than one may."""
    begun = time.monotonic()
    with Watchdog(1.0) as watchdog:
        while time.monotonic() - begun < 2.0:
            watchdog.calling()
            threading.Event().wait(0.05)


def test_outside_of_it_nothing_is_interrupted() -> None:
    """Between two steps a worker waits for whoever reads its events, as long as that takes."""
    with Watchdog(0.2) as watchdog:
        watchdog.calling()
    assert not threading.Event().wait(0.6)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_handler_of_the_users_own_is_put_back() -> None:
    mine = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        with Watchdog(10):
            assert signal.getsignal(signal.SIGALRM) is not signal.SIG_IGN
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGALRM, mine)


def test_what_never_comes_back_to_python_is_ended_by_force() -> None:
    """The process ends, its stack on standard error: in a worker, that is its log."""
    ended = subprocess.run([sys.executable, "-c", NEVER_RETURNS], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert 'File "<string>", line 9' in ended.stderr


def test_in_another_thread_there_is_the_end_by_force_alone() -> None:
    """Python runs signal handlers in its main thread only; that must not be an error."""
    entered = threading.Event()

    def enter() -> None:
        with Watchdog(5) as watchdog:
            watchdog.calling()
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered.is_set()


def stood_in_for(monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[Any]]:
    """A clock that shows what the first list has, and what the timer of the end by force is set to, in the second."""
    now, ends = [0.5], list[Any]()
    by_force = SimpleNamespace(
        dump_traceback_later=lambda after_s, **how: ends.append((after_s, how)),
        cancel_dump_traceback_later=lambda: ends.append("never"),
    )
    monkeypatch.setattr(watching, "faulthandler", by_force)
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now, ends


def test_the_end_by_force_is_put_off_by_signs_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by each, because that takes a thread; it comes a good second after the interruption, with the stack."""
    now, ends = stood_in_for(monkeypatch)
    begins = (25.0, {"exit": True, "file": sys.__stderr__})
    with Watchdog(20.0) as watchdog:
        watchdog.calling()
        assert ends == [begins]
        now[0] = 1.5  # a twentieth of the time later
        watchdog.calling()
        assert ends == [begins]
        now[0] = 1.51
        watchdog.calling()
        assert ends == [begins, begins]
    assert ends == [begins, begins, "never"]
    now[0] = 1.52
    with monkeypatch.context() as here, watchdog:
        here.setattr(sys, "__stderr__", None)  # as in a program without a terminal
        watchdog.calling()
    assert ends[3:] == [(25.0, {"exit": True, "file": sys.stderr}), "never"]


def test_in_another_thread_only_force_is_left() -> None:
    """Python interrupts its main thread alone: nothing is set there, nor restored."""
    failed: list[BaseException] = []

    def steps() -> None:
        try:
            with Watchdog(60.0) as watchdog:
                watchdog.calling()
        except BaseException as error:  # noqa: BLE001 (raised again in the test's thread)
            failed.append(error)

    before = signal.getsignal(signal.SIGALRM)
    thread = threading.Thread(target=steps)
    thread.start()
    thread.join()
    assert failed == []
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_look_before_the_time_is_over_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it what is raised is for the caller to act on: the process does not end by force meanwhile."""
    now, ends = stood_in_for(monkeypatch)
    with Watchdog(20.0) as watchdog:
        watchdog.calling()
        for now[0] in (0.5, 20.5):
            watchdog.look()
        assert "never" not in ends
        now[0] = 20.51
        with pytest.raises(ProcessSpoilt):
            watchdog.look()
        assert ends[-1] == "never"


def test_another_thread_may_look_whether_it_hangs() -> None:
    """A thread that is not the main one is not interrupted; who waits for it reports where it hangs."""
    entered, over = threading.Event(), threading.Event()
    watchdog = Watchdog(0.2)
    watchdog.look()

    def hang() -> None:
        with watchdog:
            watchdog.calling()
            entered.set()
            over.wait()

    thread = threading.Thread(target=hang)
    thread.start()
    entered.wait()
    with pytest.raises(ProcessSpoilt, match=r"no progress for retry.stall_s = 0.2 s, in wait \(.*threading"):
        while not over.wait(0.01):
            watchdog.look()
    over.set()
    thread.join()
    watchdog.look()
