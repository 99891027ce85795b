"""How the work of an engine is cut, as far as results depend on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa

AUDIT_BLOCKS = 256
AUDIT_SHARDS = 32
"""At least so many blocks an audit has, and at most so many shards a block: each has the same time to end."""


def audit_blocks(outcomes: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Blocks as a pure function of the shards: the order of merging must not vary."""
    count = max(1, min(outcomes.num_rows, max(AUDIT_BLOCKS, -(-outcomes.num_rows // AUDIT_SHARDS))))
    edges = [outcomes.num_rows * index // count for index in range(count + 1)]
    for index, (low, high) in enumerate(itertools.pairwise(edges)):
        yield index, outcomes.slice(low, high - low).combine_chunks()
