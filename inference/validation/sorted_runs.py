"""Files of sorted keys, one for each block of shards that is audited, of which a range of keys is read at a time.

Keys are hashes of 64 bits. Their first eight bits are the bucket, and a range is one of buckets. So keys of all files
are compared in bounded memory: `RANGE_ROWS` at a time, of a night of more than 256 times as many rows more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nightjar.inference.job.model import Job
from nightjar.inference.output.rowindex import BUCKETS
from nightjar.inference.storage.protocol import Storage, join

RANGE_ROWS = 1 << 22
"""The most keys that a thread or task compares at a time."""


Each = Callable[[Callable[[Any], Any], Sequence[Any], Job, str], Iterator[Any]]
"""As `Engine.each`, of the engine that validates."""


def results(found: Iterator[Any]) -> Generator[None, None, list[Any]]:
    """All results of `Each`, in order; yields on a tick."""
    made = []
    for each in found:
        if each is None:
            yield
        else:
            made.append(each)
    return made


def counts_of(keys: npt.NDArray[np.uint64]) -> bytes:
    """The number of keys in each bucket, as 32-bit integers."""
    buckets = (keys >> np.uint64(56)).astype(np.int64)
    return np.bincount(buckets, minlength=BUCKETS).astype(np.uint32).tobytes()


def ranges(rows: int) -> list[tuple[int, int]]:
    """Ranges of buckets (first, last + 1) of about `RANGE_ROWS` keys. rows: of all files."""
    step = max(1, BUCKETS * RANGE_ROWS // max(rows, 1))
    return [(low, min(low + step, BUCKETS)) for low in range(0, BUCKETS, step)] if rows else []


@dataclass(frozen=True, slots=True)
class SortedRun:
    """A file of the sorted keys of one block of shards. name: below the revision. first: the block's first shard.
    counts: as of `counts_of`.
    """

    name: str
    first: str
    counts: bytes

    @property
    def edges(self) -> npt.NDArray[np.int64]:
        """Where each bucket begins, and the last one ends."""
        return np.concatenate([[0], np.cumsum(np.frombuffer(self.counts, np.uint32), dtype=np.int64)])

    @property
    def rows(self) -> int:
        """The number of its keys."""
        return int(self.edges[-1])

    def read(self, storage: Storage, revision: str, buckets: tuple[int, int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The entries in a range of buckets, in an array that may be written to. dtype: of an entry."""
        low, high = self.edges[list(buckets)].tolist()
        found = np.empty(high - low, dtype)
        if found.size:
            with storage.open(join(revision, self.name)) as file:
                file.seek(low * found.itemsize)
                found[:] = np.frombuffer(file.read(found.nbytes), dtype)
        return found
