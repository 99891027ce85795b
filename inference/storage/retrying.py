"""Retries of transient errors, and files that are read by requests, each of which may be retried.

`RetryingStorage` adds retries, and a count of them, to any storage. `bucket` and `web` retry a request for
`StorageSettings.retry_s`. `RetryingStorage` retries any other call that raises `Transient`, a limited number of times.
The two do not multiply: `RetryingStorage` begins no try later than `within_s` after the first, and a bucket that could
not be reached for all of `retry_s` has used up that time.
"""

from __future__ import annotations

import io
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from nightjar.inference.errors import AlreadyExists, Transient
from nightjar.inference.process import held
from nightjar.inference.storage.protocol import ANYBODY, Forwarding, at_once

if TYPE_CHECKING:
    import pyarrow as pa

    from nightjar.inference.storage.protocol import Entry, Storage

T = TypeVar("T")
OnRetry = Callable[[Transient], None]
"""Called with the error before each retry."""

_LONGEST_BACKOFF_S = 10.0
"""The longest wait between two tries, however many there were, so that a store that is back is soon noticed."""

_on_retry: ContextVar[OnRetry | None] = ContextVar("on_retry", default=None)


def current_on_retry() -> OnRetry:
    """The `on_retry` of the `RetryingStorage` whose call runs in this thread; the wrapped storage calls it, too."""
    return _on_retry.get() or (lambda _: None)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and for how long, a call that raises `Transient` is tried.

    within_s: no try begins later than this after the first, so a call takes at most this time and one try.
    backoff_s: the longest wait before the second try; it doubles for each further try, up to 10 s, and is jittered.
    attempts: the largest number of tries.
    """

    within_s: float
    backoff_s: float = 0.1
    attempts: int = sys.maxsize

    def call(self, call: Callable[[], T], on_retry: OnRetry | None = None) -> T:
        """Return what `call` returns, retrying it while it raises `Transient`. on_retry: `current_on_retry` by default.

        Raises:
            Transient: No try is left. The message has the last error and the number of tries.
        """
        on_retry, began, failures = on_retry or current_on_retry(), time.monotonic(), 0
        while True:
            try:
                return call()
            except Transient as error:
                failures += 1
                pause, spent = self._pause(failures), time.monotonic() - began
                if failures >= self.attempts or spent + pause > self.within_s:
                    tried = f"; tried {failures} times in {spent:.1f} s" if failures > 1 else ""
                    raise Transient(f"{error}{tried}") from error
                on_retry(error)
                time.sleep(pause)

    def _pause(self, failures: int) -> float:
        """Seconds to wait, jittered so that actors that failed together do not retry together."""
        return min(self.backoff_s * 2.0 ** min(failures - 1, 30), _LONGEST_BACKOFF_S) * random.uniform(0.5, 1.0)

    def listing(self, begin: Callable[[str], Iterator[Entry]], after: str, on_retry: OnRetry) -> Iterator[Entry]:
        """Yield a sorted listing that begins after `after`; after an error it continues behind the last entry yielded.

        The policy applies to each entry: after an entry has come, the next error counts as the first. on_retry: given
        by the caller, because the entries are asked for when the call that began the listing is over.
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
    """Make a creation repeatable: if a later try finds an object with our bytes, an earlier try created it.

    On the first try an object with equal bytes is another writer's: two writers may write the same bytes, and only one
    may believe that it created the object.
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


class RetryingStorage(Forwarding):
    """Retries calls that raise `Transient`, as a `RetryPolicy` with these arguments says.

    `retries` counts the retries made here and by the wrapped storage, without those of single pages of a listing and of
    single parts of an upload over 8 MiB. Reads through `open` are retried for buckets only; Arrow itself reads a local
    file.
    """

    def __init__(self, inner: Storage, attempts: int = 4, backoff_s: float = 0.5, within_s: float = 60.0) -> None:
        self.inner, self.attempts, self.backoff_s, self.within_s = inner, attempts, backoff_s, within_s
        self.retries = 0
        self._policy = RetryPolicy(within_s, backoff_s, attempts)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return RetryingStorage, (self.inner, self.attempts, self.backoff_s, self.within_s)

    def create(self, uri: str, data: bytes, mode: int = ANYBODY) -> None:
        """As `Storage.create`. After a lost answer, an object with our bytes counts as created by this call."""
        creating = settling(lambda: self.inner.create(uri, data, mode), lambda: self.inner.read(uri), data)
        self._forward("create", uri, lambda _: creating())

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        def begin(last: str) -> Iterator[Entry]:
            with held(_on_retry, self._count):
                return self.inner.list(folder, last)

        return self._policy.listing(begin, after, self._count)

    def _forward(self, operation: str, uri: str, call: Callable[[Storage], T]) -> T:
        with held(_on_retry, self._count):
            return self._policy.call(lambda: call(self.inner), self._count)

    def _count(self, error: Transient) -> None:
        with self._lock:
            self.retries += 1


# ---- an object as a file: which bytes are fetched by which request ------------------------------------------

PART = 8 << 20
"""Bytes per request of a large upload or download; several requests run at once."""

_AHEAD = 1 << 20
"""The fewest bytes that a read fetches, so that a Parquet footer takes one request, not three."""


class ObjectFile(io.RawIOBase):
    """A read-only file. Small reads fetch ahead, large ones in parallel. fetch: from offset to offset, in threads."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch_part, self._size = fetch, size
        self._position = 0
        self._ahead, self._ahead_at = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        start, whole = self._position, self._size
        end = whole if size is None or size < 0 else min(start + size, whole)
        if start >= end:
            return b""
        self._position = end
        if end - start >= _AHEAD:
            return self._fetch(start, end)
        if not self._ahead_at <= start <= end <= self._ahead_at + len(self._ahead):
            # Near the end the footer is read, backwards: fetch the bytes before it, too.
            low = min(start, max(0, whole - _AHEAD))
            self._ahead, self._ahead_at = self._fetch(low, min(max(end, low + _AHEAD), whole)), low
        return self._ahead[start - self._ahead_at : end - self._ahead_at]

    def _fetch(self, start: int, end: int) -> bytes:
        starts = range(start, end, PART)
        if len(starts) == 1:
            return self._fetch_part(start, end)
        # One S3 connection is slower than the network. (`get_ranges` would join adjacent parts into one request.)
        return b"".join(at_once(lambda low: self._fetch_part(low, min(low + PART, end)), starts, 8))


def opened(fetch: Callable[[int, int], bytes], size: int, policy: RetryPolicy) -> pa.NativeFile:
    """An object as a file for Arrow. fetch: as of `ObjectFile`; each request is retried."""
    import pyarrow as pa

    on_retry = current_on_retry()  # Arrow reads in threads of its own, where the context variable is not set
    return pa.PythonFile(
        ObjectFile(lambda start, end: policy.call(lambda: fetch(start, end), on_retry), size), mode="r"
    )
