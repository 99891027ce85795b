"""Imports what the flow's tasks need before the first of them begins, in the process that Ray will give to it.

Ray gives the process of a task that has ended to the next task of the same kind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from nightjar.inference.garbage import seldom_collected

_importing: list[Any] = []
"""The task that imports; empty where nobody does."""

_IMPORT_S = 30.0
"""The longest wait for it in seconds; then the flow's tasks begin anyway."""

_LOOK_S = 0.05
"""Seconds between two looks whether it has ended."""


@contextmanager
def importing(options: dict[str, Any]) -> Iterator[None]:
    """Import in this context, in a process of the connected cluster, and do not wait for it.

    options: Ray's options of the flow's tasks.
    """
    _importing.append(ray.remote(**options)(_import).remote())
    try:
        yield
    finally:
        _importing.clear()


def wait_for_imports() -> None:
    """Wait until the imports have ended. If a task began sooner, it would get another process, which begins anew."""
    deadline = time.monotonic() + _IMPORT_S
    # Short questions, because signals during Ray's own wait are lost.
    while _importing and time.monotonic() < deadline and not ray.wait(_importing, timeout=0)[0]:
        time.sleep(_LOOK_S)


def _import() -> None:
    with seldom_collected():
        import prefect.artifacts
        import prefect.task_engine
        import prefect_ray

        from nightjar.inference.run import steps

    del prefect, prefect_ray, steps
