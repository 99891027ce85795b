"""A storage that tries again: what it overcomes, how often, and when it gives up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_storage import listed

import faults
from faults import FaultyStorage
from nightjar.inference.errors import AlreadyExists, Denied, Transient
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Entry, join
from nightjar.inference.storage.retrying import RetryingStorage, RetryPolicy


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


class TestRetrying:
    """`RetryingStorage` tries again what may pass, and nothing else."""

    def patient(self, *rules: faults.Fault) -> RetryingStorage:
        return RetryingStorage(FaultyStorage(LakeStorage(), rules), attempts=3, backoff_s=0.001)

    def test_a_passing_fault_is_overcome_and_counted(self, folder: str) -> None:
        storage = self.patient(faults.fail("write"), faults.fail("write", nth=2), faults.fail("read"))
        storage.write(join(folder, "x"), b"1")
        assert storage.read(join(folder, "x")) == b"1"
        assert storage.retries == 3

    def test_a_lasting_fault_ends_after_the_attempts(self, folder: str) -> None:
        storage = self.patient(faults.fail("stat", nth=None))
        with pytest.raises(Transient):
            storage.stat(join(folder, "x"))
        assert storage.retries == 2

    def test_no_try_begins_later_than_allowed(self, folder: str) -> None:
        """Whatever the number of attempts: the wait before the second one would be too long."""
        broken = FaultyStorage(LakeStorage(), [faults.fail("stat", nth=None)])
        storage = RetryingStorage(broken, attempts=1000, backoff_s=60, within_s=1)
        with pytest.raises(Transient):
            storage.stat(join(folder, "x"))
        assert storage.retries == 0

    def test_how_often_it_was_tried_is_told(self, folder: str) -> None:
        storage = self.patient(faults.fail("stat", nth=None))
        with pytest.raises(Transient, match=r"failed on purpose; tried 3 times in \d"):
            storage.stat(join(folder, "x"))

    def test_other_faults_are_not_tried_again(self, folder: str) -> None:
        storage = self.patient(faults.fail("read", error=Denied("no")))
        with pytest.raises(Denied):
            storage.read(join(folder, "x"))
        assert storage.retries == 0

    def test_a_lost_answer_to_our_own_creation_is_success(self, folder: str) -> None:
        storage = self.patient(faults.lose_answer("create"))
        storage.create(join(folder, "x"), b"mine")
        assert storage.retries == 1

    def test_after_a_lost_answer_anothers_object_is_reported(self, folder: str) -> None:
        """A creation that failed, then found another's bytes, did not succeed."""
        storage = self.patient(faults.fail("create"))
        LakeStorage().create(join(folder, "x"), b"another's")
        with pytest.raises(AlreadyExists):
            storage.create(join(folder, "x"), b"mine")

    def test_equal_bytes_found_at_once_are_anothers(self, folder: str) -> None:
        """Two writers may say the same; only one may think that it did."""
        LakeStorage().create(join(folder, "x"), b"same")
        with pytest.raises(AlreadyExists):
            self.patient().create(join(folder, "x"), b"same")

    def test_a_broken_listing_goes_on_where_it_stopped(self, folder: str) -> None:
        """No entry twice, none missing."""
        for name in "abc":
            LakeStorage().write(join(folder, name), b"")
        storage = self.patient(faults.fail("list"), faults.lose_answer("list", nth=2))
        assert listed(storage, folder) == ["a", "b", "c"]
        assert storage.retries == 2

    def test_a_listing_that_goes_on_has_all_its_tries_again(self) -> None:
        """After each entry it breaks off, cannot begin again, and breaks off at once: three faults of four tries."""
        entries, begun, errors = [Entry(name, 0, "") for name in "abcd"], Counter[str](), list[Transient]()

        def begin(after: str) -> Iterator[Entry]:
            begun[after] += 1
            if begun[after] == 1:
                raise Transient("cannot begin")
            return following([entry for entry in entries if entry.uri > after], begun[after] == 3)

        def following(left: list[Entry], works: bool) -> Iterator[Entry]:
            if works:
                yield from left[:1]
            if left or not works:
                raise Transient("broke off")

        policy = RetryPolicy(within_s=60, backoff_s=0.0001, attempts=4)
        assert list(policy.listing(begin, "", errors.append)) == entries
        assert begun == dict.fromkeys(["", "a", "b", "c", "d"], 3)
        assert len(errors) == 5 * 2 + 4

    def test_on_retry_is_called_with_the_error_before_each_retry(self) -> None:
        said: list[str] = []

        def call() -> None:
            said.append("try")
            raise Transient("broken")

        with pytest.raises(Transient, match=r"^broken; tried 3 times in 0\.\d s$"):
            RetryPolicy(within_s=60, backoff_s=0.0001, attempts=3).call(call, lambda error: said.append(str(error)))
        assert said == ["try", "broken", "try", "broken", "try"]

    def test_leftovers_are_asked_for_again(self, folder: str) -> None:
        left = join(folder, f".nightjar-x-{'0' * 32}.tmp")
        LakeStorage().write(left, b"")
        storage = self.patient(faults.fail("leftovers"))
        assert storage.leftovers(folder) == {left: join(folder, "x")}
        assert storage.retries == 1

    def test_deletion_is_tried_again_as_a_whole(self, folder: str) -> None:
        """Even if the URIs came from a generator."""
        LakeStorage().write(join(folder, "x"), b"")
        self.patient(faults.fail("delete")).delete(join(folder, name) for name in "x")
        assert listed(LakeStorage(), folder) == []
