"""Notes that say which command is writing the readers' folders of which dates.

What a killed command wrote last may be old, so the next command writes these dates again. The note
`latest/_writing/<nonce>.json` exists from before a command's first write until the command has found that nobody
published meanwhile. A command that stood still before a write may overwrite newer files, and be killed before it mends
that.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Set
from dataclasses import dataclass, field

from nightjar.inference.errors import Missing
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.ledger.holders import Holder, is_dead, this_holder
from nightjar.inference.storage.protocol import Storage, join

_GONE_AFTER = dt.timedelta(days=7)
"""The age after which a note of a process on another machine is ignored; no process stands still for so long."""


@dataclass(frozen=True, slots=True)
class Left:
    """A note that another command left, or has not removed yet.

    dates: None if they are not known. ended: whether that command certainly does not write any more.
    """

    uri: str
    dates: frozenset[str] | None
    ended: bool


@dataclass(frozen=True, slots=True)
class _Note:
    """The content of a note. over: its command writes no more, and left these dates to the next one."""

    dates: tuple[str, ...]
    writer: Holder
    over: bool = False


@dataclass
class Notes:
    """This command's note, and those of others, for one output."""

    storage: Storage
    output: str
    _own: list[str] = field(default_factory=list)
    _noted: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def others(self) -> list[Left]:
        """The notes of other commands."""
        found = []
        for entry in self.storage.list(self._folder()):
            try:
                found.append(_read(entry.uri, self.storage.read(entry.uri)))
            except Missing:
                continue  # it was removed just now
        return found

    def note(self, dates: Set[str]) -> None:
        """Leave a note before a write; a command that changes nothing leaves none. dates: all that this command
        writes.
        """
        with self._lock:
            if self._own and dates <= self._noted:
                return
            self._own.append(self._leave(dates - self._noted))
            self._noted |= dates

    def remove(self, mended: list[Left], unfinished: Set[str] | None = None) -> None:
        """Remove this command's notes, and those of `mended` whose processes have ended, because the folders are
        right. unfinished: the dates of which they are not, if there is anything left to do for the next command; a note
        of these is left.
        """
        gone = [*self._own, *(left.uri for left in mended if left.ended)]
        if unfinished is not None:
            self._leave(unfinished, over=True)
        if gone:
            self.storage.delete(gone)

    def _leave(self, dates: Set[str], *, over: bool = False) -> str:
        writer = this_holder("places")
        uri = join(self._folder(), f"{writer.nonce}.json")
        self.storage.create(uri, json.dumps(to_json(_Note(tuple(sorted(dates)), writer, over))).encode())
        return uri

    def _folder(self) -> str:
        return join(self.output, "latest", "_writing")


def _read(uri: str, raw: bytes) -> Left:
    try:
        note = of_json(_Note, json.loads(raw))
        writer = note.writer
        old = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(writer.at) > _GONE_AFTER
        return Left(uri, frozenset(note.dates), note.over or old or is_dead(writer))
    except (ValueError, TypeError, LookupError, AttributeError):
        return Left(uri, None, ended=True)
