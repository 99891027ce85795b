"""Calls `ray.init`, restores what it changes in this process, and tells Ray's errors from errors of our own."""

from __future__ import annotations

import signal
import threading
from typing import Any

import ray

_RAISED = (OSError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError)


def start(address: str, options: dict[str, Any]) -> None:
    """Join the cluster at an address, or start one (`local`); this process's own handler of SIGTERM stays."""
    on_sigterm = signal.getsignal(signal.SIGTERM)
    ray.init(address=address, **options)
    if threading.current_thread() is threading.main_thread():
        # Ray's own handler would end the process without a message.
        signal.signal(signal.SIGTERM, on_sigterm)


def is_rays(error: Exception) -> bool:
    """Whether Ray raised this because it could not start or join. For a time-out it raises a bare `Exception`."""
    return isinstance(error, _RAISED) or type(error) is Exception


def essence(error: Exception) -> str:
    """Ray's message on one line: its first line, or for versions the first line and the last one, which has the
    fault.
    """
    text = str(error).strip() or type(error).__name__
    if text.startswith("Version mismatch"):
        return ", ".join(line.strip() for line in text.splitlines() if line.strip()).replace(":,", ":")
    first, *more = text.splitlines()
    # The first line is only a heading; the last line says what is wrong.
    return f"{first} {more[-1].strip()}" if first.endswith(":") and more else first
