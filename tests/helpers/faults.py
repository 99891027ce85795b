"""A storage that fails on purpose, where and when a test says, for tests of code that uses a `Storage`.

    storage = FaultyStorage(LakeStorage(), [lose_answer("create", "*/ledger/*", nth=2)])

The second creation of a ledger segment then happens, and still raises `Transient`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from nightjar.inference.errors import Transient
from nightjar.inference.storage.protocol import ANYBODY, Entry, Forwarding, Storage

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """Which call fails, and how.

    operation: a method of `Storage`, or "*". pattern: a glob on the URI, in which "*" also matches slashes. nth: which
    matching call, counted from 1; None for every one. The other fields say what happens: see the functions below.
    """

    operation: str
    pattern: str = "*"
    nth: int | None = 1
    before: Callable[[str], None] | None = None
    error: Exception | None = None
    happens: bool = True
    stored: float = 1.0


def lose_answer(operation: str, pattern: str = "*", nth: int | None = 1) -> Fault:
    """The call does its work, then raises `Transient`."""
    return Fault(operation, pattern, nth, error=Transient(f"{operation}: the answer was lost on purpose"))


def fail(operation: str, pattern: str = "*", nth: int | None = 1, error: Exception | None = None) -> Fault:
    """The call does nothing but raise `error` (default: `Transient`)."""
    error = error or Transient(f"{operation}: failed on purpose")
    return Fault(operation, pattern, nth, error=error, happens=False)


def pause(operation: str, pattern: str = "*", nth: int | None = 1, *, before: Callable[[str], None]) -> Fault:
    """`before(uri)` runs first, for instance to wait for an event or to end the process."""
    return Fault(operation, pattern, nth, before=before)


def tear(operation: str = "write", pattern: str = "*", nth: int | None = 1, *, stored: float = 0.5) -> Fault:
    """A write or create stores only the first part of its data, the share `stored`, and reports success."""
    return Fault(operation, pattern, nth, stored=stored)


class FaultyStorage(Forwarding):
    """`inner` with these faults. A pickled copy continues from the current counts, independently.

    Of a deletion the first of the URIs is matched, of a copy the target.
    """

    def __init__(self, inner: Storage, faults: Iterable[Fault]) -> None:
        self.inner, self.faults = inner, tuple(faults)
        self.calls = [0] * len(self.faults)
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner, "faults": self.faults, "calls": self.calls}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def create(self, uri: str, data: bytes, mode: int = ANYBODY) -> None:
        self._call("create", uri, lambda share: self.inner.create(uri, data[: int(len(data) * share)], mode))

    def write(self, uri: str, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self._call("write", uri, lambda share: self.inner.write(uri, view[: int(len(view) * share)]))

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        """With a lost answer the listing raises at its end."""
        fault = self._next("list", folder)
        if fault.before:
            fault.before(folder)
        if fault.happens:
            yield from self.inner.list(folder, after)
        if fault.error:
            raise fault.error

    def _forward(self, operation: str, uri: str, call: Callable[[Storage], T]) -> T:
        return self._call(operation, uri, lambda _: call(self.inner))

    def _call(self, operation: str, uri: str, do: Callable[[float], T]) -> T:
        """Run `do`, whose argument is the share of its data to store, with the fault that is due."""
        fault = self._next(operation, uri)
        if fault.before:
            fault.before(uri)
        if not fault.happens and fault.error:
            raise fault.error
        answer = do(fault.stored)
        if fault.error:
            raise fault.error
        return answer

    def _next(self, operation: str, uri: str) -> Fault:
        """The first fault that is due for this call; the call is counted for every fault that matches it."""
        due = Fault(operation)
        with self._lock:
            for index, fault in reversed(tuple(enumerate(self.faults))):
                if fault.operation in {operation, "*"} and fnmatchcase(uri, fault.pattern):
                    self.calls[index] += 1
                    if fault.nth in {None, self.calls[index]}:
                        due = fault
        return due
