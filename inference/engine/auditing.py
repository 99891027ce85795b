"""The audit in this process, in threads: reading and checksums leave Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.engine.blocks import audit_blocks
from nightjar.inference.job.model import Job
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.audit import Audited, audit_block

T = TypeVar("T")
R = TypeVar("R")

FEW_BYTES = 2 << 30
FEW_SHARDS = 500
"""Parts of so many bytes are read from S3, and so many of them checked, in the 4 s in which processes start that would
do it instead."""


def is_small(outcomes: pa.Table) -> bool:
    """Whether an audit of these shards (lines of `outcomes.OUTCOMES`) takes less time than to start processes."""
    size: int = pc.sum(pc.struct_field(outcomes["data"], "size")).as_py() or 0
    return size <= FEW_BYTES and outcomes.num_rows <= FEW_SHARDS


def each_here(work: Callable[[T], R], given: Sequence[T]) -> Iterator[R]:
    """Do work for each thing given; yields the results in order."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield from pool.map(work, given)


def audit_here(storage: Storage, revision: str, job: Job, outcomes: pa.Table) -> Iterator[Audited | None]:
    """Audit committed shards; yields None for each block, and at the end everything merged in order."""
    merged = Audited()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        blocks = (block.to_pylist() for _, block in audit_blocks(outcomes))
        for found in pool.map(partial(audit_block, storage, revision, job), blocks):
            merged.merge(found)
            yield None
    yield merged
