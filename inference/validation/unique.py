"""Finds rows of a night that have the same key: exactly, at any size, in bounded memory.

The audit, which has each part in memory, writes a sorted file of hashes of its keys for each block of shards. Then a
range of hashes at a time is read from all these files, and hashes that are there more than once are looked for. Rows
that share a hash are read, and their keys compared: only rows with the same key count.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import shown
from nightjar.inference.job.checks import UniqueCheck
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.messages import MESSAGE_CHARS, clip
from nightjar.inference.metrics.keyhash import Hashes, comparable, hashes, keys
from nightjar.inference.output import outcomes
from nightjar.inference.output.parts import DataPart, read_data
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.validation.gates import Offender, Repeated
from nightjar.inference.validation.sorted_runs import Each, SortedRun, counts_of, ranges, results
from nightjar.inference.validation.violating_rows import MAX_OFFENDERS, place_of

_FOLDER = "keys"
_CANDIDATES = 8
"""The number of repeated hashes whose rows are read. One in about forty nights of a billion rows has a hash that two
keys share; none has eight.
"""

_OF_A_HASH = 1000
"""The most rows of a shard with one hash that are looked at: these have one key, or very few."""


@dataclass(frozen=True, slots=True)
class Spill(SortedRun):
    """The hashes of a block's keys, each at most twice, so that a key that all rows have costs no memory. check: the
    check's key in the job. shards: of the block. left_out: how many hashes were there more often.
    """

    check: str
    shards: int
    left_out: int = 0


_Row = tuple[tuple[object, ...], Offender]
"""The key of a row, as in `keyhash.keys`, and the row with its key for people."""

_Holders = dict[int, list[int]]
"""Repeated hash → the indices of the first two files that have it; of one, if that has it twice."""


def unique_checks(job: Job) -> dict[str, tuple[str, ...]]:
    """The columns of each check on keys, by the check's key in the job."""
    return {f"{key}.unique": check.unique for key, check in job.checks_of(UniqueCheck).items() if job.judged}


class KeyNotes:
    """Notes the keys of one block of shards, given in order."""

    def __init__(self, job: Job) -> None:
        self._checks = unique_checks(job)
        self._found: dict[str, list[Hashes]] = {key: [] for key in self._checks}
        self._first, self._parts = "", list[str]()

    def look(self, line: Mapping[str, Any], part: DataPart) -> None:
        """Note one shard's. line: of `outcomes.OUTCOMES`."""
        self._first = self._first or line["shard"]
        self._parts.append(part.name)
        for key, columns in self._checks.items():
            table = part.table(columns)
            self._found[key].append(hashes([comparable(table[name]) for name in columns], table.num_rows))

    def written(self, storage: Storage, revision: str) -> list[Spill]:
        """Write the files. A file that is written again has the same content."""
        if not self._parts:
            return []
        return [self._write(storage, revision, key) for key in self._checks]

    def _write(self, storage: Storage, revision: str, key: str) -> Spill:
        whole = np.sort(np.concatenate(self._found.pop(key)))
        kept = np.ones(len(whole), bool)
        kept[2:] = whole[2:] != whole[:-2]
        found = whole[kept]
        named = "\0".join([*self._checks[key], "", *self._parts])
        name = f"{_FOLDER}/{hashlib.sha256(named.encode()).hexdigest()[:32]}"
        storage.write(join(revision, name), found.tobytes())
        return Spill(name, self._first, counts_of(found), key, len(self._parts), len(whole) - len(found))


def repeated(
    each: Each, storage: Storage, revision: str, job: Job, table: pa.Table, spills: Sequence[Spill]
) -> Generator[dict[str, Repeated] | None, None, None]:
    """Find the rows that share a key, for each check on keys; yields None on a tick, and at the end what was found.

    each: carries out the work. table: the run's `outcomes.OUTCOMES`. spills: of all blocks, in order. Their files are
    deleted.
    """
    found: dict[str, Repeated] = {}
    for key, columns in unique_checks(job).items():
        own = [spill for spill in spills if spill.check == key]
        look, read = partial(_look, storage, revision, own), partial(_rows, storage, revision, columns)
        looked = yield from results(each(look, ranges(sum(spill.rows for spill in own)), job, "check on keys"))
        count = sum(spill.left_out for spill in own) + sum(again for again, _ in looked)
        first = sorted(chain.from_iterable(holders.items() for _, holders in looked))[:_CANDIDATES]
        work = _to_read(table, own, dict(first))
        rows_read = (yield from results(each(read, work, job, "check on keys"))) if work else []
        same: dict[tuple[object, ...], list[Offender]] = {}
        for values, row in chain.from_iterable(rows_read):
            same.setdefault(values, []).append(row)
        where = [_offender(*rows[:2]) for rows in same.values() if len(rows) > 1]
        found[key] = Repeated(count, tuple(where[:MAX_OFFENDERS])) if where else Repeated()
    storage.delete(entry.uri for entry in storage.list(join(revision, _FOLDER)))
    yield found


def _to_read(
    table: pa.Table, spills: Sequence[Spill], holders: _Holders
) -> list[tuple[list[int], list[dict[str, Any]]]]:
    """The repeated hashes of each file that has some, and the lines of its shards."""
    wanted: dict[int, list[int]] = {}
    for hash_, files in holders.items():
        for index in files:
            wanted.setdefault(index, []).append(hash_)
    firsts = {index: table["shard"].index(spills[index].first).as_py() for index in wanted}
    return [
        (wanted[index], list(outcomes.lines(table.slice(firsts[index], spills[index].shards))))
        for index in sorted(wanted)
    ]


def _offender(one: Offender, other: Offender) -> Offender:
    return replace(other, value=f"{other.value}, as row {one.row} of {one.file} does")


def _look(storage: Storage, revision: str, spills: Sequence[Spill], buckets: tuple[int, int]) -> tuple[int, _Holders]:
    """The number of rows whose hash an earlier row has, and the first repeated hashes of these buckets."""
    slices = [each.read(storage, revision, buckets, np.uint64) for each in spills]
    ordered = np.concatenate(slices)
    ordered.sort()
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    holders = {
        int(each): [at for at, part in enumerate(slices) if each in part][:2] for each in np.unique(again)[:_CANDIDATES]
    }
    return again.size, holders


def _rows(
    storage: Storage, revision: str, columns: Sequence[str], work: tuple[list[int], Iterable[dict[str, Any]]]
) -> list[_Row]:
    """The rows of some shards that have these hashes; of each key the first two of a shard."""
    found, (wanted, lines) = list[_Row](), work
    for line in lines:
        part = read_data(storage, revision, line["data"], line["shard"])
        table = part.table([*columns, *LINEAGE])
        given = [comparable(table[name]) for name in columns]
        hashed = hashes(given, table.num_rows)
        at = np.sort(np.concatenate([np.flatnonzero(hashed == np.uint64(each))[:_OF_A_HASH] for each in wanted]))
        seen = Counter[tuple[object, ...]]()
        for index, key in zip(at.tolist(), keys(given, at), strict=True):
            seen[key] += 1
            if seen[key] <= 2:
                said = ", ".join(f"{name} = {shown(table[name][index], MESSAGE_CHARS)}" for name in columns)
                found.append((key, Offender(line["shard"], *place_of(table, index), clip(said))))
    return found
