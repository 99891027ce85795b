"""Notes of who writes the places of which dates: what a killed one wrote last may be old, so the next one looks again.

`latest/_writing/<nonce>.json` is there from before a command's first write until it has found that nobody published
meanwhile. A command that stood still before a write may come after others, and be killed before it mends that.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Set
from dataclasses import asdict, dataclass, field

from nightjar.inference.errors import Missing
from nightjar.inference.ledger.holders import Holder, is_dead, this_holder
from nightjar.inference.records import known
from nightjar.inference.storage.protocol import Storage, join

_GONE_AFTER = dt.timedelta(days=7)
"""How old the note of a process on another machine must be: none stands still for so long, and writes then."""


@dataclass(frozen=True, slots=True)
class Left:
    """A note that another command left, or has not removed yet.

    dates: None if nobody can say. ended: that command certainly writes no more.
    """

    uri: str
    dates: frozenset[str] | None
    ended: bool


@dataclass
class Notes:
    """This command's note, and those of others, for one output."""

    storage: Storage
    output: str
    _own: list[str] = field(default_factory=list)
    _noted: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def others(self) -> list[Left]:
        """The notes that are there."""
        found = []
        for entry in self.storage.list(self._folder()):
            try:
                found.append(_read(entry.uri, self.storage.read(entry.uri)))
            except Missing:
                continue  # it was removed just now
        return found

    def note(self, dates: Set[str]) -> None:
        """Be called before each write: a command that changes nothing leaves no note. dates: of this and all others."""
        with self._lock:
            if self._own and dates <= self._noted:
                return
            writer = this_holder("places")
            uri = join(self._folder(), f"{writer.nonce}.json")
            content = {"dates": sorted(dates - self._noted), "writer": asdict(writer)}
            self.storage.create(uri, json.dumps(content).encode())
            self._own.append(uri)
            self._noted |= dates

    def remove(self, mended: list[Left]) -> None:
        """The places are right: this command's notes go, and those of `mended` whose processes have ended."""
        gone = [*self._own, *(left.uri for left in mended if left.ended)]
        if gone:
            self.storage.delete(gone)

    def _folder(self) -> str:
        return join(self.output, "latest", "_writing")


def _read(uri: str, raw: bytes) -> Left:
    try:
        content = json.loads(raw)
        writer: Holder = known(Holder, content["writer"])
        old = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(writer.at) > _GONE_AFTER
        return Left(uri, frozenset(content["dates"]), old or is_dead(writer))
    except (ValueError, TypeError, LookupError):
        return Left(uri, None, ended=True)
