"""Context variables that have a value for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def held(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give the variable this value in this context; afterwards it has the one of before."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
