"""Which rows of a night are described by the profile of its columns."""

from __future__ import annotations

import numpy as np
import xxhash

from nightjar.inference.metrics.keyhash import mixed

ENOUGH = 250_000
"""About as many rows describe a night that has more, if the job does not say how many. Each share of the rows is then
known to within 0.003, with a probability of 0.95 (Massart 1990); more rows cost time and tell a check on drift nothing
that matters.
"""

_DRAWN = 1 << 14
"""Rows of which is looked at once whether they are drawn: what is computed of them stays in the cache."""


def share_of(rows: int | None) -> float:
    """The share of a night's rows that is enough to describe it. rows: of the night; None if nobody has counted them,
    and all are described then, because reading such files costs more than that.
    """
    return 1.0 if rows is None or rows <= ENOUGH else float(f"{ENOUGH / rows:.3g}")


def drawn(uri: str, rows: np.ndarray, share: float | None) -> np.ndarray | None:
    """Which of these rows are described, as their places among them; None for all. uri: their file. rows: their numbers
    in it, which decide alone: a row is described or not, whatever shard it is in. share: None for all.
    """
    if share is None or share == 1:
        return None
    file, limit = np.uint64(xxhash.xxh3_64_intdigest(uri.encode())), np.uint64(share * 2.0**64)
    found = [
        first + np.flatnonzero(mixed(rows[first : first + _DRAWN].astype(np.uint64) + file) < limit)
        for first in range(0, len(rows), _DRAWN)
    ]
    return np.concatenate(found) if found else np.zeros(0, np.int64)
