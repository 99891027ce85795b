"""Panics of libraries that are written in Rust, as polars and tokenizers are.

Python sees them as exceptions that are no `Exception`, so that nobody takes them for an error of the input. Here they
are: the user's code was given rows, and could not go on with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Panicked(Exception):
    """A library panicked; its own words."""


@contextmanager
def panics_are_errors() -> Iterator[None]:
    """Raise Panicked where a library panics."""
    try:
        yield
    except BaseException as error:
        # Each library has a class of its own, which has nothing but its name in common with the others'.
        if (type(error).__module__, type(error).__name__) == ("pyo3_runtime", "PanicException"):
            raise Panicked(str(error)) from error
        raise
