"""Compressed files: which names tell a compression, and how such a file is read."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pyarrow as pa

from nightjar.inference.storage.protocol import Storage

EXPANDED = 8
"""The assumed ratio of a compressed file's decoded size to its size."""

_COMPRESSIONS = {"": None, ".gz": "gzip", ".zst": "zstd"}


def suffixes(*kinds: str) -> tuple[str, ...]:
    """The ends of names of files of these kinds, packed and not."""
    return tuple(kind + packed for kind, packed in product(kinds, _COMPRESSIONS))


def compression(uri: str) -> str | None:
    """The codec that the end of a file's name tells; None for a file that is not compressed."""
    lower = uri.lower()
    if lower.endswith(".tgz"):
        return "gzip"
    return next((codec for end, codec in _COMPRESSIONS.items() if end and lower.endswith(end)), None)


_UNDECODABLE = "nightjar.undecodable"
codecs.register_error(_UNDECODABLE, lambda error: ("\udcff", getattr(error, "end", 0)))
"""What cannot be decoded becomes the byte 0xFF in UTF-8, which has no such byte: the line is then not UTF-8 text."""


class Reading:
    """An open file, decompressed and, with an encoding, recoded to UTF-8 while it is read. taken: the bytes read."""

    def __init__(self, uri: str, file: pa.NativeFile, encoding: str | None) -> None:
        self.uri, self.taken = uri, 0
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)(_UNDECODABLE) if encoding else None
        self._held = b""

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        data, self._held = self._held[:size], self._held[size:]
        if len(data) == size:
            return data
        new = bytes(self._file.read(size - len(data)))
        self.taken += len(new)
        if self._decoder is not None:
            found = self._decoder.decode(new, not new).encode(errors="surrogateescape")
            if new and not found:  # a part of a character
                self._held = data
                return self.read(size)
            new, self._held = found[: size - len(data)], found[size - len(data) :]
        return data + new if data else new

    def unread(self, data: bytes) -> None:
        """Give these bytes back: the next `read` returns them again."""
        self._held = data + self._held

    def seek(self, at: int) -> None:
        """Go to a byte of a file that is not compressed."""
        self._held = b""
        self._file.seek(at)


@contextmanager
def opened(storage: Storage, uri: str, encoding: str | None = None) -> Iterator[Reading]:
    """Open a file for reading from its beginning on. encoding: as in `Reading`."""
    with storage.open(uri) as file:
        codec = compression(uri)
        if codec is None:
            yield Reading(uri, file, encoding)
            return
        with pa.CompressedInputStream(file, codec) as unpacked:
            yield Reading(uri, unpacked, encoding)
