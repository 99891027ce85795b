"""Sends artifacts to Prefect's API. If the API is slow or away, artifacts are lost, but never the run."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

import httpx
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from nightjar.inference.errors import StorageError

PATIENCE_S = 5.0
"""Seconds that a task waits at its end until the API has taken its artifacts."""

Send = Callable[[], object]


def deliver(due: dict[str, Send]) -> None:
    """Send artifacts, by key, for at most `PATIENCE_S`. If the API is away, artifacts are lost, but never the run."""
    thread = thread_of(lambda: sent(due))
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        get_run_logger().warning("Prefect's API took no artifact for %g s; going on: %s", PATIENCE_S, ", ".join(due))


def sent(due: dict[str, Send]) -> bool:
    """Send artifacts; those that fail are named in the run's log. Returns whether all were taken."""
    for key, send in due.items():
        try:
            send()
        # RuntimeError: the task has ended meanwhile and closed its connection.
        except (httpx.HTTPError, PrefectException, OSError, RuntimeError, StorageError) as error:
            get_run_logger().warning("the artifact %s could not be sent: %s", key, error)
            return False
    return True


def thread_of(target: Callable[[], object]) -> threading.Thread:
    """Make a thread that knows its task run."""
    context = contextvars.copy_context()
    return threading.Thread(target=lambda: context.run(target), daemon=True, name="nightjar-artifacts")
