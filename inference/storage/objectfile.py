"""An object as a file. This module decides which bytes to fetch; `bucket` fetches them."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
        with ThreadPoolExecutor(min(len(starts), 8)) as pool:
            return b"".join(pool.map(lambda low: self._fetch_part(low, min(low + PART, end)), starts))
