"""The storage that fails on demand, which other tests rest on; and the probe that finds out one that overwrites."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from test_storage import listed

import faults
from faults import FaultyStorage
from nightjar.inference.errors import AlreadyExists, Transient
from nightjar.inference.storage.lake import LakeStorage, probe_conditional_writes
from nightjar.inference.storage.protocol import ANYBODY, join


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


class TestFaults:
    """`FaultyStorage` does to the call that was named what was asked, and leaves the others alone."""

    def test_only_the_nth_matching_call_is_hit(self, folder: str) -> None:
        storage = FaultyStorage(LakeStorage(), [faults.fail("write", "*/b*", nth=2)])
        for name in ["a", "b1", "a"]:
            storage.write(join(folder, name), b"")
        with pytest.raises(Transient):
            storage.write(join(folder, "b2"), b"")
        storage.write(join(folder, "b3"), b"")
        assert listed(storage, folder) == ["a", "b1", "b3"]

    def test_a_lost_answer_was_carried_out(self, folder: str) -> None:
        storage = FaultyStorage(LakeStorage(), [faults.lose_answer("create")])
        with pytest.raises(Transient):
            storage.create(join(folder, "x"), b"1")
        assert storage.read(join(folder, "x")) == b"1"

    def test_a_torn_write_stores_half(self, folder: str) -> None:
        storage = FaultyStorage(LakeStorage(), [faults.tear()])
        storage.write(join(folder, "x"), pa.py_buffer(b"123456"))
        assert storage.read(join(folder, "x")) == b"123"

    def test_an_emptied_write_stores_nothing(self, folder: str) -> None:
        storage = FaultyStorage(LakeStorage(), [faults.tear("create", stored=0)])
        storage.create(join(folder, "x"), b"123456")
        assert storage.read(join(folder, "x")) == b""

    def test_a_call_waits_for_its_hook(self, folder: str) -> None:
        """Another may act in between: here a second writer gets in first."""
        uri = join(folder, "x")
        rival = LakeStorage()
        storage = FaultyStorage(rival, [faults.pause("create", before=lambda uri: rival.create(uri, b"rival"))])
        with pytest.raises(AlreadyExists):
            storage.create(uri, b"mine")

    def test_a_pickled_copy_counts_on(self, folder: str) -> None:
        storage = FaultyStorage(LakeStorage(), [faults.fail("write", nth=2)])
        storage.write(join(folder, "x"), b"")
        with pytest.raises(Transient):
            pickle.loads(pickle.dumps(storage)).write(join(folder, "x"), b"")


class TestProbe:
    """`probe_conditional_writes` finds out a store that ignores create-if-absent, and leaves nothing."""

    def test_honest_storage_passes(self, folder: str) -> None:
        assert probe_conditional_writes(LakeStorage(), folder)
        assert listed(LakeStorage(), folder) == []

    def test_storage_that_overwrites_is_found_out(self, folder: str) -> None:
        assert not probe_conditional_writes(_Careless(), folder)
        assert listed(LakeStorage(), folder) == []


class _Careless(LakeStorage):
    """As some S3 front ends: the condition is ignored without a word."""

    def create(self, uri: str, data: bytes, mode: int = ANYBODY) -> None:
        self.write(uri, data)
