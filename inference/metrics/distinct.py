"""How many distinct values a column has, as a state that merges exactly: HyperLogLog with 4,096 registers.

A value's hash chooses a register, which keeps the longest run of leading zeros that the rest of such a hash has had
(Flajolet, Fusy, Gandouet and Meunier, AofA 2007). So the registers depend on the set of values alone: no order,
grouping or repetition of the rows changes them. Nor does the type: a number is hashed as the float64 that it is, if it
is one.
"""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from nightjar.inference.metrics.keyhash import Hashes, comparable, hashes_of, mixed

_BITS = 12
_REGISTERS = 1 << _BITS
_RANKS = 64 - _BITS
"""The bits of a hash that choose a register, and those whose leading zeros are counted."""

_SPREAD_BITS = 8
SPREAD = 1 << _SPREAD_BITS
"""Groups of values by the first bits of their hashes; the last bits choose registers."""

_ALL = 2.0**64
"""As many values as there are hashes."""

ERROR = 1.04 / math.sqrt(_REGISTERS)
"""The standard error of the count, relative to it: two of three counts are nearer than that, 997 of 1000 nearer than
three times as much."""

_BLOCK = 1 << 14
"""Values at a time: what is computed of them stays in the cache."""

_NOTED = 1 << 14
"""The least hashes that are noted at once, because that takes a while for few, too."""


@dataclass(slots=True)
class DistinctState:
    """registers: of each, one more than the longest run of leading zeros; 0 without a value."""

    registers: np.ndarray = field(default_factory=lambda: np.zeros(_REGISTERS, np.uint8))

    def update(
        self,
        values: np.ndarray | pa.Array | pa.ChunkedArray,
        spread: np.ndarray | None = None,
        counts: np.ndarray | None = None,
    ) -> None:
        """Add values. Numbers are arrays of numpy, without NaN; texts are arrays of Arrow, without nulls.

        spread: shape (SPREAD,): the rows in each group of values by their hashes, to which these are added. counts: of
        each value its rows, by default one.
        """
        waiting: list[Hashes] = []
        limit = _limit(self.registers)
        for first in range(0, len(values), _BLOCK):
            block = values[first : first + _BLOCK]
            found = mixed(_words(block)) if isinstance(block, np.ndarray) else _text_hashes(block)
            if spread is not None:
                group = (found >> np.uint64(64 - _SPREAD_BITS)).astype(np.intp)
                weights = None if counts is None else counts[first : first + _BLOCK]
                spread += np.bincount(group, weights, minlength=SPREAD).astype(np.int64)
            waiting.append(found[np.flatnonzero(found <= limit)])
            if sum(map(len, waiting)) >= _NOTED:
                _note(self.registers, np.concatenate(waiting))
                waiting, limit = [], _limit(self.registers)
        if waiting:
            _note(self.registers, np.concatenate(waiting))

    def merge(self, other: DistinctState) -> None:
        """Add another's values to these."""
        np.maximum(self.registers, other.registers, out=self.registers)

    def values(self) -> str:
        """The registers as text, for JSON."""
        return base64.b64encode(_deflated(self.registers)).decode("ascii")

    @classmethod
    def of_values(cls, values: str) -> DistinctState:
        """The inverse of `values`.

        Raises:
            ValueError: There are not as many registers, or they are not registers.
        """
        found = np.frombuffer(bytearray(zlib.decompress(base64.b64decode(values, validate=True))), np.uint8)
        if len(found) != _REGISTERS or found.max() > _RANKS + 1:
            raise ValueError(f"not {_REGISTERS} registers")
        return cls(found)

    def count(self) -> int:
        """About how many distinct values there are, within `ERROR`."""
        return round(_estimate(np.bincount(self.registers, minlength=_RANKS + 2).tolist()))


def _deflated(registers: np.ndarray) -> bytes:
    """In 1,500 bytes at most: what repeats is only where there are few values, so runs alone are looked for."""
    packer = zlib.compressobj(level=9, strategy=zlib.Z_RLE)
    return packer.compress(registers.tobytes()) + packer.flush()


def _text_hashes(texts: pa.Array | pa.ChunkedArray) -> Hashes:
    return hashes_of(comparable(texts if isinstance(texts, pa.ChunkedArray) else pa.chunked_array([texts])))


def _words(numbers: np.ndarray) -> Hashes:
    """The bits of the float64 that each number is; those of the number itself where there is no such float64."""
    floats = numbers.astype(np.float64)
    floats += 0.0  # -0.0 is 0.0
    words: Hashes = floats.view(np.uint64)
    if numbers.dtype.kind == "f" or not len(numbers) or abs(floats).max() <= 1 << 53:
        return words
    # 2^63 and 2^64 are floats, and beyond the integers.
    limit = float(np.iinfo(numbers.dtype).max)
    whole = np.where(floats < limit, floats, 0.0).astype(numbers.dtype)
    return np.where((whole == numbers) & (floats < limit), words, numbers.astype(np.uint64))


def _limit(registers: np.ndarray) -> np.uint64:
    """The largest hash by which a register may grow: one with more leading zeros than the smallest register."""
    return np.uint64((1 << 64 - int(registers.min())) - 1)


def _note(registers: np.ndarray, hashed: Hashes) -> None:
    """Add values by their hashes."""
    leading = (hashed >> np.uint64(_BITS)).astype(np.float64)  # exact, and its exponent is the number of its bits
    bits = (leading.view(np.int64) >> 52) - 1022
    ranks = np.minimum(_RANKS + 1 - bits, _RANKS + 1).astype(np.uint8)
    chosen = (hashed & np.uint64(_REGISTERS - 1)).astype(np.intp)
    longer = np.flatnonzero(ranks > registers[chosen])
    np.maximum.at(registers, chosen[longer], ranks[longer])


def _estimate(counts: list[int]) -> float:
    """The number of distinct values. counts: how many registers hold 0, 1, ….

    Without bias, and without tables, for all numbers (Ertl, arXiv:1702.01284, algorithm 6).
    """
    z = _REGISTERS * _tau(1 - counts[_RANKS + 1] / _REGISTERS)
    for held in counts[_RANKS:0:-1]:
        z = 0.5 * (z + held)
    z += _REGISTERS * _sigma(counts[0] / _REGISTERS)
    return min(_REGISTERS * _REGISTERS / (2 * math.log(2) * z), _ALL) if z else _ALL


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z, y = z + x * y, 2 * y
    return z


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x, before, y = math.sqrt(x), z, y / 2
        z -= (1 - x) ** 2 * y
    return z / 3
