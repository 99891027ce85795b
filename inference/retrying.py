"""Storage that tries again. Part of `storage`, which exports it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from nightjar.inference.errors import AlreadyExists, Transient

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from nightjar.inference.storage import Entry, Names, Storage

T = TypeVar("T")

_LONGEST_BACKOFF_S = 30.0


class RetryingStorage:
    """Tries again what raised `Transient`: up to `attempts` in all, waiting longer each time.

    `retries` counts the faults overcome. Bytes read through `open` are not covered.
    """

    def __init__(self, inner: Storage, attempts: int = 4, backoff_s: float = 0.5) -> None:
        self.inner, self.attempts, self.backoff_s = inner, attempts, backoff_s
        self.retries = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return RetryingStorage, (self.inner, self.attempts, self.backoff_s)

    def subfolders(self, folder: str) -> Names:
        return self._patiently(lambda: self.inner.subfolders(folder))

    def read(self, uri: str) -> bytes:
        return self._patiently(lambda: self.inner.read(uri))

    def create(self, uri: str, data: bytes) -> None:
        """As `Storage.create`; an object found only on a second try is ours if its bytes are ours."""
        tried = False

        def attempt() -> None:
            nonlocal tried
            again, tried = tried, True
            try:
                self.inner.create(uri, data)
            except AlreadyExists:
                if not again or self.inner.read(uri) != data:
                    raise

        self._patiently(attempt)

    def write(self, uri: str, data: Buffer) -> None:
        self._patiently(lambda: self.inner.write(uri, data))

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        failures = 0
        while True:
            try:
                for entry in self.inner.list(folder, after):
                    # A listing that breaks goes on after the last entry handed out.
                    after, failures = entry.uri, 0
                    yield entry
                return
            except Transient:
                failures += 1
                if failures >= self.attempts:
                    raise
                self._pause(failures)

    def stat(self, uri: str) -> Entry:
        return self._patiently(lambda: self.inner.stat(uri))

    def open(self, uri: str) -> pa.NativeFile:
        return self._patiently(lambda: self.inner.open(uri))

    def delete(self, uris: Iterable[str]) -> None:
        all_uris = tuple(uris)
        self._patiently(lambda: self.inner.delete(all_uris))

    def copy(self, source: str, target: str) -> None:
        self._patiently(lambda: self.inner.copy(source, target))

    def _patiently(self, call: Callable[[], T]) -> T:
        failures = 0
        while True:
            try:
                return call()
            except Transient:
                failures += 1
                if failures >= self.attempts:
                    raise
                self._pause(failures)

    def _pause(self, failures: int) -> None:
        with self._lock:
            self.retries += 1
        backoff = min(self.backoff_s * 2 ** (failures - 1), _LONGEST_BACKOFF_S)
        # Jitter: actors that failed together should not come back together.
        time.sleep(backoff * random.uniform(0.5, 1.0))
