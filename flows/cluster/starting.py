"""Calling `ray.init`: what it changes in this process is put back, and what it raises is told from our own mistakes."""

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
        # Ray's own handler would end the process without a word.
        signal.signal(signal.SIGTERM, on_sigterm)


def is_rays(error: Exception) -> bool:
    """Whether this is how Ray says that it could not start or join; for a time-out it raises a bare `Exception`."""
    return isinstance(error, _RAISED) or type(error) is Exception


def essence(error: Exception) -> str:
    """What Ray says, on one line: its first one, but for versions, which it lists below that."""
    text = str(error).strip() or type(error).__name__
    if text.startswith("Version mismatch"):
        return ", ".join(line.strip() for line in text.splitlines() if line.strip()).replace(":,", ":")
    first, *more = text.splitlines()
    # A heading says nothing: what it is about stands at the end of what follows.
    return f"{first} {more[-1].strip()}" if first.endswith(":") and more else first
