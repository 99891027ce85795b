"""Pairs the rows of two runs by their keys: exactly, at any size, in bounded memory.

The rows of both runs are divided by the hash of their key. Then one division at a time is paired: in memory together
are its distinct keys, and those rows whose key both runs have. A key that several rows of a run have does not say which
of them is meant, so that none of these rows is paired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.metrics.columns import plain
from nightjar.inference.validation.dividing import blocks, divide, divisions
from nightjar.inference.validation.joinkeys import keys_of, whole

SOME = 5
"""The number of keys that are named of those that were not paired: the first ones in the order of their bytes."""


@dataclass(slots=True)
class Side:
    """The rows of one of the two runs: each is paired, or one of these.

    keyless: with a null in their key. repeated: whose key several rows of this run, or of the other one, have. only:
    whose key the other run does not have. some_repeated, some_only: the first keys of these.
    """

    rows: int = 0
    keyless: int = 0
    repeated: int = 0
    only: int = 0
    some_repeated: list[bytes] = field(default_factory=list)
    some_only: list[bytes] = field(default_factory=list)

    def count(self, keys: pa.Array, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Count a division's rows. keys: its distinct ones, which so many rows of this run and of the other one have.
        Returns which keys are paired.
        """
        repeated = (rows > 1) | (others > 1)
        only = ~repeated & (others == 0)
        self.repeated += int(rows[repeated].sum())
        self.only += int(only.sum())
        self.some_repeated = _first([*self.some_repeated, *_smallest(keys, repeated)])
        self.some_only = _first([*self.some_only, *_smallest(keys, only)])
        paired: np.ndarray = ~(repeated | only)
        return paired


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows of both runs: those at the same place have the same key, which no other row has. keys: as of `keys_of`."""

    keys: pa.Array
    before: pa.Table
    now: pa.Table


@dataclass(slots=True)
class Pairing:
    """One pairing. folder: an empty one on the local disk. key: the columns that both runs have in common. rows, size:
    about as many rows as the larger run has, and their bytes.
    """

    folder: Path
    key: Sequence[str]
    rows: int
    size: int
    before: Side = field(default_factory=Side)
    now: Side = field(default_factory=Side)

    def pairs(self, before: Iterable[pa.Table], now: Iterable[pa.Table], wanted: Sequence[str]) -> Iterator[Pairs]:
        """The wanted columns of the rows that both runs have, in blocks, in no order.

        before, now: all rows of each run, in blocks.

        Raises:
            JobError: A time in a key is finer than a microsecond.
            StorageError: The disk took no more.
        """
        into = divisions(self.rows, self.size)
        one, other = self.folder / "before", self.folder / "now"
        divide((self._keyed(each, wanted, self.before) for each in before), one, into)
        divide((self._keyed(each, wanted, self.now) for each in now), other, into)
        for index in range(into):
            mine, theirs = (_counted(blocks(folder, index)) for folder in (one, other))
            keys = mine[0].filter(pa.array(self.before.count(*mine, _rows_of(mine[0], *theirs))))
            self.now.count(*theirs, _rows_of(theirs[0], *mine))
            if len(keys):
                yield Pairs(keys, *(_aligned(blocks(folder, index), keys) for folder in (one, other)))

    def _keyed(self, rows: pa.Table, wanted: Sequence[str], side: Side) -> pa.Table:
        keys = keys_of([rows[name] for name in self.key])
        side.rows += len(keys)
        side.keyless += keys.null_count
        found = pa.table([keys, *(plain(rows[name]) for name in wanted)], ["", *wanted])
        return found.filter(keys.is_valid()) if keys.null_count else found


def _counted(rows: Iterator[pa.Table]) -> tuple[pa.Array, np.ndarray]:
    """The distinct keys of a division, and how many rows have each."""
    keys, counts = pa.array([], pa.large_binary()), np.zeros(0, np.int64)
    for block in rows:
        found = whole(block.column(0)).dictionary_encode()
        here = np.bincount(found.indices.to_numpy(), minlength=len(found.dictionary))
        at = pc.index_in(found.dictionary, value_set=keys)
        known = np.asarray(at.is_valid())
        counts[at.drop_null().to_numpy()] += here[known]
        keys = pa.concat_arrays([keys, found.dictionary.filter(pa.array(~known))])
        counts = np.concatenate([counts, here[~known]])
    return keys, counts


def _rows_of(keys: pa.Array, known: pa.Array, counts: np.ndarray) -> np.ndarray:
    """How many rows have each of these keys. counts: how many have each of the known ones."""
    at = pc.index_in(keys, value_set=known)
    found = np.zeros(len(keys), np.int64)
    found[np.asarray(at.is_valid())] = counts[at.drop_null().to_numpy()]
    return found


def _aligned(rows: Iterator[pa.Table], keys: pa.Array) -> pa.Table:
    """The rows with these keys, which are each there once, in their order; without the key."""
    tables, places = [], []
    for block in rows:
        at = pc.index_in(block.column(0), value_set=keys)
        tables.append(block.filter(at.is_valid()).select(range(1, block.num_columns)))
        places.append(at.drop_null().to_numpy())
    return pa.concat_tables(tables).take(pa.array(np.argsort(np.concatenate(places))))


def _smallest(keys: pa.Array, which: np.ndarray) -> list[bytes]:
    found = keys.filter(pa.array(which))
    return list(found.take(pc.bottom_k_unstable(found, SOME)).to_pylist()) if len(found) else []


def _first(keys: list[bytes]) -> list[bytes]:
    return sorted(keys)[:SOME]
