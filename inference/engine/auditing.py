"""The audit on any engine, and small work in this process, in threads.

Reading and checksums leave Python's lock, so threads do them at the same time.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.engine.protocol import NO_EVENT, TICK_S, Engine
from nightjar.inference.errors import Transient
from nightjar.inference.job.model import Job
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.audit import Audited, audit_block

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


T = TypeVar("T")
R = TypeVar("R")

FEW_BYTES = 2 << 30
FEW_SHARDS = 500
"""Parts of so many bytes are read from S3, and so many of them checked, in the 4 s in which processes start that would
do it instead."""

THREADS = 8
"""The most threads of an audit here. More would wait for Python's lock, and this process may have few of the machine's
cores."""

HELD_BYTES = 256 << 20
"""The most bytes of parts, as they lie in storage, that such threads hold at once; one part may be larger. Decoded,
they are several times as large."""


def is_small(outcomes: pa.Table) -> bool:
    """Whether an audit of these shards (lines of `outcomes.OUTCOMES`) takes less time than to start processes."""
    size = sum(pc.sum(pc.struct_field(outcomes[part], "size")).as_py() or 0 for part in ("data", "quarantine"))
    return size <= FEW_BYTES and outcomes.num_rows <= FEW_SHARDS


def audited(
    engine: Engine, storage: Storage, revision: str, job: Job, outcomes: pa.Table
) -> Generator[Audited | None, None, None]:
    """Audit committed shards (lines of `outcomes.OUTCOMES`); yields None on a tick, and at the end everything merged.

    Results are merged in the order of `audit_blocks`, so that every engine's metrics are the same to the byte.

    Raises:
        RunFailed: The engine's processes were lost, or stood still.
        Transient: As in `each_here`.
    """
    each = engine.in_tasks
    if each is None or is_small(outcomes):
        sizes = [pc.fill_null(pc.struct_field(outcomes[part], "size"), 0) for part in ("data", "quarantine")]
        largest = pc.max(pc.add(*sizes)).as_py() or 1
        each = partial(each_here, threads=max(1, min(THREADS, HELD_BYTES // largest)), limited=True)
    merged = Audited()
    work = partial(_audit_lines, storage, revision, job)
    for found in each(work, audit_blocks(outcomes), job, "audit"):
        if found is not None:
            merged.merge(found)
        yield None
    yield merged


def each_here(
    work: Callable[[T], R],
    given: Iterable[T],
    job: Job,
    called: str,
    threads: int = THREADS,
    limited: bool = False,
) -> Generator[R | None, None, None]:
    """`Engine.each` in threads of this process. limited: whether a piece of it may take `NO_EVENT` × `stall_s` at most.

    Raises:
        Transient: A piece took longer.
    """
    patience_s = NO_EVENT * job.retry.stall_s if limited else math.inf
    left = deque((Future[R](), one) for one in given)
    running = deque(future for future, _ in left)
    for _ in range(min(threads, os.cpu_count() or 1, len(left))):
        # A pool of `concurrent.futures` would make the process wait at its end, for a storage that hangs, say.
        threading.Thread(target=_do, args=(work, left), daemon=True, name=f"nightjar-{called}").start()
    try:
        deadline = time.monotonic() + patience_s
        while running:
            wait([running[0]], timeout=TICK_S)
            if running[0].done():
                yield running.popleft().result()
                deadline = time.monotonic() + patience_s
            elif time.monotonic() > deadline:
                raise Transient(
                    f"the {called} stood still for {NO_EVENT} × retry.stall_s = {job.retry.stall_s:g} s; is the "
                    "storage away? Repeat the command: what is scored is kept"
                )
            else:
                yield None
    finally:
        left.clear()  # what has not begun does not begin: another command may have taken the run over


def _do(work: Callable[[T], R], left: deque[tuple[Future[R], T]]) -> None:
    """Do what is left, until nothing is."""
    with suppress(IndexError):
        while True:
            future, one = left.popleft()
            try:
                found = work(one)
            except BaseException as error:  # noqa: BLE001 (raised where the result is waited for)
                future.set_exception(error)
            else:
                future.set_result(found)


def _audit_lines(storage: Storage, revision: str, job: Job, block: pa.Table) -> Audited:
    return audit_block(storage, revision, job, block.to_pylist())
