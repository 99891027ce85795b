"""Engines: where shards are scored and audited. A new one is one module and one line in `ENGINES`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing

from nightjar.inference.engine.protocol import Engine
from nightjar.inference.errors import JobError
from nightjar.inference.messages import nearest

RAY, LOCAL = "ray", "local"


def _ray() -> Engine:
    from nightjar.inference.engine.ray import is_connected

    if not is_connected():
        return _local()  # a cluster would have next to nothing to do: `run.resume.needs_cluster`
    from nightjar.inference.engine.ray.engine import RayEngine

    return RayEngine()


def _local() -> Engine:
    from nightjar.inference.engine.local import LocalEngine

    return LocalEngine()


ENGINES: dict[str, Callable[[], Engine]] = {RAY: _ray, LOCAL: _local}
"""Name → a function that makes the engine; it imports what the engine needs."""


def check_name(name: str) -> None:
    """Return if there is an engine of this name.

    Raises:
        JobError: there is none.
    """
    if name not in ENGINES:
        raise JobError(f"--engine {name!r}: choose one of {', '.join(ENGINES)}" + nearest(name, ENGINES))


def opened(name: str) -> AbstractContextManager[Engine]:
    """Open an engine for one step of a run."""
    return closing(ENGINES[name]())
