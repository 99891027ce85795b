"""The audit in threads of this process: it ends though the storage does not answer, and holds few parts at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from itertools import count
from types import SimpleNamespace

import pyarrow as pa
import pytest

from nightjar.inference.engine import auditing
from nightjar.inference.engine.auditing import audited, each_here, is_small
from nightjar.inference.engine.local import LocalEngine
from nightjar.inference.errors import Held, Transient
from nightjar.inference.job.model import Job
from nightjar.inference.run.publishing import _last
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.validation.audit import Audited
from support import Lake


@pytest.fixture
def job(lake: Lake) -> Job:
    return lake.ready(retry__stall_s=0.5).request().job


@pytest.fixture
def away() -> Iterator[threading.Event]:
    """A storage that answers once this is set."""
    answers = threading.Event()
    yield answers
    answers.set()


def parts(*sizes: int, quarantined: int = 0) -> pa.Table:
    """Outcomes of shards with parts of so many bytes."""
    data = [{"size": size} for size in sizes]
    return pa.table({"data": data, "quarantine": [{"size": quarantined}] * len(sizes)})


def test_work_whose_storage_does_not_answer_ends_and_says_so(job: Job, away: threading.Event) -> None:
    """It ticks meanwhile, so that whoever waits sees whether another command took the run over."""
    steps = each_here(lambda _: away.wait(), [1, 2], job, "look at keys", limited=True)
    assert next(steps) is None
    with pytest.raises(
        Transient, match=r"^the look at keys stood still for 3 × retry\.stall_s = 0\.5 s; is the storage"
    ):
        list(steps)


HANGS = """
import threading
from types import SimpleNamespace
from nightjar.inference.engine.auditing import each_here
from nightjar.inference.errors import Held, Transient

job = SimpleNamespace(retry=SimpleNamespace(stall_s=0.1))
try:
    list(each_here(lambda _: threading.Event().wait(), [1], job, "audit", limited=True))
except Transient:
    print("said")
"""


def test_a_command_whose_storage_does_not_answer_ends_too() -> None:
    """Its process does not wait for the thread that hangs."""
    done = subprocess.run([sys.executable, "-c", HANGS], stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    assert done.stdout == "said\n"


def test_work_without_a_limit_may_take_longer(job: Job) -> None:
    """As that of the job's own accumulators, which has one of its own."""
    answers = threading.Event()
    threading.Timer(3 * job.retry.stall_s + 1, answers.set).start()
    assert list(each_here(lambda _: answers.wait(60), [1], job, "accumulators"))[-1] is True


def test_whoever_ends_it_early_does_not_wait_for_the_storage(job: Job, away: threading.Event) -> None:
    """What had not begun does not begin."""
    begun = list[int]()

    def work(number: int) -> bool:
        begun.append(number)
        return away.wait()

    steps = each_here(work, [1, 2, 3], job, "test", threads=1)
    assert next(steps) is None
    steps.close()
    assert not away.is_set()
    assert begun == [1]


def test_a_run_that_another_command_took_over_is_not_audited_to_the_end() -> None:
    """Though the error, which is kept, keeps the work that was going on."""
    ended = list[bool]()

    def steps() -> Generator[Audited | None, None, None]:
        try:
            while True:
                yield None
        finally:
            ended.append(True)

    def taken_over() -> None:
        raise Held("taken over")

    with pytest.raises(Held) as kept:
        _last(steps(), SimpleNamespace(check=taken_over), Audited())  # type: ignore[arg-type]
    assert ended
    assert kept.tb is not None


@pytest.mark.parametrize(
    ("size", "quarantined", "most"),
    [(1, 0, 2), (100, 0, 1), (1, 100, 1), (20, 0, 2)],
    ids=["small-parts", "large-parts", "large-quarantines", "smaller-parts"],
)
def test_what_is_large_is_held_one_after_the_other(
    lake: Lake, size: int, quarantined: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = lake.ready().request().job
    met, at_once, held = threading.Barrier(2), list[int](), count()
    others = set(threading.enumerate())

    def own() -> set[threading.Thread]:
        return set(threading.enumerate()) - others

    def audit_block(*_: object) -> Audited:
        at_once.append(len(own()))
        if most > 1 and next(held) < most:
            met.wait(timeout=30)
        return Audited()

    monkeypatch.setattr(auditing, "audit_block", audit_block)
    monkeypatch.setattr(auditing, "HELD_BYTES", 100)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    *_, whole = audited(LocalEngine(), LakeStorage(), "r1", job, parts(*[size] * 20, quarantined=quarantined))
    assert whole == Audited()
    assert (max(at_once) == 1) == (most == 1)


@pytest.mark.parametrize(
    ("table", "small"),
    [
        (parts(1, 1), True),
        (parts(1 << 30, 1 << 30), True),
        (parts(1 << 30, (1 << 30) + 1), False),
        (parts(1, 1, quarantined=1 << 30), False),
        (parts(*[1] * 500), True),
        (parts(*[1] * 501), False),
    ],
)
def test_what_is_small_counts_all_that_is_read(table: pa.Table, small: bool) -> None:
    """At most 2 GiB, and 500 parts."""
    assert is_small(table) == small
