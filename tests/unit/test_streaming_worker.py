"""The worker whose rows are requests: what its threads share, and steps that hang."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from endpoints import endpoint, upper
from nightjar.inference.records import Event, Receipt
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.streaming import StreamingWorker
from nightjar.inference.scoring.suspects import Attempt
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


def asking(lake: Lake, url: str, rows: int, **changes: object) -> Lake:
    """A job that asks the endpoint for each row, in shards of `SHARD`."""
    lake.write_texts([f"text {row}" for row in range(rows)], SHARD)
    outputs = {"answer": "string"}
    model = {"uses": "openai", "url": url, "served_model": "m", "prompt": "{text}", "outputs": outputs}
    lake.write_job(**{"input__shard_rows": SHARD, "model": model, "carry": ["id"], **changes})
    return lake


@pytest.mark.parametrize("first", [Attempt(), Attempt(2, crumbs=True)], ids=["two streams", "a suspect and a stream"])
def test_a_preprocess_is_called_by_one_of_two_calls_at_a_time(lake: Lake, first: Attempt) -> None:
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
            found = list(pool.map(score, [Assignment(shards[0], first), Assignment(shards[1])]))
    assert all(isinstance(events[-1], Receipt) for events in found), found
    assert sorted(server.texts()) == sorted(f"text {row}!" for row in range(2 * SHARD))
