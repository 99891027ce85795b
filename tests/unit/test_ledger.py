"""What the ledger promises: nothing committed is lost or doubled, and of two writers one is told to stop."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nightjar.inference.errors import (
    AlreadyExists,
    Denied,
    Fenced,
    Held,
    Transient,
)
from nightjar.inference.ledger.holders import Holder, is_dead, this_holder
from nightjar.inference.ledger.ledger import (
    Ledger,
    LedgerWriter,
    Record,
    open_epoch,
    replay,
)
from nightjar.inference.records import Failed, Receipt, encode
from nightjar.inference.storage import faults
from nightjar.inference.storage.faults import FaultyStorage
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage
from support import wait_until

LONG_S = 3600.0


@pytest.fixture
def revision(tmp_path: Path) -> str:
    return str(tmp_path / "r1")


def opened(revision: str, task: str = "score", storage: Storage | None = None, lease_s: float = LONG_S) -> LedgerWriter:
    """A writer whose keep-alive does not stir while a test lasts."""
    return open_epoch(storage or LakeStorage(), revision, this_holder(task), lease_s=lease_s)


def lapse() -> dict[str, Callable[..., float | None]]:
    """A clock on which every lease lapses at the first look, and a sleep that takes no time."""
    return {"clock": itertools.count(step=2 * LONG_S).__next__, "sleep": lambda _: None}


def seized(revision: str, storage: Storage | None = None) -> LedgerWriter:
    """A writer that has seen the holder silent for a whole lease."""
    return open_epoch(storage or LakeStorage(), revision, this_holder("other"), lease_s=LONG_S, **lapse())  # type: ignore[arg-type]


def receipt(shard: str, worker: str = "w") -> Record:
    return encode(Receipt(shard, 1, 1, worker, 10, 10, 0, None, None, 0.1, 0.0))


def receipts(revision: str) -> dict[str, str]:
    """Committed shard → the worker whose receipt counts."""
    ledger = Ledger(LakeStorage(), revision)
    found = [(r.shard, r.worker) for r in ledger.receipts(replay(ledger))]
    assert len(found) == len({shard for shard, _ in found})
    return dict(found)


def test_a_revoked_receipt_counts_no_more_and_the_next_one_does(revision: str) -> None:
    """The audit found its parts damaged: the shard is open again, for every reader alike, and it is on record."""
    writer = opened(revision)
    writer.append([receipt("a", "first"), receipt("b", "first")])
    failed = encode(Failed("a", 1, "PartDamaged", "checksum"))
    writer.append([{**failed, "t": "revoked", "rows_out": 10, "rows_quarantined": 0}])
    assert writer.state.committed == {"b"}
    assert receipts(revision) == {"b": "first"}
    writer.append([receipt("a", "second"), receipt("a", "late")])
    assert writer.state.committed == {"a", "b"}
    assert receipts(revision) == {"a": "second", "b": "first"}
    assert [found.cause for found in writer.state.failures["a"]] == ["PartDamaged"]
    assert replay(Ledger(LakeStorage(), revision)) == writer.state


def never(_: float) -> None:
    raise AssertionError("nobody has to wait here")


def test_a_closed_ledger_is_open_to_the_next_writer(revision: str) -> None:
    """Each leased has an epoch of its own, and knows what those before it did."""
    first = opened(revision)
    first.append([receipt("a"), encode(Failed("b", 1, "OSError", "no"))])
    first.stop(release=True)
    second = open_epoch(LakeStorage(), revision, this_holder("validate"), sleep=never)
    second.append([receipt("b")])
    assert (first.epoch, second.epoch) == (1, 2)
    assert second.state.committed == {"a", "b"}
    assert [failed.message for failed in second.state.failures["b"]] == ["no"]
    second.stop(release=True)


def test_a_living_writer_is_not_replaced_and_is_named(revision: str) -> None:
    """It has nothing to say, but its keep-alive shows within the observer's lease that it lives."""
    holder = opened(revision, "score", lease_s=0.4)
    with pytest.raises(Held) as refused:
        opened(revision, lease_s=30)
    assert f"being written by score of process {holder.writer.pid} on" in str(refused.value)
    holder.append([receipt("a")])
    holder.stop(release=True)
    assert receipts(revision) == {"a": "w"}


def test_a_silent_writer_is_replaced_after_its_lease_and_commits_nothing_more(revision: str) -> None:
    """Measured on the observer's own clock. When it wakes it learns by whom it was replaced."""
    asleep = opened(revision)
    asleep.append([receipt("a", "first")])
    second = opened(revision, "validate", lease_s=0.3)
    with pytest.raises(Fenced, match=r"replaced at ledger segment 3 by validate of process"):
        asleep.append([receipt("a", "late"), receipt("b", "late")])
    with pytest.raises(Fenced):
        asleep.check()
    second.append([receipt("b", "second")])
    with pytest.raises(Fenced):
        asleep.append([receipt("c", "late")])
    asleep.stop(release=True)
    second.stop(release=True)
    assert receipts(revision) == {"a": "first", "b": "second"}


def test_a_writer_learns_from_its_keep_alive_that_it_was_replaced(revision: str) -> None:
    """Also while it has nothing to append."""
    first = opened(revision, lease_s=0.4)
    second = open_epoch(
        LakeStorage(), revision, replace(this_holder("score", "flow"), nonce="x"), lease_s=LONG_S, **lapse()
    )  # type: ignore[arg-type]
    wait_until(lambda: first._stopped is not None, 10, "the keep-alive finds the other's segment")
    with pytest.raises(Fenced):
        first.check()
    first.stop(release=False)
    second.stop(release=True)


def test_a_dead_writer_is_succeeded_at_once(revision: str) -> None:
    """Same host and no such process, or another that has its number now, or a corpse nobody buried."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    me = this_holder("score")
    started = psutil.Process(child.pid).create_time()
    living = replace(me, pid=child.pid, process_started=started)
    assert not is_dead(me)
    assert not is_dead(living)
    assert is_dead(replace(living, process_started=started - 60))
    child.kill()
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, 10, "it is dead, not yet buried")
    assert is_dead(living)
    child.communicate()
    assert is_dead(living)
    assert not is_dead(replace(living, host="elsewhere/0"))

    left = open_epoch(LakeStorage(), revision, living)
    left.stop(release=False)
    heir = open_epoch(LakeStorage(), revision, me, sleep=never)
    assert heir.epoch == 2
    heir.stop(release=True)


def test_the_tasks_of_one_flow_run_succeed_each_other_at_once(revision: str) -> None:
    """Score keeps the run for validate; only others have to wait."""
    open_epoch(LakeStorage(), revision, this_holder("score", "flow-1"), lease_s=LONG_S).stop(release=False)
    following = open_epoch(LakeStorage(), revision, this_holder("validate", "flow-1"), lease_s=LONG_S, sleep=never)
    assert following.epoch == 2
    following.stop(release=False)
    with pytest.raises(AssertionError, match="nobody has to wait"):
        open_epoch(LakeStorage(), revision, this_holder("score", "flow-2"), sleep=never)


def test_of_many_that_open_at_once_one_succeeds(revision: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        tried = [pool.submit(opened, revision, f"task-{i}", lease_s=0.5) for i in range(8)]
        errors = [future.exception() for future in tried]
    won = [future.result() for future, error in zip(tried, errors, strict=True) if error is None]
    assert len(won) == 1
    assert {type(error) for error in errors if error is not None} == {Held}
    won[0].stop(release=True)
    assert [epoch for epoch, _ in replay(Ledger(LakeStorage(), revision)).openers] == [1]


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "error", [Transient("no answer"), AlreadyExists("sent twice")], ids=["no-answer", "sent-twice"]
)
def test_a_lost_answer_does_not_fence_its_own_writer(revision: str, nth: int, error: Exception) -> None:
    """Opening, committing, closing: what was created is found to be one's own, and is there once."""
    lossy = FaultyStorage(LakeStorage(), [faults.Fault("create", "*/ledger/*", nth, error=error)])
    writer = opened(revision, storage=lossy)
    writer.append([receipt("a")])
    writer.append([receipt("b")])
    writer.stop(release=True)
    segments = list(Ledger(LakeStorage(), revision).segments())
    kinds = [[record["t"] for record in segment.records] for segment in segments]
    assert kinds == [["opened"], ["receipt"], ["receipt"], ["closed"]]
    assert lossy.calls[0] >= nth
    assert replay(Ledger(LakeStorage(), revision)) == writer.state


def test_a_create_that_did_not_happen_is_tried_again(revision: str) -> None:
    writer = opened(revision, storage=FaultyStorage(LakeStorage(), [faults.fail("create", "*/ledger/*", nth=2)]))
    writer.append([receipt("a")])
    assert receipts(revision) == {"a": "w"}
    writer.stop(release=True)


def test_an_append_of_unknown_outcome_ends_the_epoch(revision: str) -> None:
    """Nothing more is written by who does not know what it wrote; the next epoch finds out."""
    refused = faults.fail("create", "*/ledger/*", nth=2, error=Denied("not yours"))
    writer = opened(revision, storage=FaultyStorage(LakeStorage(), [refused]))
    for _ in range(2):
        with pytest.raises(Denied, match="not yours"):
            writer.append([receipt("a")])
    writer.stop(release=True)
    assert receipts(revision) == {}


def test_a_release_that_cannot_be_written_hides_nothing(revision: str) -> None:
    """Leaving never raises: what was done stays done, and the next writer waits for the lease instead."""
    refused = faults.fail("create", "*/ledger/*", nth=3, error=Denied("not now"))
    writer = opened(revision, storage=FaultyStorage(LakeStorage(), [refused]))
    writer.append([receipt("a")])
    writer.stop(release=True)
    assert seized(revision).state.committed == {"a"}


def test_the_first_receipt_of_a_shard_counts(revision: str) -> None:
    writer = opened(revision)
    writer.append([receipt("a", "first"), receipt("a", "second")])
    writer.append([receipt("a", "third")])
    writer.stop(release=True)
    assert receipts(revision) == {"a": "first"}


def test_a_worker_sees_that_its_epoch_was_replaced(revision: str) -> None:
    """By the newest segment after the one it was sent out with; its own writer's appends do not count."""
    first = opened(revision)
    ledger, known = Ledger(LakeStorage(), revision), first.number
    assert ledger.newest(known) is None
    first.append([receipt("a")])
    newest = ledger.newest(known)
    assert newest is not None
    assert newest.epoch == first.epoch
    second = seized(revision)
    newest = ledger.newest(newest.number)
    assert newest is not None
    assert newest.epoch == second.epoch == first.epoch + 1


def test_a_record_of_a_newer_version_is_left_alone(revision: str) -> None:
    """Unknown records and unknown keys of known ones."""
    writer = opened(revision)
    writer.append([{"t": "weather", "sky": "clear"}, {**receipt("a"), "sky": "clear"}])
    assert receipts(revision) == {"a": "w"}
    writer.stop(release=True)


def test_a_segment_is_lines_of_json_a_person_can_read(revision: str) -> None:
    """The header names epoch and writer, then one record a line."""
    writer = opened(revision)
    writer.append([receipt("a"), receipt("b")])
    header, *records = map(json.loads, Path(revision, "ledger", "00000002.jsonl").read_text().splitlines())
    assert (header["epoch"], header["writer"]) == (1, writer.writer.nonce)
    assert [record["shard"] for record in records] == ["a", "b"]
    writer.stop(release=True)


# Of two writers one acts at a time. `open` takes the run over, alive or not; `crash` forgets everything;
# a writer that is not asked for a while has stalled, and a later `commit` of its own is it waking up.
KINDS = ["open", "commit", "commit", "commit", "close", "crash", "look"]
ACTIONS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(KINDS)), max_size=25)
TAKEOVERS = [(0, "open"), (0, "commit"), (1, "open"), (0, "commit"), (1, "commit"), (0, "open"), (1, "close")]


@settings(max_examples=200)
@given(ACTIONS, st.tuples(st.booleans(), st.booleans()))
@example(TAKEOVERS, (True, False))
def test_whatever_two_writers_do_nothing_is_lost_or_doubled(
    actions: list[tuple[int, str]], lossy: tuple[bool, bool]
) -> None:
    """Takeovers, crashes, stalls and lost answers in any order; all answers of a lossy writer come as "exists"."""
    with tempfile.TemporaryDirectory() as folder:
        lost = faults.Fault("create", "*/ledger/*", None, error=AlreadyExists("sent twice"))
        storages = [FaultyStorage(LakeStorage(), [lost] if loses else []) for loses in lossy]
        ledger = Ledger(LakeStorage(), folder)
        writers: list[LedgerWriter | None] = [None, None]
        leftover: list[LedgerWriter] = []
        observer = replay(ledger)
        acknowledged: list[tuple[str, str]] = []
        newest: LedgerWriter | None = None
        for step, (who, action) in enumerate(actions):
            writer = writers[who]
            if action == "open":
                writers[who] = newest = seized(folder, storages[who])
                leftover.append(newest)
            elif action == "look":
                replay(ledger, observer)
            elif writer is None:
                continue
            elif action == "commit":
                shard, attempt = f"s{step % 5}", f"attempt-{step}"
                if writer is newest:
                    writer.append([receipt(shard, attempt)])
                    acknowledged.append((shard, attempt))
                else:
                    with pytest.raises(Fenced):
                        writer.append([receipt(shard, attempt)])
            else:
                writer.stop(release=action == "close")
                writers[who] = None
                newest = None if writer is newest else newest
        for writer in leftover:
            writer.stop(release=False)
        written = [(r["shard"], r["worker"]) for s in ledger.segments() for r in s.records if r["t"] == "receipt"]
        assert written == acknowledged
        assert receipts(folder) == dict(reversed(acknowledged))
        epochs = [segment.epoch for segment in ledger.segments()]
        assert epochs == sorted(epochs)
        assert [epoch for epoch, _ in replay(ledger).openers] == list(range(1, len(leftover) + 1))
        assert replay(ledger, observer) == replay(ledger)
        if newest is not None:
            assert newest.state == replay(ledger)


def test_a_writer_is_named_without_its_machine_s_inner_names() -> None:
    """People read host names, not boot ids."""
    writer = Holder("score", "f", "night-7/0af3/pid:[1]", 42, 0.0, "n", "2026-11-19T02:00:00+00:00")
    assert str(writer) == "score of flow run f, process 42 on night-7, since 2026-11-19T02:00:00+00:00"
