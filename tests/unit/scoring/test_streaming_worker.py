"""The worker whose rows are requests: what its threads share, and steps that hang."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from endpoints import Asked, Reply, endpoint, upper
from faults import FaultyStorage, pause
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import ProcessSpoilt
from nightjar.inference.records import Crumb, Event, Failed, Receipt
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.attempts import JoinedPieces
from nightjar.inference.scoring.staged import AcceptingWorker, PreparingWorker
from nightjar.inference.scoring.streaming import StreamingWorker, worker_of
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

SHARD = 10

SCRATCH = """
import threading

memory, inside, second = [], [], threading.Event()

def prep(batch):
    inside.append(1)
    if len(inside) > 1:
        second.set()
    memory[:] = [text + "!" for text in batch["text"].tolist()]
    second.wait(1)
    inside.pop()
    return {"text": list(memory)}
"""
"""Fills the same memory for each batch. A second call, if there is one meanwhile, comes before the first one ends."""


MODEL = {"uses": "openai", "served_model": "m", "prompt": "{text}", "outputs": {"answer": "string"}}


def asking(lake: Lake, url: str, rows: int, **changes: object) -> Lake:
    """A job that asks the endpoint for each row, in shards of `SHARD`."""
    lake.write_texts([f"text {row}" for row in range(rows)], SHARD)
    model = {**MODEL, "url": url}
    lake.write_job(**{"input__shard_rows": SHARD, "model": model, "carry": ["id"], **changes})
    return lake


OVER = threading.Event()

HANGS_S = 3
"""Seconds after which a step hangs: on a busy machine a step that does not may take one, too."""


@pytest.fixture
def _nothing_hangs_for_ever() -> Iterator[None]:
    OVER.clear()
    over = threading.Timer(10 * HANGS_S, OVER.set)
    over.start()
    yield
    over.cancel()
    OVER.set()


def test_a_preprocess_is_called_by_one_of_two_calls_at_a_time(lake: Lake) -> None:
    """Else rows would have the answers of others."""
    lake.write_model(SCRATCH)
    with endpoint(upper) as server:
        asking(lake, server.url, 2 * SHARD, preprocess={"uses": "model:prep", "placement": "fused"})
        shards = list(lake.planned().shards())
        worker = StreamingWorker(lake.worker_spec())
        together = threading.Barrier(2)

        def score(assignment: Assignment) -> list[Event]:
            together.wait(60)
            return list(worker.process([assignment]))

        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(score, map(Assignment, shards)))
    assert all(isinstance(events[-1], Receipt) for events in found), found
    assert sorted(server.texts()) == sorted(f"text {row}!" for row in range(2 * SHARD))


def test_a_shard_that_waits_to_be_written_holds_its_joined_rows_no_more(lake: Lake) -> None:
    """Up to `MOST_OPEN` shards wait."""

    def alive() -> list[JoinedPieces]:
        return [each for each in gc.get_objects() if isinstance(each, JoinedPieces)]

    of_other_tests, held = alive(), list[JoinedPieces]()

    def look(*_: object) -> None:
        held.extend(each for each in alive() if not any(each is other for other in of_other_tests))

    with endpoint(upper) as server:
        shard = next(asking(lake, server.url, SHARD).planned().shards())
        worker = StreamingWorker(
            lake.worker_spec(FaultyStorage(LakeStorage(), [pause("write", "*/data/*", before=look)]))
        )
        assert isinstance(list(worker.process([Assignment(shard)]))[-1], Receipt)
    assert held == []


@pytest.mark.usefixtures("_nothing_hangs_for_ever")
def test_a_write_that_hangs_ends_the_process_and_is_named(lake: Lake) -> None:
    """What was written before is not lost, and no row is blamed."""
    with endpoint(upper) as server:
        asking(lake, server.url, 3 * SHARD, retry={"stall_s": HANGS_S})
        first, second, _ = lake.planned().shards()
        stuck = FaultyStorage(LakeStorage(), [pause("write", f"*/data/{second.id}-*", before=lambda *_: OVER.wait())])
        worker = StreamingWorker(lake.worker_spec(stuck))
        events = list(worker.process([Assignment(first)]))
        with pytest.raises(ProcessSpoilt, match=f"no progress for retry.stall_s = {HANGS_S} s"):
            for event in worker.process([Assignment(second)]):
                events.append(event)
    assert [event.shard for event in events if isinstance(event, Receipt)] == [first.id]
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert (failed.shard, failed.died, failed.cause, failed.rows) == (second.id, True, "Stalled", 0)
    assert failed.message.endswith(" written")


RAISES = """
def prep(batch):
    if "text 5" in batch["text"].tolist():
        raise ValueError("not this one")
    return batch

def size(batch):
    return {"n": [len(text) for text in batch["text"].tolist()]}
"""


@pytest.mark.parametrize("way", ["a suspect", "a preprocess that raises", "several models"])
def test_a_batch_of_which_rows_are_answered_does_not_hang(lake: Lake, way: str) -> None:
    """Though all of it takes longer than a step may."""
    lake.write_model(RAISES)

    def slowly(asked: Asked) -> Reply:
        time.sleep(0.5)
        return upper(asked)

    rows = 4 * HANGS_S
    changes: dict[str, object] = {}
    if way == "a preprocess that raises":
        changes["preprocess"] = {"uses": "model:prep", "placement": "fused"}
    with endpoint(slowly) as server:
        asking(lake, server.url, rows)
        asked = {"requests_in_flight": 1, **MODEL, "url": server.url}
        if way == "several models":
            size = {"name": "size", "uses": "model:size", "features": ["text"], "outputs": {"n": "int64"}}
            changes |= {"model": None, "models": [{"name": "llm", **asked}, size]}
        else:
            changes["model"] = asked
        retry = {"stall_s": HANGS_S, "max_quarantined": 0.5}
        lake.write_job(input__shard_rows=rows, carry=["id"], retry=retry, **changes)
        (shard,) = lake.planned().shards()
        spec = lake.worker_spec()
        attempt = Attempt(2, crumbs=True) if way == "a suspect" else Attempt()
        events = list(worker_of(spec)(spec).process([Assignment(shard, attempt)]))
    assert isinstance(events[-1], Receipt), events[-1]
    assert events[-1].rows_quarantined == (way == "a preprocess that raises")


def slowly(asked: Asked) -> Reply:
    """Eight of these take longer than two seconds."""
    time.sleep(0.4)
    return upper(asked)


@pytest.mark.system
def test_nor_does_one_of_a_sample_that_is_scored_again(lake: Lake) -> None:
    with endpoint(slowly) as server:
        asking(lake, server.url, rows=8)
        model = {**MODEL, "url": server.url, "requests_in_flight": 1}
        again = {"retry": {"stall_s": 2}, "rescore": {"share": 1, "differing": 0}}
        lake.write_job(input__shard_rows=8, model=model, carry=["id"], **again)
        lake.run(engine=LOCAL)
    assert lake.snapshot().number == 1


def test_nor_does_one_that_a_stage_has_prepared(lake: Lake) -> None:
    lake.write_model("def same(batch):\n    return batch\n")
    with endpoint(slowly) as server:
        asking(lake, server.url, rows=8)
        model = {**MODEL, "url": server.url, "requests_in_flight": 1}
        staged = {"retry": {"stall_s": 2}, "preprocess": {"uses": "model:same", "placement": "staged"}}
        lake.write_job(input__shard_rows=8, model=model, carry=["id"], **staged)
        (shard,) = lake.planned().shards()
        stage = PreparingWorker(lake.worker_spec())
        (packed,) = [stage.handed[1][0] for _ in stage.process([Assignment(shard)]) if stage.handed is not None]
        (*_, last) = AcceptingWorker(lake.worker_spec()).accept(Assignment(shard), packed)
    assert isinstance(last, Receipt)


def test_a_shard_that_is_scored_alone_is_not_one_batch(lake: Lake) -> None:
    """A step has its time for each batch, and a suspect dies for one of them."""
    rows = 300
    with endpoint(upper) as server:
        asking(lake, server.url, rows, input__shard_rows=rows)
        (shard,) = lake.planned().shards()
        events = list(StreamingWorker(lake.worker_spec()).process([Assignment(shard, Attempt(2, crumbs=True))]))
    assert [event.rows for event in events if isinstance(event, Crumb) and event.rows] == [128, 128, 44]
    assert isinstance(events[-1], Receipt), events[-1]
