"""How the processes that score hold memory: what one shard frees, the next one needs, so it is not given back.

Each shard's columns and each batch's tensors are allocated and freed again. Where the pages go back to the system in
between, a tenth of the time goes into having them zeroed anew.
"""

from __future__ import annotations

import os

import pyarrow as pa

from nightjar.inference.job.model import Job

_OWN_PAGES = 256 << 20
"""From so many bytes on an allocation has pages of its own, and gives them back."""

_KEPT = 1 << 30
"""So many free bytes are kept at most where the heap ends."""


def environment(job: Job) -> dict[str, str]:
    """Settings of glibc's allocator for processes that score; it reads them when a process starts.

    As many arenas as an actor has cores: what the reading thread allocates, the scoring and the writing thread free,
    and between arenas of their own that goes back to the system. Large pages where the system grants them on request.
    What the environment says already stays. Other allocators do not know these names.

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
    """Arrow takes its memory from the system's allocator in this process: its own ones give pages back."""
    pa.set_memory_pool(pa.system_memory_pool())
