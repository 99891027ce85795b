"""Retries of what may pass. `RetryingStorage` adds them, and a count of them, to any storage.

A fault is retried where it is met: a request to a bucket by `bucket`, for `StorageSettings.retry_s`; anything else that
raises `Transient` by `RetryingStorage`, some number of times. The two do not multiply: `RetryingStorage` begins no try
later than `within_s` after the first, and a bucket that was out of reach for its whole `retry_s` has used that up.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from nightjar.inference.errors import AlreadyExists, Transient

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from nightjar.inference.storage.protocol import Entry, Names, Storage

T = TypeVar("T")
OnRetry = Callable[[Transient], None]
"""Called with the error before each retry."""

_LONGEST_BACKOFF_S = 10.0
"""The longest wait between two tries, however many there were: a store that is back is found within this."""

_on_retry: ContextVar[OnRetry | None] = ContextVar("on_retry", default=None)


def current_on_retry() -> OnRetry:
    """The `on_retry` of the `RetryingStorage` whose call is under way in this thread, for the storage within it."""
    return _on_retry.get() or (lambda _: None)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and for how long, a call that raises `Transient` is tried.

    within_s: no try begins later than this after the first, so a call takes at most this and one try.
    backoff_s: the longest wait before the second try; doubled for each further one, up to 10 s, and jittered.
    attempts: tries in all.
    """

    within_s: float
    backoff_s: float = 0.1
    attempts: int = sys.maxsize

    def call(self, call: Callable[[], T], on_retry: OnRetry) -> T:
        """What `call` returns.

        Raises:
            Transient: no try is left. The last error, and how often it was tried.
        """
        began, failures = time.monotonic(), 0
        while True:
            try:
                return call()
            except Transient as error:
                failures += 1
                pause, spent = self._pause(failures), time.monotonic() - began
                if failures >= self.attempts or spent + pause > self.within_s:
                    if failures == 1:
                        raise
                    raise Transient(f"{error}; tried {failures} times in {spent:.1f} s") from error
                on_retry(error)
                time.sleep(pause)

    def _pause(self, failures: int) -> float:
        """Jittered: actors that failed together should not come back together."""
        return min(self.backoff_s * 2.0 ** min(failures - 1, 30), _LONGEST_BACKOFF_S) * random.uniform(0.5, 1.0)

    def listing(self, begin: Callable[[str], Iterator[Entry]], after: str, on_retry: OnRetry) -> Iterator[Entry]:
        """A sorted listing that begins after `after`; one that breaks goes on after the last entry handed out.

        The policy is that of each entry: once one has come, the next error is a first one.
        """
        entries: Iterator[Entry] | None = None

        def following() -> Entry | None:
            nonlocal entries
            try:
                entries = entries or begin(after)
                return next(entries, None)
            except Transient:
                entries = None
                raise

        while (entry := self.call(following, on_retry)) is not None:
            after = entry.uri
            yield entry


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
    """Retries what raised `Transient`: up to `attempts` tries in all, with a longer wait each time.

    No try begins later than `within_s` after the first, so that a call takes at most that long and one try:
    for a bucket, with the defaults, 60 s and one time-out of 60 s, whether or not it was wrapped. A listing,
    a large upload and a read of an opened object are many requests: the bound is that of each.
    `retries` counts the retries, here and by the storage within; those of single pages of a listing
    and single parts of an upload of more than 8 MiB are not seen here. What is read through `open` is covered
    for buckets; a local file is read by Arrow.
    """

    def __init__(self, inner: Storage, attempts: int = 4, backoff_s: float = 0.5, within_s: float = 60.0) -> None:
        self.inner, self.attempts, self.backoff_s, self.within_s = inner, attempts, backoff_s, within_s
        self.retries = 0
        self._policy = RetryPolicy(within_s, backoff_s, attempts)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return RetryingStorage, (self.inner, self.attempts, self.backoff_s, self.within_s)

    def subfolders(self, folder: str) -> Names:
        return self._retried(lambda: self.inner.subfolders(folder))

    def read(self, uri: str) -> bytes:
        return self._retried(lambda: self.inner.read(uri))

    def create(self, uri: str, data: bytes) -> None:
        """As `Storage.create`; after a lost answer, an object with our bytes is ours."""
        self._retried(settling(lambda: self.inner.create(uri, data), lambda: self.inner.read(uri), data))

    def write(self, uri: str, data: Buffer) -> None:
        self._retried(lambda: self.inner.write(uri, data))

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        def begin(last: str) -> Iterator[Entry]:
            with _calling(self._count):
                return self.inner.list(folder, last)

        return self._policy.listing(begin, after, self._count)

    def stat(self, uri: str) -> Entry:
        return self._retried(lambda: self.inner.stat(uri))

    def open(self, uri: str) -> pa.NativeFile:
        return self._retried(lambda: self.inner.open(uri))

    def delete(self, uris: Iterable[str]) -> None:
        all_uris = tuple(uris)
        self._retried(lambda: self.inner.delete(all_uris))

    def copy(self, source: str, target: str) -> None:
        self._retried(lambda: self.inner.copy(source, target))

    def options(self, uri: str) -> dict[str, str]:
        return self._retried(lambda: self.inner.options(uri))

    def leftovers(self, folder: str) -> dict[str, str]:
        return self._retried(lambda: self.inner.leftovers(folder))

    def _retried(self, call: Callable[[], T]) -> T:
        with _calling(self._count):
            return self._policy.call(call, self._count)

    def _count(self, error: Transient) -> None:
        with self._lock:
            self.retries += 1


@contextmanager
def _calling(on_retry: OnRetry) -> Iterator[None]:
    token = _on_retry.set(on_retry)
    try:
        yield
    finally:
        _on_retry.reset(token)
