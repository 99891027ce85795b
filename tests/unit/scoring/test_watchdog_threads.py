"""Watchdogs of several threads share the one timer that ends their process by force."""

from __future__ import annotations

import faulthandler
import subprocess
import sys

import pytest

from nightjar.inference.scoring.watchdog import Watchdog

ONE_HANGS = """
import threading, time
from nightjar.inference.scoring.watchdog import Watchdog

def hangs():
    with Watchdog(0.5) as watchdog:
        watchdog.calling()
        threading.Event().wait()

threading.Thread(target=hangs).start()
until = time.monotonic() + 600
watchdog = Watchdog(0.5)
while time.monotonic() < until:
    with watchdog:
        watchdog.calling()
        time.sleep(0.05)
"""


def test_a_thread_that_hangs_ends_the_process_though_another_goes_on() -> None:
    ended = subprocess.run([sys.executable, "-c", ONE_HANGS], stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 1
    assert "in hangs" in ended.stderr


def test_the_timer_is_set_for_the_step_that_is_over_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is stopped with the last step."""
    set_to: list[float] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda left, **_: set_to.append(left))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: set_to.append(0))
    long, short = Watchdog(100), Watchdog(10)
    with long:
        long.calling()
        with short:
            short.calling()
            short.calling()
        assert set_to == pytest.approx([121, 13, 121], abs=5)
    assert set_to[3:] == [0]
