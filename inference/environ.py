"""Variables that have a value for a while: of the environment, and context variables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
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


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables in this context, for what reads them when it is imported, and for processes that start in it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
