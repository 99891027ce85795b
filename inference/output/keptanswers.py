"""Answers of shards that are not written yet, so that nobody pays for an answer twice (`model.journal: true`).

While a shard is underway its answers are written every few seconds, each time as a new file. Whoever begins the shard
again, in this run or after it was killed, asks only for the rest. When the ledger has the shard's receipt, the files
go; not before, because a receipt may be lost on its way from the worker.

    answers/<shard>-<epoch>-<nonce>.jsonl      one line for each answer
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nightjar.inference.errors import Damaged, StorageError
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.output.parts import part_name
from nightjar.inference.predictors.language.answers import Answer
from nightjar.inference.records import Usage
from nightjar.inference.storage.protocol import Storage, join

ANSWERS = "answers"
"""The folder of a revision's files of answers."""

EACH_S = 2.0
"""Seconds between two files of one shard: so many seconds of answers are paid twice if the process is killed."""


@dataclass(frozen=True, slots=True)
class Paid:
    """An answer and what it took. request: a hash of what was asked, so that an answer is never taken for that to
    another question.
    """

    request: str
    answer: Answer
    usage: Usage


class KeptAnswers:
    """The answers of one attempt at a shard."""

    def __init__(self, storage: Storage, revision: str, shard: str, epoch: int) -> None:
        """Read what earlier attempts have paid for.

        Raises:
            Damaged: A file is not as it was written. Names it.
        """
        self._storage, self._revision = storage, revision
        self._shard, self._epoch = shard, epoch
        self._fresh: list[Paid] = []
        self._kept_at = time.monotonic()
        self._paid: dict[str, list[Paid]] = {}
        for paid in self._earlier():
            self._paid.setdefault(paid.request, []).append(paid)

    def known(self, requests: Sequence[Any]) -> dict[int, tuple[Answer, Usage]]:
        """The answers to these requests that were paid for, by row; each is given out once."""
        found = {}
        for row, request in enumerate(requests):
            if paid := self._paid.get(_hash(request)):
                each = paid.pop(0)
                found[row] = each.answer, each.usage
        return found

    def keep(self, request: Any, answer: Answer, usage: Usage) -> None:
        """Keep an answer with the next file. Any thread may call this."""
        self._fresh.append(Paid(_hash(request), answer, usage))

    def flush(self, *, now: bool = False) -> None:
        """Write what was kept since the last file, if that is `EACH_S` ago. now: in any case."""
        if not self._fresh or not (now or time.monotonic() - self._kept_at > EACH_S):
            return
        count = len(self._fresh)  # another thread may add more meanwhile
        lines = [json.dumps(to_json(each)) for each in self._fresh[:count]]
        name = join(self._revision, part_name(ANSWERS, self._shard, self._epoch).replace(".parquet", ".jsonl"))
        self._storage.write(name, ("\n".join(lines) + "\n").encode())
        del self._fresh[:count]
        self._kept_at = time.monotonic()

    def _earlier(self) -> Iterator[Paid]:
        for uri in _files(self._storage, self._revision, self._shard):
            try:
                for line in self._storage.read(uri).decode().splitlines():
                    yield of_json(Paid, json.loads(line))
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                raise Damaged(
                    f"{uri}: is not as it was written ({error}); delete it, and its answers are asked for again"
                ) from None


def discard(storage: Storage, revision: str, shard: str) -> None:
    """Delete the kept answers of a shard. What cannot be deleted now is deleted when the run is published."""
    with suppress(StorageError):
        storage.delete(list(_files(storage, revision, shard)))


def _files(storage: Storage, revision: str, shard: str) -> Iterator[str]:
    folder = join(revision, ANSWERS)
    beginning = join(folder, f"{shard}-")
    for entry in storage.list(folder, after=beginning):
        if not entry.uri.startswith(beginning):
            return
        yield entry.uri


def _hash(request: Any) -> str:
    """Of what is asked; it is the same in every process."""
    return hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()[:20]
