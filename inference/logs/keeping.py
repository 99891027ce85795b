"""Reads what a process has printed to its files, masks secrets, and keeps the first and the last lines of it.

Which shard a line belongs to is said in the files themselves: a worker writes a marker line when it begins a shard.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from nightjar.inference.logs.printed import NOTE, STREAMS, Line, write
from nightjar.inference.messages import HIDDEN, SHORTEST, forms_of
from nightjar.inference.records import Started
from nightjar.inference.storage.locations import without_password
from nightjar.inference.storage.protocol import Storage

SPAN_CHARS = 8_192
"""The most characters that are kept of what one shard printed to one stream between two parts, and of one line."""

PART_CHARS = 32_768
LINE_CHARS = 2_000

_MARKER = ":task_name:nightjar "
"""The beginning of a marker line. Ray's own log monitor takes a line `:task_name:` as the name of what runs now."""

_MARKER_LINE = re.compile(re.escape(_MARKER) + r"(\S+) (\d{1,9}) (\d{1,12}\.\d{3})")
"""A whole marker line. One that a full disk has cut does not match."""

_RAYS_OWN = (":job_id:", ":actor_name:", ":task_name:")
"""Beginnings of the lines that Ray writes to a worker's files for its log monitor."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a file is kept, in bytes, and the shard that was being scored there."""

    offset: int
    shard: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Book:
    """How far a process's standard output and error are kept. Stored as JSON, so that another process can go on."""

    worker: str
    """`host:pid` of the process."""

    epoch: int
    """The epoch of the writer for whom the process works."""

    files: tuple[str, str]
    """The paths of the files of standard output and standard error, on the machine of the process."""

    kept: tuple[Position, Position]
    """How far each of the files is kept."""

    @property
    def is_complete(self) -> bool:
        """Whether the files have nothing more. A file that is gone has nothing."""
        return all(_size(file) <= kept.offset for file, kept in zip(self.files, self.kept, strict=True))


def marker(started: Started) -> bytes:
    """The line that says: what follows is printed while this attempt is scored."""
    return f"\n{_MARKER}{started.shard} {started.attempt} {time.time():.3f}\n".encode()


def keep(storage: Storage, revision: str, book: Book, masks: Masks, *, final: bool) -> Book:
    """Write a part with what the files have beyond `book.kept`, if there is anything. Returns the book after it.

    final: include a last line without an end, too.

    Raises:
        StorageError: It could not be written.
        OSError: A file could not be read.
    """
    ends = _Ends(PART_CHARS)
    printed, kept = [], []
    for stream, file, position in zip(STREAMS, book.files, book.kept, strict=True):
        lines, reached = _scan(Path(file), stream, position, masks, final)
        printed += lines
        kept.append(reached)
    for line in sorted(printed, key=lambda line: line.at):
        ends.add(line)
    lines = [replace(line, text=masks(line.text)[:LINE_CHARS]) for line in ends.lines()]
    if lines:
        write(storage, revision, book.epoch, book.worker, lines)
    return replace(book, kept=(kept[0], kept[1]))


def _scan(path: Path, stream: str, position: Position, masks: Masks, final: bool) -> tuple[list[Line], Position]:
    """The first and the last lines of each shard in a file from a position on, and the position after them."""
    if _size(str(path)) <= position.offset:
        return [], position
    found: list[Line] = []
    ends = _Ends(SPAN_CHARS)
    with path.open("rb") as file:
        file.seek(position.offset)
        for text, end in _whole_lines(file, final):
            if text and len(text) > LINE_CHARS:
                text = masks(text)[:LINE_CHARS]  # before it is cut: half a secret would not be found
            line = Line(time.time(), stream, text or "", position.shard, position.attempt)
            position = replace(position, offset=end)
            if text is None:
                ends.drop(line)
            elif begun := _MARKER_LINE.fullmatch(text):
                shard, attempt, at = begun.groups()
                # The marker's time is rounded: it may be later than now, and what follows must not come before.
                found += (replace(each, at=min(float(at), line.at)) for each in ends.lines())
                ends, position = _Ends(SPAN_CHARS), Position(end, shard, int(attempt))
            elif text.startswith(_MARKER) or (text and not text.startswith(_RAYS_OWN)):
                ends.add(line)
    return [*found, *ends.lines()], position


def _whole_lines(file: BinaryIO, final: bool) -> Iterator[tuple[str | None, int]]:
    """Lines with the offset of their end, as a terminal would show them: of text that is overwritten, the last.

    A line that is too long is None, because a part of it might be half a secret.
    """
    too_long = False
    while raw := file.readline(SPAN_CHARS):
        if not raw.endswith(b"\n") and (len(raw) == SPAN_CHARS or not final):
            too_long = True  # or it has not ended yet
            continue
        _, overwritten, last = raw.rstrip(b"\r\n").rpartition(b"\r")
        yield None if too_long and not overwritten else last.decode(errors="replace").rstrip(), file.tell()
        too_long = False


class _Ends:
    """The first and the last lines of many, and how many are left out between them."""

    def __init__(self, most: int) -> None:
        """most: characters of all lines together."""
        self._half = most // 2 - 16  # the note takes some, too
        self._head: list[Line] = []
        self._tail: deque[Line] = deque()
        self._room, self._in_tail = self._half, 0
        self._first_left_out: Line | None = None
        self._left_out = 0

    def add(self, line: Line) -> None:
        size = len(line.text)
        if not self._tail and not self._left_out and size <= self._room:
            self._head.append(line)
            self._room -= size
            return
        self._tail.append(line)
        self._in_tail += size
        while self._in_tail > self._half:
            first = self._tail.popleft()
            self._in_tail -= len(first.text)
            self.drop(first)

    def drop(self, line: Line) -> None:
        """Leave a line out, or a note with the lines in whose place it stands."""
        self._first_left_out = self._first_left_out or line
        self._left_out += line.left_out or 1

    def lines(self) -> list[Line]:
        """The lines that are kept, with a note in place of the others."""
        if self._first_left_out is None:
            return [*self._head, *self._tail]
        text = f"… {self._left_out:,} line{'s' if self._left_out > 1 else ''} left out"
        note = replace(self._first_left_out, stream=NOTE, text=text, left_out=self._left_out)
        return [*self._head, note, *self._tail]


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0


# ---- secrets ------------------------------------------------------------------------------------------------

_SECRET = re.compile(r"SECRET|TOKEN|PASSW|PWD|CREDENTIAL|PRIVATE|AUTH|API_?KEY|ACCESS_KEY|SIGNATURE|_KEY$", re.I)
_NO_SECRET = re.compile(r"(_FILE|_PATH|_DIR|_SOCK|_MODE|_ID|_URL|_URI|^PWD|^OLDPWD)$", re.I)
"""Names of variables whose values tell where a secret is, or of which kind, but are not secret."""


class Masks:
    """Masks the values that this process knows to be secret: as they are, as JSON and `repr` write them, encoded for a
    URL, and in base64.

    The name of a variable or setting tells whether its value is secret. A password in a URL is found by its position.
    """

    def __init__(
        self, storage: Storage, environment: Mapping[str, str] = os.environ, secrets: Iterable[str] = ()
    ) -> None:
        """secrets: other values."""
        known = (*_secrets(storage, environment), *(each for each in secrets if len(each) >= SHORTEST))
        found = {form for value in known for form in forms_of(value)}
        # The longest first, because one secret may contain another.
        ordered = sorted(found, key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def __call__(self, text: str) -> str:
        if self._values is not None:
            text = self._values.sub(HIDDEN, text)
        return without_password(text) if "://" in text else text


def _secrets(storage: Storage, environment: Mapping[str, str]) -> Iterator[str]:
    settings = getattr(storage, "settings", None)
    values = [getattr(settings, name, None) for name in ("secret_key", "session_token")]
    values += [value for name, value in environment.items() if _SECRET.search(name) and not _NO_SECRET.search(name)]
    for value in filter(None, values):
        # A key in PEM form is printed line by line; a password may have a name before it.
        lines = [*value.splitlines(), value.partition(":")[2]]
        yield from (line.strip() for line in lines if len(line.strip()) >= SHORTEST)
