"""Memory settings of the processes that score: memory that one shard frees is kept for the next shard.

Each shard's columns and each batch's tensors are allocated and freed again. If the pages went back to the system in
between, a tenth of the time would be spent on zeroing them again.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

import pyarrow as pa

from nightjar.inference.job.model import Job

_OWN_PAGES = 256 << 20
"""An allocation of at least this many bytes has pages of its own, which go back to the system when it is freed."""

_KEPT = 1 << 30
"""The most free bytes that are kept at the end of the heap."""


def environment(job: Job) -> dict[str, str]:
    """Settings of glibc's allocator for processes that score; it reads them when a process starts.

    There are as many arenas as an actor has cores, because the scoring and the writing thread free what the reading
    thread allocates; with an arena per thread this memory would go back to the system. Large pages are used if the
    system grants them on request. Settings that are in the environment already stay. Other allocators ignore these
    names.

    Sources: mallopt(3), and "Memory Allocation Tunables" in the manual of glibc.
    """
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return {}
    settings = {
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "MALLOC_ARENA_MAX": job.resources.cores,
        "MALLOC_MMAP_THRESHOLD_": _OWN_PAGES,
        "MALLOC_TRIM_THRESHOLD_": _KEPT,
    }
    return {name: os.environ.get(name, str(value)) for name, value in settings.items()}


def use_system() -> None:
    """Make Arrow use the system's allocator in this process, because its own allocators give pages back."""
    pa.set_memory_pool(pa.system_memory_pool())


def release() -> None:
    """Give free memory back to the system, once a model is loaded.

    Loading frees as much as the model is large: weights that were read before they were mapped or converted, and those
    with which a module was made. The settings above would keep that for as long as the process lives.
    """
    with suppress(AttributeError):  # an allocator other than glibc's
        ctypes.CDLL(None).malloc_trim(0)
