"""Cuts the work of an engine into blocks, as far as results depend on the blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa

AUDIT_BLOCKS = 256
AUDIT_SHARDS = 32
"""The least number of blocks of an audit, and the most shards per block, because every block has the same time
limit."""


def audit_blocks(outcomes: pa.Table) -> Iterator[pa.Table]:
    """Cut into blocks. They depend only on the shards, because the order of merging must not vary."""
    count = max(1, min(outcomes.num_rows, max(AUDIT_BLOCKS, -(-outcomes.num_rows // AUDIT_SHARDS))))
    edges = [outcomes.num_rows * index // count for index in range(count + 1)]
    for low, high in itertools.pairwise(edges):
        yield outcomes.slice(low, high - low).combine_chunks()
