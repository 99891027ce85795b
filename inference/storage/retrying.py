"""Trying again what may pass. `RetryingStorage` adds patience and counts to any storage.

A fault is overcome where it is met: a request to a bucket by `bucket`, for `StorageSettings.retry_s`;
anything else that raises `Transient` by `RetryingStorage`, some number of times. The two do not multiply:
`RetryingStorage` begins no try later than `within_s` after the first, and a bucket that was out of reach for
its whole `retry_s` has used that up.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from nightjar.inference.errors import AlreadyExists, Transient

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from nightjar.inference.storage.protocol import Entry, Names, Storage

T = TypeVar("T")
Overcome = Callable[[], None]
"""Told of each fault before it is tried again what met it."""

_LONGEST_BACKOFF_S = 10.0

_counting: ContextVar[Overcome | None] = ContextVar("counting", default=None)


def counter() -> Overcome:
    """Who counts the faults overcome on behalf of the call that is under way, for storage further down."""
    return _counting.get() or (lambda: None)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a fault is put up with.

    within_s: no try begins later than this after the first, so a call takes at most this and one try.
    backoff_s: the longest wait before the second try; doubled for each further one, up to 10 s, and jittered.
    attempts: tries in all.
    """

    within_s: float
    backoff_s: float = 0.1
    attempts: int = sys.maxsize

    def call(self, call: Callable[[], T], overcome: Overcome) -> T:
        """What `call` returns once it does not raise `Transient`; the last fault when patience ends."""
        tries = Tries(self, overcome)
        while True:
            try:
                return call()
            except Transient as error:
                tries.wait(error)

    def listing(self, begin: Callable[[str], Iterator[Entry]], after: str, overcome: Overcome) -> Iterator[Entry]:
        """A sorted listing that begins after `after`; one that breaks goes on after the last entry handed out."""
        tries = Tries(self, overcome)
        while True:
            try:
                for entry in begin(after):
                    after = entry.uri
                    yield entry
                    tries.restart()
                return
            except Transient as error:
                tries.wait(error)


@dataclass(slots=True)
class Tries:
    """The tries of one call."""

    patience: Patience
    overcome: Overcome
    failures: int = 0
    began: float = field(default_factory=time.monotonic)

    def wait(self, error: Transient) -> None:
        """Wait for the next try.

        Raises:
            Transient: `error`, and how often it was met, when there is no next try.
        """
        self.failures += 1
        backoff = min(self.patience.backoff_s * 2 ** min(self.failures - 1, 30), _LONGEST_BACKOFF_S)
        # Jitter: actors that failed together should not come back together.
        pause = backoff * random.uniform(0.5, 1.0)
        spent = time.monotonic() - self.began
        if self.failures >= self.patience.attempts or spent + pause > self.patience.within_s:
            if self.failures == 1:
                raise error
            raise Transient(f"{error}; tried {self.failures} times in {spent:.1f} s") from error
        self.overcome()
        time.sleep(pause)

    def restart(self) -> None:
        """Something came of it: the next fault is a first one."""
        self.failures, self.began = 0, time.monotonic()


def settling(create: Callable[[], None], read: Callable[[], bytes], data: bytes) -> Callable[[], None]:
    """A creation to be tried again: an object found on a later try is ours if its bytes are ours.

    On the first try equal bytes are another's: two writers may say the same, and one only may think that it did.
    """
    tried = False

    def attempt() -> None:
        nonlocal tried
        again, tried = tried, True
        try:
            create()
        except AlreadyExists:
            if not again or read() != data:
                raise

    return attempt


class RetryingStorage:
    """Tries again what raised `Transient`: up to `attempts` in all, waiting longer each time.

    No try begins later than `within_s` after the first, so that a call takes at most that long and one try:
    for a bucket, with the defaults, 60 s and one time-out of 60 s, whether or not it was wrapped. A listing,
    a large upload and a read of an opened object are many requests: the bound is that of each.
    `retries` counts the faults overcome, here and by the storage within; those of single pages of a listing
    and single parts of an upload of more than 8 MiB are not seen here. What is read through `open` is covered
    for buckets; a local file is read by Arrow.
    """

    def __init__(self, inner: Storage, attempts: int = 4, backoff_s: float = 0.5, within_s: float = 60.0) -> None:
        self.inner, self.attempts, self.backoff_s, self.within_s = inner, attempts, backoff_s, within_s
        self.retries = 0
        self._patience = Patience(within_s, backoff_s, attempts)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return RetryingStorage, (self.inner, self.attempts, self.backoff_s, self.within_s)

    def subfolders(self, folder: str) -> Names:
        return self._patiently(lambda: self.inner.subfolders(folder))

    def read(self, uri: str) -> bytes:
        return self._patiently(lambda: self.inner.read(uri))

    def create(self, uri: str, data: bytes) -> None:
        """As `Storage.create`; after a lost answer, an object with our bytes is ours."""
        self._patiently(settling(lambda: self.inner.create(uri, data), lambda: self.inner.read(uri), data))

    def write(self, uri: str, data: Buffer) -> None:
        self._patiently(lambda: self.inner.write(uri, data))

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        def begin(last: str) -> Iterator[Entry]:
            with _counted(self._count):
                return self.inner.list(folder, last)

        return self._patience.listing(begin, after, self._count)

    def stat(self, uri: str) -> Entry:
        return self._patiently(lambda: self.inner.stat(uri))

    def open(self, uri: str) -> pa.NativeFile:
        return self._patiently(lambda: self.inner.open(uri))

    def delete(self, uris: Iterable[str]) -> None:
        all_uris = tuple(uris)
        self._patiently(lambda: self.inner.delete(all_uris))

    def copy(self, source: str, target: str) -> None:
        self._patiently(lambda: self.inner.copy(source, target))

    def options(self, uri: str) -> dict[str, str]:
        return self._patiently(lambda: self.inner.options(uri))

    def leftovers(self, folder: str) -> dict[str, str]:
        return self._patiently(lambda: self.inner.leftovers(folder))

    def _patiently(self, call: Callable[[], T]) -> T:
        with _counted(self._count):
            return self._patience.call(call, self._count)

    def _count(self) -> None:
        with self._lock:
            self.retries += 1


@contextmanager
def _counted(overcome: Overcome) -> Iterator[None]:
    token = _counting.set(overcome)
    try:
        yield
    finally:
        _counting.reset(token)
