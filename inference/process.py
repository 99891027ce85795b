"""This process: its name, variables and attributes that hold for a while, and how often Python looks for garbage.

What is imported stays, but Python looks through it again and again while more comes: that is a sixth of the time that a
model's framework, Ray and Prefect take to import.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_MANY = 100_000
"""The new objects after which Python looks for garbage among them, in place of 700 or 2,000: some 20 MB."""


def this_worker() -> str:
    """The name of this process among the workers of a run: `host:pid`."""
    return f"{socket.gethostname()}:{os.getpid()}"


def host_of(worker: str) -> str:
    """The host of a worker, from its name."""
    return worker.rpartition(":")[0]


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


@contextmanager
def replaced(owner: object, **others: object) -> Iterator[None]:
    """Replace attributes of a module or a class in this context."""
    before = {name: getattr(owner, name) for name in others}
    for name, other in others.items():
        setattr(owner, name, other)
    try:
        yield
    finally:
        for name, own in before.items():
            setattr(owner, name, own)


def collect_seldom() -> None:
    """Look for garbage seldom in this process, in which no code of the user runs: what that leaves may be large."""
    gc.set_threshold(_MANY)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for garbage seldom in this context; afterwards as often as before.

    Of two threads that are in it at once, the first one ends it, so that what it was before is not lost. A process that
    looks as seldom by itself, or never, goes on with that; and code that changes it meanwhile has the last word.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < _MANY:
        yield
        return
    collect_seldom()
    try:
        yield
    finally:
        if gc.get_threshold()[0] == _MANY:
            gc.set_threshold(*before)
