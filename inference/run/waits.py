"""Keeps what a run waits for, beside its revisions, for whoever asks meanwhile how it stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from nightjar.inference.errors import JobError, StorageError
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.ledger.holders import Holder, is_dead, this_holder
from nightjar.inference.output.owner import check_owner
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import Storage, join

_FOLDER = "waits"


@dataclass(frozen=True, slots=True)
class Waits:
    """What a process waits for before a run goes on. sentence: for people. holder: the process, and since when."""

    job: str
    sentence: str
    holder: Holder

    def __str__(self) -> str:
        return f"{self.sentence} ({self.holder})"


@contextmanager
def keeping(request: RunRequest) -> Iterator[Callable[[str], None]]:
    """Keep what this process waits for until the end of the block: the sentence that was given last.

    Does nothing if the output belongs to another job, or if the storage is away.
    """
    holder = this_holder("waits", request.flow_run, request.engine)
    uri = join(request.run_uri, _FOLDER, f"{holder.nonce}.json")
    kept = False

    def keep(sentence: str) -> None:
        nonlocal kept
        with suppress(StorageError, JobError):
            check_owner(request.storage, request.output, request.job.name)
            request.storage.write(uri, json.dumps(to_json(Waits(request.job.name, sentence, holder))).encode())
            kept = True

    try:
        yield keep
    finally:
        if kept:
            with suppress(StorageError):
                request.storage.delete([uri])


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
    return max(alive, key=lambda each: each.holder.at, default=None)
