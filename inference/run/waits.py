"""Keeps what a run waits for, beside its revisions, for whoever asks meanwhile how it stands."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from nightjar.inference.errors import JobError, StorageError
from nightjar.inference.jsonform import SELDOM, of_json, to_json
from nightjar.inference.ledger.endings import utc
from nightjar.inference.ledger.holders import Holder, can_be_asked, is_dead, this_holder
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import Storage, join

_FOLDER = "waits"

SIGN_S = 60.0
"""Seconds between two signs of life of a process that waits: a wait for a slot may take the whole night."""

SILENT_S = 600.0
"""A process on another machine that gave no sign for so many seconds is silent. Their clocks may differ by minutes."""


@dataclass(frozen=True, slots=True)
class Waits:
    """What a process waits for before a run goes on. sentence: for people. holder: the process, and since when.

    seen: its last sign of life, in UTC, as ISO 8601.
    """

    job: str
    sentence: str
    holder: Holder
    seen: str = field(default="", metadata=SELDOM)

    @property
    def silent(self) -> bool:
        """Whether the process, on another machine, gives no sign of life."""
        return bool(self.seen) and not can_be_asked(self.holder) and self.seen < utc(-SILENT_S / 3600)

    def __str__(self) -> str:
        gone = (
            f"; no sign of life of it since {self.seen}: it is gone, or does not reach the output"
            if self.silent
            else ""
        )
        return f"{self.sentence} ({self.holder}){gone}"


@contextmanager
def keeping(request: RunRequest, sign_s: float = SIGN_S) -> Iterator[Callable[[str], None]]:
    """Keep what this process waits for until the end of the block: the sentence that was given last.

    sign_s: the seconds between two signs of life meanwhile. Does nothing if the output belongs to another job, or if
    the storage is away.
    """
    kept = _Kept(request, sign_s)
    try:
        yield kept.keep
    finally:
        kept.end()


class _Kept:
    """The file of one process that waits, and the thread that gives its signs of life."""

    def __init__(self, request: RunRequest, sign_s: float) -> None:
        self._request = request
        self._holder = this_holder("waits", request.flow_run, request.engine)
        self._uri = join(request.run_uri, _FOLDER, f"{self._holder.nonce}.json")
        self._sentence = ""
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._signs = threading.Thread(target=self._give_signs, args=(sign_s,), daemon=True, name="nightjar-waits")

    def keep(self, sentence: str) -> None:
        """Keep this sentence from now on."""
        begins, self._sentence = not self._sentence, sentence
        self._write()
        if begins:
            self._signs.start()

    def end(self) -> None:
        """The process waits no more."""
        self._over.set()
        if self._sentence:
            self._signs.join()  # else it might write once more what is deleted here
            with suppress(StorageError):
                self._request.storage.delete([self._uri])

    def _give_signs(self, every_s: float) -> None:
        while not self._over.wait(every_s):
            self._write()

    def _write(self) -> None:
        request = self._request
        with self._writing, suppress(StorageError, JobError):
            request.check_owner()
            told = Waits(request.job.name, self._sentence, self._holder, utc())
            request.storage.write(self._uri, json.dumps(to_json(told)).encode())


def waits(storage: Storage, run_uri: str, job: str, after: str = "") -> Waits | None:
    """What a run of this job waits for, of several processes the last that began to wait; None if nothing is known, or
    if the process is certainly dead. after: only what began later than this, in UTC, as ISO 8601.
    """
    found = []
    for entry in storage.list(join(run_uri, _FOLDER)):
        # It may be over just now; and a file that somebody overwrote is ignored.
        with suppress(StorageError, ValueError, LookupError, TypeError, AttributeError):
            found.append(of_json(Waits, json.loads(storage.read(entry.uri))))
    alive = [each for each in found if each.job == job and each.holder.at >= after and not is_dead(each.holder)]
    return max(alive, key=lambda each: (not each.silent, each.holder.at), default=None)
