"""An actor behind the CPU stage: calls overlap, and each says what became of its own shard, no sooner than it is so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from faults import Fault, FaultyStorage, fail, pause
from lazily import lazily
from nightjar.inference.errors import ProcessSpoilt
from nightjar.inference.input.sources.reading import read_piece
from nightjar.inference.job.modeljob import model_jobs
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.predictors import Preprocessor, StreamingScorer
from nightjar.inference.process import this_worker
from nightjar.inference.records import Crumb, Event, Failed, Receipt, Started
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.prepared_batches import PACKED, Parcel
from nightjar.inference.scoring.staged import AcceptingWorker
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.usage import NO_USAGE, Usage
from support import Lake, OneStep

torch = lazily("torch")

LONG_S = 20.0
"""No step of these tests takes as long on any machine."""


class Doubling(OneStep):
    """Twice x. Notes the shards that it has begun, and who calls it. before: called with the first row of a batch."""

    device = "cpu"

    def __init__(self, before: Callable[[int], object] = lambda _: None) -> None:
        self.before = before
        self.begun: list[int] = []
        self.threads: set[int] = set()
        self.inside = 0
        self.most = 0

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        first = table["x"][0].as_py()
        self.begun += [int(first) // 1000] * (first % 1000 == 0)
        self.threads.add(threading.get_ident())
        try:
            self.before(int(first))
        finally:
            self.inside -= 1
        return {"score": pa.compute.multiply(table["x"], pa.scalar(2, pa.float32())).combine_chunks()}


class Call:
    """One call of `accept` in a thread of its own, as Ray makes it."""

    def __init__(self, worker: AcceptingWorker, assignment: Assignment, packed: pa.ListScalar) -> None:
        self.shard = assignment.shard.id
        self.events: list[Event] = []
        self.raised: BaseException | None = None
        self._thread = threading.Thread(target=self._take, args=(worker.accept(assignment, packed),), daemon=True)
        self._thread.start()

    def _take(self, events: Iterator[Event]) -> None:
        try:
            for event in events:
                self.events.append(event)
        except BaseException as error:  # noqa: BLE001 (looked at by the test)
            self.raised = error

    def ended(self) -> list[str]:
        """The kinds of all its events; each must be of its shard."""
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()
        assert {getattr(event, "shard", self.shard) for event in self.events} <= {self.shard}
        return [type(event).__name__ for event in self.events]


class Actor:
    """A worker with these faults of its storage, and shards to give to it; parcels leave the preparing to it."""

    def __init__(self, lake: Lake, scorer: Any = None, *faults: Fault) -> None:
        self.scorer = scorer or Doubling()
        self.turns: list[str] = []
        spec = lake.worker_spec(FaultyStorage(LakeStorage(), faults))
        self.worker = AcceptingWorker(spec, self.scorer, turn_to=lambda started: self.turns.append(started.shard))
        self.worker.begin_anew()  # what other tests of this process used is none of its news
        self.work: list[tuple[Assignment, pa.ListScalar]] = []
        for shard in lake.planned().shards():
            reads = tuple(read_piece(LakeStorage(), spec.job, piece, spec.schema) for piece in shard.pieces)
            self.work.append((Assignment(shard), Parcel(reads, {}, time.time() - 100, 3).packed()[0]))

    def call(self, index: int) -> Call:
        return Call(self.worker, *self.work[index])


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """What some steps wait for; at the end of a test nothing waits any more."""
    event = threading.Event()
    yield event
    event.set()


def shard_of(lake: Lake, index: int) -> str:
    found: str = lake.planned().ids()[index]
    return found


def test_a_shard_is_scored_while_the_one_before_is_written_and_has_no_receipt_yet(
    lake: Lake, held: threading.Event
) -> None:
    """A receipt follows the part, whatever else goes on in the process."""
    lake.ready()
    first = shard_of(lake, 0)
    actor = Actor(lake, None, pause("write", f"*/data/{first}-*", before=lambda _: held.wait()))
    one = actor.call(0)
    until(lambda: actor.scorer.begun == [0])
    two = actor.call(1)
    until(lambda: actor.scorer.begun == [0, 1])
    assert [type(event) for event in one.events] == [Started]
    assert not list(lake.revision().glob(f"data/{first}-*"))
    held.set()
    for call in (one, two):
        assert call.ended() == ["Started", "Receipt"]
        receipt = call.events[-1]
        assert isinstance(receipt, Receipt)
        assert receipt.data is not None
        assert (lake.revision() / receipt.data.name).exists()
        assert (receipt.rows_in, receipt.rows_out, receipt.retries) == (1000, 1000, 3)
        assert receipt.seconds > 100, "the time of the stage before counts, too"


def test_one_thread_has_the_model_and_one_shard_at_a_time(lake: Lake) -> None:
    """However many calls there are: what a framework sets may hold for one thread only. Its time is divided."""
    actor, began = Actor(lake.ready(), Doubling(lambda _: time.sleep(0.002))), time.monotonic()
    calls = [actor.call(index) for index in range(8)]
    assert [call.ended() for call in calls] == [["Started", "Receipt"]] * 8
    assert sorted(actor.scorer.begun) == list(range(8))
    assert actor.turns == [shard_of(lake, index) for index in actor.scorer.begun], "for what the model prints"
    assert len(actor.scorer.threads) == 1
    assert actor.scorer.most == 1
    spent = [call.events[-1].spent for call in calls if isinstance(call.events[-1], Receipt)]
    assert min(each.predict for each in spent) >= 0.002
    assert sum(each.total for each in spent) <= time.monotonic() - began


@pytest.mark.parametrize("index", [0, 1])
def test_a_write_that_fails_costs_its_own_shard(lake: Lake, index: int) -> None:
    """Also if the other one is scored or written meanwhile; and the worker goes on."""
    lake.ready()
    shard = shard_of(lake, index)
    actor = Actor(lake, None, fail("write", f"*/data/{shard}-*", error=RuntimeError("no room")))
    calls = [actor.call(each) for each in range(3)]
    ended = [call.ended()[-1] for call in calls]
    assert ended == ["Failed" if each == index else "Receipt" for each in range(3)]
    failed = calls[index].events[-1]
    assert isinstance(failed, Failed)
    assert (failed.cause, failed.message, failed.died) == ("RuntimeError", "no room", False)


def test_what_cannot_be_unpacked_or_scored_costs_its_own_shard(lake: Lake) -> None:
    def refuse(first: int) -> None:
        if first // 1000 == 1:
            raise ValueError("not these")

    actor = Actor(lake.ready(), Doubling(refuse))
    actor.work[0] = actor.work[0][0], pa.array([[b"no pickle"]], PACKED)[0]
    calls = [actor.call(index) for index in range(3)]
    assert [call.ended()[-1] for call in calls] == ["Failed", "Failed", "Receipt"]
    causes = [call.events[-1].cause for call in calls if isinstance(call.events[-1], Failed)]
    assert causes == ["UnpicklingError", "OverBudget"]


def test_the_time_of_a_shard_that_fails_is_its_own(lake: Lake) -> None:
    def refuse(first: int) -> None:
        if first < 1000:
            time.sleep(first == 0)
            raise ValueError("not these")

    actor = Actor(lake.ready(), Doubling(refuse))
    failing = actor.call(0)
    until(lambda: 0 in actor.scorer.begun)
    scored = actor.call(1)
    assert [failing.ended()[-1], scored.ended()[-1]] == ["Failed", "Receipt"]
    failed, receipt = failing.events[-1], scored.events[-1]
    assert isinstance(failed, Failed)
    assert isinstance(receipt, Receipt)
    assert failed.spent_s >= 1
    assert receipt.spent.predict < 1


def spoilt_at(actor: Actor, index: int, cause: str, end: Callable[[], object] = lambda: None) -> Failed:
    """While this shard's turn with the model ends the process, the one before is written, and the next one waits."""
    before = actor.call(index - 1)
    until(lambda: index - 1 in actor.scorer.begun)
    curse = actor.call(index)
    until(lambda: index in actor.scorer.begun)
    after = actor.call(index + 1)
    until(lambda: after.events)
    end()
    assert curse.ended() == ["Started", "Failed"]
    assert isinstance(curse.raised, ProcessSpoilt)
    assert curse.raised.cause == cause
    assert before.ended() == ["Started", "Receipt"], "what was scored is written before the process ends"
    assert after.ended() == ["Started"]
    assert index + 1 not in actor.scorer.begun
    failed = curse.events[-1]
    assert isinstance(failed, Failed)
    assert (failed.cause, failed.died, failed.worker) == (cause, True, this_worker())
    assert failed.uri == next(iter(actor.work[index][0].shard.pieces)).uri
    return failed


def test_a_model_that_hangs_is_reported_with_its_rows(lake: Lake, held: threading.Event) -> None:
    """No signal interrupts the model's thread, so the call that waits for it reports where it hangs."""
    lake.ready(retry__stall_s=4)
    actor = Actor(lake, Doubling(lambda first: held.wait() if first == 2256 else None))
    failed = spoilt_at(actor, 2, "Stalled")
    assert (failed.row, failed.rows) == (256, 256)
    assert "no progress for retry.stall_s = 4 s, in wait (" in failed.message


@pytest.mark.parametrize(
    ("error", "cause", "said"),
    [
        (lambda: torch.AcceleratorError("CUDA error: device-side assert"), "AcceleratorError", "device-side assert"),
        (lambda: SystemExit(3), "SystemExit", "the model's code calls sys.exit(3)"),
    ],
)
def test_what_ends_the_process_is_reported_with_its_rows(
    lake: Lake, held: threading.Event, error: Callable[[], BaseException], cause: str, said: str
) -> None:
    """No further shard has its turn with a device that is lost."""

    def end(first: int) -> None:
        if first == 2256:
            held.wait()
            raise error()

    lake.ready()
    actor = Actor(lake, Doubling(end))
    failed = spoilt_at(actor, 2, cause, held.set)
    assert (failed.row, failed.rows) == (256, 256)
    assert said in failed.message


def test_a_write_that_hangs_blames_no_row_and_not_the_shard_that_is_scored(lake: Lake, held: threading.Event) -> None:
    lake.ready(retry__stall_s=4)  # on a busy machine the steps before may take a second, too
    first = shard_of(lake, 0)
    actor = Actor(lake, None, pause("write", f"*/data/{first}-*", before=lambda _: held.wait()))
    one = actor.call(0)
    assert one.ended() == ["Started", "Failed"]
    assert isinstance(one.raised, ProcessSpoilt)
    failed = one.events[-1]
    assert isinstance(failed, Failed)
    assert (failed.cause, failed.rows, failed.row) == ("Stalled", 0, -1)
    assert failed.message.endswith("its process was ended while a part was written")


def test_a_write_may_take_as_long_as_any_step(lake: Lake) -> None:
    """Several looks find it still running."""
    lake.ready(retry__stall_s=10)
    actor = Actor(lake, None, pause("write", "*/data/*", before=lambda _: time.sleep(1.6)))
    call = actor.call(0)
    assert call.ended() == ["Started", "Receipt"]
    assert call.raised is None


def test_a_slow_shard_gives_signs_of_life_that_blame_nobody(lake: Lake) -> None:
    """And a shard that waits for its turn is not taken for one that hangs."""
    lake.ready(retry__stall_s=1, model__batch_size=100)
    actor = Actor(lake, Doubling(lambda _: time.sleep(0.15)))
    one = actor.call(0)
    until(lambda: actor.scorer.begun)
    two = actor.call(1)
    for call in (one, two):
        call.ended()
        assert call.raised is None
        assert isinstance(call.events[-1], Receipt)
        signs = [event for event in call.events if isinstance(event, Crumb)]
        assert 2 <= len(signs) < 10
        assert {sign.rows for sign in signs} == {0}


class Answering:
    """A predictor whose rows are answered one by one, each in less time than a step may take."""

    device = "cpu"
    alive: Callable[[], None] | None = None

    def prepare(self, batch: pa.Table) -> pa.Table:
        return batch

    def predict(self, batch: pa.Table) -> Any:
        for _ in range(6):
            time.sleep(0.3)
            if self.alive is not None:
                self.alive()
        return {"score": batch["x"].to_numpy()}

    def claimed(self) -> Usage:
        return NO_USAGE


def test_rows_that_are_answered_are_progress_while_their_batch_takes_longer_than_a_step(lake: Lake) -> None:
    job = lake.ready(retry__stall_s=1, model__batch_size=1000).request().job
    (only,) = model_jobs(job)
    call = Actor(lake, StreamingScorer(only, Preprocessor(only), Answering(), True)).call(0)
    assert call.ended()[-1] == "Receipt"
    assert call.raised is None


def test_a_shard_that_takes_too_long_fails_and_the_process_lives(lake: Lake) -> None:
    lake.ready(retry__shard_s=0.000001)
    actor = Actor(lake)
    calls = [actor.call(index) for index in range(2)]
    assert [call.ended() for call in calls] == [["Started", "Failed"]] * 2
    assert all(call.raised is None for call in calls)
    assert {call.events[-1].cause for call in calls if isinstance(call.events[-1], Failed)} == {"ShardTooSlow"}


def test_a_writer_that_is_replaced_meanwhile_leaves_no_part(lake: Lake) -> None:
    """Each call checks the lease of the run for its own part."""
    lake.ready()
    revision = str(lake.revision())
    first = open_epoch(LakeStorage(), revision, this_holder("score", "one"))

    def succeed(_: str) -> None:
        open_epoch(LakeStorage(), revision, this_holder("score", "one")).stop(release=True)

    actor = Actor(lake, None, pause("write", "*/data/*", before=succeed))
    calls = [actor.call(index) for index in range(2)]
    assert [call.ended() for call in calls] == [["Started", "Failed"]] * 2
    first.stop(release=False)
    assert {call.events[-1].cause for call in calls if isinstance(call.events[-1], Failed)} == {"Fenced"}
    assert not list(lake.revision().glob("data/*.parquet"))
