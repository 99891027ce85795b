"""The settings of memory that processes which score are started with, and that a person's own settings stay."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from nightjar.inference.job.model import Job
from nightjar.inference.scoring import memory

NAMES = ("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    """Of two cores for each actor; the environment says nothing of memory."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return Job.model_validate(
        {
            "name": "j",
            "input": {"uri": "in/"},
            "model": {"uses": "model:score", "outputs": {"score": "float32"}},
            "output": {"uri": "out/"},
            "resources": {"cpus": 2},
        }
    )


def test_freed_memory_is_kept_for_the_next_shard(job: Job) -> None:
    """In as many arenas as there are cores: 256 MiB are the least that has pages of its own, 1 GiB is kept."""
    assert memory.environment(job) == {
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "MALLOC_ARENA_MAX": "2",
        "MALLOC_MMAP_THRESHOLD_": "268435456",
        "MALLOC_TRIM_THRESHOLD_": "1073741824",
    }


def test_a_persons_own_settings_stay(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """If they are tunables of the allocator, nothing is added: the tunables would be overridden."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.cpu.x86_rep_movsb_threshold=1")
    found = memory.environment(job)
    assert (found["MALLOC_ARENA_MAX"], found["GLIBC_TUNABLES"]) == ("7", "glibc.cpu.x86_rep_movsb_threshold=1")
    assert found["MALLOC_TRIM_THRESHOLD_"] == "1073741824"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    assert memory.environment(job) == {}


def test_arrow_uses_the_systems_allocator() -> None:
    before = pa.default_memory_pool()
    try:
        memory.use_system()
        assert pa.default_memory_pool().backend_name == "system"
    finally:
        pa.set_memory_pool(before)


HELD_AND_FREED = """
import psutil
from nightjar.inference.scoring import memory

def in_use():
    return round(psutil.Process().memory_info().rss / 1e6)

before = in_use()
held = [bytearray(100_000) for _ in range(1_000)]
last = bytearray(100_000)  # the end of the heap, so that nothing before it is given back by itself
full = in_use()
held.clear()
memory.release()
print(full - before, full - in_use())
"""


def test_what_loading_freed_is_given_back(job: Job) -> None:
    """Also with the settings by which freed memory is kept: 100 MB in all."""
    environ = {**os.environ, **memory.environment(job)}
    done = subprocess.run(
        [sys.executable, "-c", HELD_AND_FREED], env=environ, capture_output=True, text=True, check=True
    )
    taken, freed = done.stdout.split()
    assert 90 < int(taken) < 130
    assert int(freed) > 90
