"""What the ledger promises: nothing committed is lost or doubled, and of two writers one is told to stop."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import faults
from faults import FaultyStorage
from nightjar.inference.errors import AlreadyExists, Denied, Fenced, Held, StorageError, Transient
from nightjar.inference.ledger.endings import done
from nightjar.inference.ledger.epochs import LedgerWriter, open_epoch, shows_life
from nightjar.inference.ledger.holders import is_dead, this_holder
from nightjar.inference.ledger.ledger import Ledger, Segment, State, replay
from nightjar.inference.ledger.lines import (
    Intent,
    Line,
    Planned,
    Preflight,
    Published,
    PublishedAs,
    Removed,
    Revoked,
    Split,
)
from nightjar.inference.records import Counts, Failed, Receipt
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


def receipt(shard: str, worker: str = "w") -> Receipt:
    return Receipt(shard, 1, 1, worker, None, None, 0.1, 0.0, rows_in=10, rows_out=10)


def receipts(revision: str) -> dict[str, str]:
    """Committed shard → the worker whose receipt counts."""
    ledger = Ledger(LakeStorage(), revision)
    found = [(r.shard, r.worker) for r in ledger.receipts(replay(ledger))]
    assert len(found) == len({shard for shard, _ in found})
    return dict(found)


def test_of_a_run_that_is_being_deleted_nothing_counts_but_who_deletes_it(revision: str) -> None:
    """Whoever reads its ledger finds a revision of which nothing is known, and which nobody may add to."""
    writer = opened(revision)
    writer.append([receipt("a"), Intent(1, Published(1, "m", "c", "2026-11-19"))])
    writer.append([Removed("2026-11-19")])
    state = replay(Ledger(LakeStorage(), revision))
    assert state == State(state.number, 1, writer.writer, [(1, writer.writer)], removed="2026-11-19")
    assert writer.state == state
    writer.stop(release=True)


def test_whoever_read_a_ledger_that_is_deleted_since_opens_no_epoch(revision: str) -> None:
    """What is in memory is of files that are gone."""
    opened(revision).stop(release=True)
    ledger = Ledger(LakeStorage(), revision)
    seen = replay(ledger)
    LakeStorage().delete(ledger.segment_uri(number) for number in ledger.numbers())
    with pytest.raises(Held, match="was deleted while this command read it; repeat the command"):
        open_epoch(LakeStorage(), revision, this_holder("score"), seen=seen)
    assert ledger.numbers() == []


def test_a_revoked_receipt_counts_no_more_and_the_next_one_does(revision: str) -> None:
    """The audit found its parts damaged: the shard is open again, for every reader alike, and it is on record."""
    writer = opened(revision)
    writer.append([receipt("a", "first"), receipt("b", "first")])
    writer.append([Revoked("a", 1, "PartDamaged", "checksum", counts=Counts(rows_out=10))])
    assert writer.state.committed == {"b"}
    assert receipts(revision) == {"b": "first"}
    writer.append([receipt("a", "second"), receipt("a", "late")])
    assert writer.state.committed == {"a", "b"}
    assert receipts(revision) == {"a": "second", "b": "first"}
    assert [found.cause for found in writer.state.failures["a"]] == ["PartDamaged"]
    writer.append([receipt("c"), Revoked("c", 1, "PartDamaged", "checksum")])
    assert writer.state.committed == {"a", "b"}
    assert receipts(revision) == {"a": "second", "b": "first"}, "a receipt in the segment that takes it back is none"
    assert replay(Ledger(LakeStorage(), revision)) == writer.state


def never(_: float) -> None:
    raise AssertionError("nobody has to wait here")


def test_a_closed_ledger_is_open_to_the_next_writer(revision: str) -> None:
    """Each leased has an epoch of its own, and knows what those before it did."""
    first = opened(revision)
    first.append([receipt("a"), Failed("b", 1, "OSError", "no")])
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


@pytest.mark.parametrize("leaves", [False, True])
def test_whoever_takes_the_run_over_between_a_look_and_its_create_is_named(revision: str, leaves: bool) -> None:
    """One that has left again has no name any more."""
    others: list[LedgerWriter] = []

    def overtake(_: str) -> None:
        others.append(opened(revision, "validate"))
        if leaves:
            others[0].stop(release=True)

    storage = FaultyStorage(LakeStorage(), [faults.pause("create", "*/ledger/*", before=overtake)])
    with pytest.raises(Held) as held:
        opened(revision, storage=storage)
    who = "another writer" if leaves else str(others[0].writer)
    assert str(held.value) == (
        f"this run is being written by {who}. Wait for it, or end that process and repeat the command: it continues "
        "where the other stopped."
    )
    others[0].stop(release=not leaves)


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


def test_a_writer_that_did_not_say_who_it_is_is_named_by_its_nonce(revision: str) -> None:
    """A segment that nobody opened with, in this writer's place."""
    writer = opened(revision)
    Ledger(LakeStorage(), revision).write(Segment(2, 1, "00c0ffee", "a", ()))
    with pytest.raises(Fenced) as fenced:
        writer.append([receipt("a")])
    assert str(fenced.value) == (
        "this writer was replaced at ledger segment 2 by writer 00c0ffee; it stops and changes nothing more"
    )
    writer.stop(release=False)


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


def test_a_lease_is_kept_alive_after_an_append_too_and_holds_up_no_process(revision: str) -> None:
    """By a thread that a profile of this process shows by name, and that ends with it."""
    holder = opened(revision, lease_s=0.4)
    assert (holder._thread.name, holder._thread.daemon) == ("nightjar-lease", True)
    holder.append([receipt("a")])
    appended = holder.state.number
    wait_until(lambda: holder.state.number > appended + 1, 10, "two more segments say that it lives")
    assert all(not segment.lines for segment in Ledger(LakeStorage(), revision).segments(after=appended))
    holder.stop(release=True)


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


def test_a_writer_that_must_not_follow_writes_nothing(revision: str) -> None:
    """Whoever opens the ledger says so, by who has held it until now."""

    def check(state: State) -> None:
        raise Held(f"after {[holder.task for _, holder in state.openers]}")

    opened(revision, "score").stop(release=True)
    opened(revision, "validate").stop(release=True)
    with pytest.raises(Held, match=r"^after \['score', 'validate'\]$"):
        open_epoch(LakeStorage(), revision, this_holder("publish"), check=check)
    assert Ledger(LakeStorage(), revision).numbers() == [1, 2, 3, 4]


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
    kinds = [[type(line).__name__ for line in segment.lines] for segment in segments]
    assert kinds == [["Opened"], ["Receipt"], ["Receipt"], ["Closed"]]
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
    ledger, known = Ledger(LakeStorage(), revision), first.state.number
    assert ledger.newest(known) is None
    first.append([receipt("a")])
    newest = ledger.newest(known)
    assert newest is not None
    assert newest.epoch == first.epoch
    second = seized(revision)
    newest = ledger.newest(newest.number)
    assert newest is not None
    assert newest.epoch == second.epoch == first.epoch + 1


def test_files_of_other_names_are_no_segments(revision: str) -> None:
    writer = open_epoch(LakeStorage(), revision, this_holder("score"))
    for name in ("00000001.jsonl~", "00000009 (copy).jsonl", "notes.txt", "9.jsonl"):
        Path(writer.ledger.uri, name).write_text("mine")
    assert Ledger(LakeStorage(), revision).numbers() == [1]
    assert replay(Ledger(LakeStorage(), revision)).epoch == writer.epoch
    writer.stop(release=True)


def test_a_record_of_a_newer_version_is_left_alone(revision: str) -> None:
    """Unknown records and unknown keys of known ones."""
    writer = opened(revision)
    writer.append([receipt("a")])
    writer.stop(release=True)
    path = Path(revision, "ledger", "00000002.jsonl")
    head, line = path.read_text().split("\n")
    path.write_text("\n".join([head, '{"t":"weather","sky":"clear"}', line.replace("}", ',"sky":"clear"}')]))
    assert receipts(revision) == {"a": "w"}


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
        written = [(r.shard, r.worker) for s in ledger.segments() for r in s.lines if isinstance(r, Receipt)]
        assert written == acknowledged
        assert receipts(folder) == dict(reversed(acknowledged))
        epochs = [segment.epoch for segment in ledger.segments()]
        assert epochs == sorted(epochs)
        assert [epoch for epoch, _ in replay(ledger).openers] == list(range(1, len(leftover) + 1))
        assert replay(ledger, observer) == replay(ledger)
        if newest is not None:
            assert newest.state == replay(ledger)


def test_what_a_ledger_comes_to_is_known_of_each_kind_of_line(revision: str) -> None:
    """By the writer and by whoever replays it; a run's end counts until the next one ends otherwise."""
    writer = opened(revision)
    lines: list[Line] = [
        Planned(file="p1", fingerprint="f1", date="d", shards=3),
        Preflight(("slow",)),
        receipt("a"),
        Failed("b", 1, "OSError", "no"),
        Failed("b", 2, "OSError", "again"),
        Split("c", "one file is broken", 2),
        Revoked("a", 1, "PartDamaged", "gone"),
        Planned(file="p2", fingerprint="f2", date="d", shards=4),
        Intent(7, Published(1, "manifest-000001.json", "sum", "d")),
        PublishedAs(7),
    ]
    for line in lines:
        writer.append([line])
    state = writer.state
    assert (state.number, state.epoch, state.committed) == (11, 1, set())
    assert [failed.message for failed in state.failures["b"]] == ["no", "again"]
    assert state.failures["a"] == [lines[6]]
    assert state.splits == {"c": "one file is broken"}
    assert state.revoked == {"a": 8}, "the segment that took it back"
    assert (state.planned, state.intent, state.published) == (lines[7], lines[8], lines[9])
    assert {name: about.preflight for name, about in state.remarks.items()} == {"f1": ("slow",), "f2": ()}
    assert state.about is state.remarks["f2"]
    assert (state.progress.shards, state.progress.failed_attempts) == (4, 3)
    assert (state.holder, state.openers, state.ended) == (writer.writer, [(1, writer.writer)], None)
    ending = done("validate", limited=True)
    writer.stop(release=True, ending=ending)
    assert (state.holder, state.ended) == (None, ending)
    assert replay(Ledger(LakeStorage(), revision)) == state


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"format":3,"epoch":2,"writer":"d88306',
        b'{"epoch":1,"writer":"n","append":"a"}',
        b"[]",
        b"<html>404</html>",
    ],
    ids=["empty", "torn", "no-format", "no-object", "a-page"],
)
def test_a_segment_that_cannot_be_understood_is_named(content: bytes, revision: str) -> None:
    """It may say that somebody else writes now, or what is done: nobody continues without it."""
    writer = opened(revision)
    writer.append([receipt("a")])
    writer.stop(release=True)
    path = Path(revision, "ledger", "00000002.jsonl")
    path.write_bytes(content)
    for look in (receipts, opened):
        with pytest.raises(StorageError, match=f"^{re.escape(str(path))}: not a ledger segment that this version can"):
            look(revision)
    assert len(list(path.parent.iterdir())) == 3


class Counting(LakeStorage):
    """A storage that counts what is read of each segment."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def read(self, uri: str) -> bytes:
        self.reads[uri.rpartition("/")[2]] += 1
        return super().read(uri)


def test_a_segment_is_these_bytes(revision: str) -> None:
    """Other programs and other versions read it. What is no text is escaped: a message may hold it."""
    line = Failed("s", 1, "OSError", "caf\u00e9 \udcff")
    ledger = Ledger(LakeStorage(), revision)
    ledger.write(Segment(1, 3, "nonce", "append", (line,)))
    header, record = Path(revision, "ledger", "00000001.jsonl").read_bytes().split(b"\n")
    assert header == b'{"format":3,"epoch":3,"writer":"nonce","append":"append"}'
    assert record.startswith(
        '{"t":"failed","shard":"s","attempt":1,"cause":"OSError","message":"caf\u00e9 \\udcff"'.encode()
    )
    (read,) = Ledger(LakeStorage(), revision).segments()
    assert read.lines == (line,)


def test_each_append_has_a_name_of_its_own(revision: str) -> None:
    """By it a writer knows a segment as its own if the storage's answer was lost."""
    writer = opened(revision)
    writer.append([])
    writer.stop(release=True)
    names = [segment.append for segment in Ledger(LakeStorage(), revision).segments()]
    assert len(set(names)) == 3
    assert {len(name) for name in names} == {12}


def test_a_writer_goes_on_from_what_was_read_already(revision: str) -> None:
    opened(revision).stop(release=True)
    ledger = Ledger(LakeStorage(), revision)
    state = replay(ledger)
    storage = Counting()
    writer = open_epoch(storage, revision, this_holder("validate"), seen=state)
    assert storage.reads == {}
    assert list(writer.ledger.segments())[-1].epoch == writer.epoch == 2
    assert writer.state is state
    writer.stop(release=True)


def test_a_ledger_of_more_segments_than_are_read_at_once_is_read_whole_and_in_order(revision: str) -> None:
    ledger = Ledger(LakeStorage(), revision)
    for number in range(1, 68):
        ledger.write(Segment(number, 1, "n", str(number), ()))
    fresh = Ledger(LakeStorage(), revision)
    assert [segment.append for segment in fresh.segments()] == [str(n) for n in range(1, 68)]
    assert [segment.number for segment in fresh.segments(after=60)] == [61, 62, 63, 64, 65, 66, 67]


def test_a_lease_lapses_by_the_observer_s_clock_and_it_looks_again_and_again(revision: str) -> None:
    """Twenty times a lease, and five times a second at least."""
    holder = opened(revision)
    ledger = Ledger(LakeStorage(), revision)
    for lease_s, pause in ((10.0, 0.2), (2.0, 0.1)):
        now, slept = [100.0], list[float]()

        def sleep(seconds: float, now: list[float] = now, slept: list[float] = slept) -> None:
            now[0] += seconds
            slept.append(seconds)

        assert not shows_life(ledger, replay(ledger), lease_s, lambda now=now: now[0], sleep)
        assert set(slept) == {pause}
        assert len(slept) in (round(lease_s / pause), round(lease_s / pause) + 1)
    state = replay(ledger)
    assert shows_life(ledger, state, 10.0, time.monotonic, lambda _: holder.append([])), "its next segment shows it"
    state = replay(ledger)
    assert not shows_life(ledger, state, 10.0, time.monotonic, lambda _: holder.stop(release=True))
    assert state.holder is None
