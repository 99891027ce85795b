"""What a process that the user's code forks off ours, as a DataLoader does, inherits: nothing that only ours can use.

A handler of SIGTERM of Ray, Prefect or a command would raise in the user's code, or do nothing, where the parent ends
the child. Prefect's hook for the end of Python would wait for threads that only the parent has.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

_OURS = ("prefect.", "nightjar.", "ray.")

_forking = threading.local()
"""`blocked`: the signals that were blocked before this thread's fork."""


def _hold_sigterm() -> None:
    """Before a fork: let SIGTERM wait until the child has its own handler of it."""
    _forking.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.blocked)


def _forget_ours() -> None:
    hooks: list[Any] = getattr(threading, "_threading_atexits", [])
    hooks[:] = [hook for hook in hooks if not _module(getattr(hook, "func", hook)).startswith("prefect.")]
    if _module(signal.getsignal(signal.SIGTERM)).startswith(_OURS):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_sigterm()


def _module(function: Any) -> str:
    return getattr(function, "__module__", None) or ""


os.register_at_fork(before=_hold_sigterm, after_in_parent=_release_sigterm, after_in_child=_forget_ours)
