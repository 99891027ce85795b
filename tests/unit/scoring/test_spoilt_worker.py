"""A worker whose process must end says so first: at which rows, and what had been done by then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from faults import FaultyStorage, pause
from lazily import lazily
from nightjar.inference.errors import ProcessSpoilt
from nightjar.inference.process import this_worker
from nightjar.inference.records import Crumb, Event, Failed, Receipt, Started
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.worker import Assembly, ShardWorker
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage
from support import Lake, OneStep

torch = lazily("torch")

OVER = threading.Event()

HANGS_S = 3
"""Seconds after which a step hangs, in these tests: on a busy machine a step that does not may take one, too."""


def hangs(*_: object) -> None:
    OVER.wait()


@pytest.fixture(autouse=True)
def _nothing_hangs_longer_than_its_test() -> Iterator[None]:
    OVER.clear()
    yield
    OVER.set()


class Cursed(OneStep):
    """Twice x; does something else at row 2100."""

    device = "cpu"

    def __init__(self, curse: str) -> None:
        self.curse = curse

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        if 2100 in table["x"].to_pylist():
            if self.curse == "device":
                raise torch.AcceleratorError("CUDA error: device-side assert triggered")
            if self.curse == "hang":
                hangs()
        return {"score": pa.compute.multiply(table["x"], pa.scalar(2, pa.float32())).combine_chunks()}


def process(
    lake: Lake, curse: str = "", storage: Storage | None = None, scorer: Cursed | None = None
) -> tuple[list[Event], ProcessSpoilt | None]:
    """The events of all shards by one worker, and what ended its process."""
    worker = ShardWorker(lake.worker_spec(storage), scorer or Cursed(curse))
    events: list[Event] = []
    try:
        for event in worker.process(Assignment(shard) for shard in lake.planned().shards()):
            events.append(event)
    except ProcessSpoilt as spoilt:
        return events, spoilt
    return events, None


@pytest.mark.parametrize(
    ("curse", "cause", "said"),
    [
        ("device", "AcceleratorError", "CUDA error: device-side assert triggered"),
        ("hang", "Stalled", f"no progress for retry.stall_s = {HANGS_S} s"),
    ],
)
def test_it_says_which_rows_were_with_the_predictor(lake: Lake, curse: str, cause: str, said: str) -> None:
    """The micro-batch is named, so that no further process need die to find it; what was written is not lost."""
    lake.ready(retry__stall_s=HANGS_S)
    events, spoilt = process(lake, curse)
    last = events[-1]
    assert isinstance(last, Failed)
    assert (last.died, last.terminal, last.cause) == (True, False, cause)
    assert last.uri.endswith("part-01.parquet")
    assert last.row <= 100 < last.row + last.rows <= last.row + 256
    assert said in last.message
    assert f"rows {last.row} to {last.row + last.rows - 1} of {last.uri}" in last.message
    assert spoilt is not None
    assert spoilt.cause == cause
    first, second, third, *_ = lake.planned().ids()
    assert [event.shard for event in events if isinstance(event, Receipt)] == [first, second]
    assert (last.shard, last.attempt, last.worker) == (third, 1, this_worker())


class DawdlesAhead(Cursed):
    """Its batches are prepared ahead, in a thread of their own; one with row 2100 hangs there."""

    def prepare(self, table: pa.Table) -> pa.Table:
        while 2100 in table["x"].to_pylist() and not OVER.is_set():
            time.sleep(0.01)
        return table

    def score(self, table: pa.Table) -> dict[str, pa.Array]:
        return self(table)


def test_what_hangs_in_the_thread_that_prepares_is_told_with_its_own_line(lake: Lake) -> None:
    """And not with the line of the thread that waits for it."""
    lake.ready(retry__stall_s=HANGS_S, resources__cpus=2)
    events, spoilt = process(lake, scorer=DawdlesAhead(""))
    last = events[-1]
    assert isinstance(last, Failed)
    assert f"no progress for retry.stall_s = {HANGS_S} s, in prepare ({__file__}:" in last.message
    assert spoilt is not None


def test_a_batch_of_several_files_is_named_by_its_first_row_and_blames_none(lake: Lake) -> None:
    for name, first in (("a", 2000), ("b", 2100)):
        lake.write_file(f"{name}.parquet", first, 100)
    lake.write_model()
    lake.write_job()
    events, _ = process(lake, "device")
    last = events[-1]
    assert isinstance(last, Failed)
    first_file = f"{lake.folder}/data/a.parquet"
    assert (last.uri, last.row, last.rows) == (first_file, -1, 0)
    assert last.message.endswith(f" at a batch of several files that begins with row 0 of {first_file}")


@pytest.mark.parametrize(("operation", "pattern"), [("write", "*/data/*"), ("open", "*/part-01.parquet")])
def test_storage_that_hangs_blames_no_row(lake: Lake, operation: str, pattern: str) -> None:
    """The shard that was read or written is charged, not the one scored beside it, and none of its rows."""
    # A shard is a file: of two shards, either may be the first to open their file.
    lake.ready(retry__stall_s=HANGS_S, input__shard_rows=2000)
    stuck = FaultyStorage(LakeStorage(), [pause(operation, pattern, nth=2 - (operation == "open"), before=hangs)])
    events, spoilt = process(lake, storage=stuck)
    last = events[-1]
    assert isinstance(last, Failed)
    assert (last.cause, last.rows, last.shard) == ("Stalled", 0, lake.planned().ids()[1])
    read = f" while {lake.folder}/data/part-01.parquet was read or written"
    assert last.message.endswith(read if operation == "open" else " while a part was written")
    assert spoilt is not None


def test_the_first_shard_of_a_process_may_be_the_one_that_ends_it(lake: Lake) -> None:
    """Nothing is being written then."""
    third = list(lake.ready().planned().shards())[2]
    events = ShardWorker(lake.worker_spec(), Cursed("device")).process([Assignment(third)])
    assert isinstance(next(events), Started)
    last = next(events)
    assert isinstance(last, Failed)
    assert (last.shard, last.died) == (third.id, True)
    with pytest.raises(ProcessSpoilt):
        next(events)


def ended(*_: object) -> None:
    """What an alarm does, wherever this process is then."""
    raise ProcessSpoilt("Stalled", "no progress")


def test_what_ends_a_process_before_its_first_shard_is_blamed_on_none(lake: Lake) -> None:
    def none() -> Iterator[Assignment]:
        ended()
        yield from ()

    events = ShardWorker(lake.ready().worker_spec(), Cursed("")).process(none())
    with pytest.raises(ProcessSpoilt):
        next(events)


def test_what_ends_a_process_between_reading_and_writing_is_blamed_on_a_file_and_no_row(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While rows are put together the predictor has none."""
    lake.ready()
    monkeypatch.setattr(Assembly, "__init__", ended)
    events, spoilt = process(lake)
    last = events[-1]
    shard = next(iter(lake.planned().shards()))
    assert isinstance(last, Failed)
    assert (last.shard, last.uri, last.row, last.rows) == (shard.id, shard.pieces[0].uri, -1, 0)
    assert last.message.endswith(f"its process was ended while {last.uri} was read or written")
    assert spoilt is not None


def test_a_write_that_hangs_behind_a_predictor_that_hangs_is_not_waited_for_without_end(lake: Lake) -> None:
    """The rows with the predictor are named, and the shard that was written has no receipt."""
    lake.ready(retry__stall_s=HANGS_S)
    first, second, third, *_ = lake.planned().ids()
    stuck = FaultyStorage(LakeStorage(), [pause("write", f"*/data/{second}-*", before=hangs)])
    events, spoilt = process(lake, "hang", stuck)
    last = events[-1]
    assert isinstance(last, Failed)
    assert last.shard == third
    assert [event.shard for event in events if isinstance(event, Receipt)] == [first]
    assert spoilt is not None


def test_a_shard_that_takes_too_long_fails_and_the_process_lives(lake: Lake) -> None:
    """Between two micro-batches the time of the whole attempt is looked at."""
    lake.ready(retry__shard_s=0.000001, model__batch_size=100)
    events, spoilt = process(lake)
    failures = [event for event in events if isinstance(event, Failed)]
    assert spoilt is None
    assert len(failures) == len(lake.planned())
    assert {failed.cause for failed in failures} == {"ShardTooSlow"}
    assert not any(failed.died or failed.terminal for failed in failures)
    assert "retry.shard_s = 1e-06 s" in failures[0].message


def test_a_slow_shard_gives_signs_of_life_that_blame_nobody(lake: Lake) -> None:
    """Else the pass would be ended as one in which nothing happens."""

    class Slow(Cursed):
        def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
            threading.Event().wait(0.2)
            return super().__call__(table)

    lake.ready(retry__stall_s=1, model__batch_size=100)
    worker = ShardWorker(lake.worker_spec(), Slow(""))
    shard = next(iter(lake.planned().shards()))
    events = list(worker.process([Assignment(shard)]))
    signs = [event for event in events if isinstance(event, Crumb)]
    assert 2 <= len(signs) < 10
    assert {(sign.shard, sign.uri, sign.rows) for sign in signs} == {(shard.id, shard.pieces[0].uri, 0)}
    assert all(sign.row % 100 == 0 for sign in signs)
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Receipt)
