"""Tracks how far a process's output is kept and which shard each piece belongs to, and bounds how much is kept."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.logs.masking import Masks
from nightjar.inference.logs.printed import (
    NOTE,
    STREAMS,
    Line,
    write,
)
from nightjar.inference.storage.protocol import Storage

PART_CHARS = 32_768
SPAN_BYTES = 8_192
"""The most bytes that are kept of what one shard printed to one stream between two parts: the first and last half."""

LINE_CHARS = 2_000
WORKER_CHARS = 1 << 20
SPARING_CHARS = 4_096
"""After a worker has printed `WORKER_CHARS` characters, its parts have at most `SPARING_CHARS`."""

_MARKS = 4_096
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Mark:
    """From these sizes of the two files on, what is printed belongs to this attempt. at: the time of the mark."""

    at: float
    sizes: tuple[int, int]
    shard: str = ""
    attempt: int = 0


@dataclass
class Book:
    """How far a process's files are kept, and what is needed to keep the rest after its death. Stored as JSON."""

    worker: str
    epoch: int
    files: tuple[str, str]
    kept: tuple[int, int]
    marks: list[Mark] = field(default_factory=list)
    ignored: tuple[str, ...] = ()
    total: int = 0
    lost: str = ""

    def to_bytes(self) -> bytes:
        """The JSON form on disk."""
        return json.dumps(to_json(self)).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Book:
        """The inverse of `to_bytes`. Bytes behind the JSON are left from an earlier, longer book."""
        # A process may have been killed between writing and truncating.
        found, _ = json.JSONDecoder().raw_decode(raw.decode())
        return of_json(cls, found)

    def sizes(self) -> tuple[int, int]:
        """The present sizes of the files; for a file that is gone, the size up to which it is kept."""
        found = [_size(file, kept) for file, kept in zip(self.files, self.kept, strict=True)]
        return found[0], found[1]

    def mark(self, mark: Mark) -> bool:
        """Note which attempt is scored from here on. Returns whether this is new."""
        last = self.marks[-1]
        if mark.sizes == last.sizes:
            self.marks[-1] = mark
            return (last.shard, last.attempt) != (mark.shard, mark.attempt)
        self.marks.append(mark)
        if len(self.marks) > _MARKS:  # the storage has been away for long
            self.lost = self.lost or "too much was printed meanwhile"
            self.advance(self.marks[_MARKS // 2].sizes)
        return True

    def advance(self, sizes: tuple[int, int]) -> None:
        """Note that everything before these sizes is kept."""
        self.kept = sizes
        passed = [mark for mark in self.marks if mark.sizes[0] <= sizes[0] and mark.sizes[1] <= sizes[1]]
        self.marks = [*passed[-1:], *self.marks[len(passed) :]]


def keep(
    storage: Storage, revision: str, book: Book, sizes: tuple[int, int], masks: Masks, failed: str, *, final: bool
) -> tuple[tuple[int, int], int]:
    """Write a part with the output between `book.kept` and these sizes, if there is any. Returns how far, and its
    length.

    failed: why the last try failed. final: include a last line without an end, too.

    Raises:
        StorageError: it could not be written.
        OSError: a file could not be read.
    """
    if not final:
        sizes = _whole(book, sizes)
    lines = [line for stream in (0, 1) for line in _lines(book, stream, sizes, masks)]
    lines.sort(key=lambda line: line.at)
    if failed and lines:
        lines.append(_note(lines[-1], f"… kept late, because {masks(failed)}"))
    if book.lost and lines:
        lines.insert(0, _note(lines[0], f"… lines before these are left out: {book.lost}"))
    lines = _bounded(lines, SPARING_CHARS if book.total > WORKER_CHARS else PART_CHARS)
    if lines:
        write(storage, revision, book.epoch, book.worker, lines)
    return sizes, sum(len(line.text) for line in lines)


def _lines(book: Book, stream: int, sizes: tuple[int, int], masks: Masks) -> Iterator[Line]:
    """One stream's lines, each with its shard and time."""
    starts = [mark.sizes[stream] for mark in book.marks]
    with contextlib.ExitStack() as opened:
        if book.kept[stream] == sizes[stream]:
            return
        file = opened.enter_context(Path(book.files[stream]).open("rb"))
        for first, last, mark in _spans(book.marks, stream, book.kept[stream], sizes[stream]):
            for offset, raw in _pieces(file, first, last):
                seen = bisect_right(starts, offset)
                at = round(book.marks[seen].at if seen < len(starts) else time.time(), 2)
                if isinstance(raw, int):
                    yield Line(at, NOTE, _left_out(raw), mark.shard, mark.attempt, offset)
                    continue
                text = _text(raw)
                if text and not text.startswith(book.ignored):
                    yield Line(at, STREAMS[stream], masks(text)[:LINE_CHARS], mark.shard, mark.attempt, offset)


def _spans(marks: Sequence[Mark], stream: int, first: int, last: int) -> Iterator[tuple[int, int, Mark]]:
    """What each attempt printed to a stream from `first` to `last`."""
    for _, group in itertools.groupby(enumerate(marks), lambda item: (item[1].shard, item[1].attempt)):
        (index, mark), *others = group
        behind = (others[-1][0] if others else index) + 1
        low = max(first, mark.sizes[stream])
        high = min(last, marks[behind].sizes[stream]) if behind < len(marks) else last
        if low < high:
            yield low, high, mark


def _pieces(file: BinaryIO, first: int, last: int) -> Iterator[tuple[int, bytes | int]]:
    """Lines of a file with their offsets; of many bytes the first and last lines, and the number left out between."""
    half = SPAN_BYTES // 2
    if last - first <= SPAN_BYTES:
        yield from _split(_read(file, first, last), first)
        return
    head, tail = _read(file, first, first + half), _read(file, last - half, last)
    # Only whole lines, because a cut line could show half a secret.
    low, begin = first + head.rfind(b"\n") + 1, tail.find(b"\n") + 1
    high = last - half + begin if begin else last
    yield from _split(head[: low - first], first)
    yield low, max(1, sum(chunk.count(b"\n") for chunk in _chunks(file, low, high)))
    yield from _split(tail[high - last + half :], high)


def _split(raw: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    for line in raw.split(b"\n"):
        yield offset, line
        offset += len(line) + 1


def _text(raw: bytes) -> str:
    """A line as a terminal would show it: of text that is overwritten in place, the last."""
    return raw.decode(errors="replace").rstrip("\r").rpartition("\r")[2].rstrip()


def _read(file: BinaryIO, first: int, last: int) -> bytes:
    file.seek(first)
    return file.read(last - first)


def _chunks(file: BinaryIO, first: int, last: int) -> Iterator[bytes]:
    file.seek(first)
    while first < last and (chunk := file.read(min(_CHUNK, last - first))):
        first += len(chunk)
        yield chunk


def _bounded(lines: list[Line], most: int) -> list[Line]:
    """The first and the last lines, and between them how many are left out."""
    if sum(len(line.text) for line in lines) <= most:
        return lines
    head, tail = _up_to(lines, most // 2), _up_to(lines[::-1], most // 2)[::-1]
    left = len(lines) - len(head) - len(tail)
    return [*head, _note(lines[len(head)], _left_out(left)), *tail] if left > 0 else lines


def _up_to(lines: list[Line], most: int) -> list[Line]:
    lengths = itertools.accumulate(len(line.text) for line in lines)
    return [line for line, length in zip(lines, lengths, strict=True) if length <= most]


def _left_out(lines: int) -> str:
    return f"… {lines:,} line{'s' if lines > 1 else ''} left out"


def _note(beside: Line, text: str) -> Line:
    return replace(beside, stream=NOTE, text=text)


def _whole(book: Book, sizes: tuple[int, int]) -> tuple[int, int]:
    """How far there are whole lines; a long line is taken before it ends."""
    found = []
    for file, kept, size in zip(book.files, book.kept, sizes, strict=True):
        if size == kept:
            found.append(size)
            continue
        with Path(file).open("rb") as opened:
            low = max(kept, size - SPAN_BYTES)
            ends = _read(opened, low, size).rfind(b"\n")
        found.append(low + ends + 1 if ends >= 0 else size if low > kept else kept)
    return found[0], found[1]


def _size(file: str, otherwise: int) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:
        return otherwise
