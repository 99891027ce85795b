"""A language model on Ray: rows of several shards are underway in an actor, and its death costs none of them."""

from __future__ import annotations

import threading

import pytest

from endpoints import Asked, Reply, endpoint, fault, upper
from nightjar.inference.engine.ray.passes import BLOCKS_PER_ACTOR
from support import Lake

pytestmark = pytest.mark.usefixtures("ray_local")

SHARD = 5

DIES_ONCE = """
import os
from pathlib import Path

def prep(batch):
    died = Path(__LIVE__) / "died"
    if "text 203" in batch["text"].tolist() and not died.exists():
        died.touch()
        os.kill(os.getpid(), 9)
    return batch
"""


def asking(lake: Lake, url: str, rows: int, preprocess: dict[str, str] | None = None) -> Lake:
    """A job that asks the endpoint for each row, in shards of `SHARD`."""
    lake.write_texts([f"text {row}" for row in range(rows)], SHARD)
    outputs = {"answer": "string"}
    model = {"uses": "openai", "url": url, "served_model": "m", "prompt": "{text}", "outputs": outputs}
    lake.write_model(DIES_ONCE)
    lake.write_job(
        input__shard_rows=SHARD,
        model={**model, "requests_in_flight": 4},
        preprocess=preprocess,
        carry=["id"],
        retry__attempts=4,
    )
    return lake


def test_a_slow_row_holds_up_no_other_shard_of_its_block_nor_of_the_next(lake: Lake) -> None:
    """It is answered only when a row of the last block was asked for."""
    shards = 30
    assert shards <= BLOCKS_PER_ACTOR, "each is a block"
    rows = SHARD * shards
    last = threading.Event()

    def behave(asked: Asked) -> Reply:
        if asked.text == f"text {rows - 1}":
            last.set()
        if asked.text == "text 3" and asked.again and not last.wait(60):
            return fault(400, "no row of the last block was asked for")
        return upper(asked)

    with endpoint(behave) as server:
        ran = asking(lake, server.url, rows).run()
        assert server.most <= 4
    assert ran.scored.progress.counts.rows_quarantined == 0
    assert lake.published()["answer"].tolist() == [f"TEXT {row}" for row in range(rows)]


def test_a_process_that_dies_costs_no_row_and_shards_that_are_committed_are_not_asked_again(lake: Lake) -> None:
    """Every shard that was underway in it is charged, and no other one is."""
    rows = SHARD * 80
    with endpoint() as server:
        ran = asking(lake, server.url, rows, {"uses": "model:prep", "placement": "fused"}).run()
        asked = server.texts()
    assert (lake.folder / "died").exists()
    assert lake.published()["answer"].tolist() == [f"TEXT {row}" for row in range(rows)]
    progress = ran.scored.progress
    assert (progress.counts.rows_out, progress.counts.rows_quarantined) == (rows, 0)
    records = lake.records()
    died = {record["shard"] for record in records if record["t"] == "failed" and record["died"]}
    receipts = [record for record in records if record["t"] == "receipt"]
    assert 1 <= len(died) == progress.deaths < 80
    assert len(receipts) == len({record["shard"] for record in receipts}) == 80
    first_row = {shard.id: shard.pieces[0].first_row for shard in lake.planned().shards()}
    spared = [first_row[record["shard"]] for record in receipts if record["attempt"] == 1]
    once = [f"text {row}" for first in spared[10:] for row in range(first, first + SHARD)]
    assert all(asked.count(text) == 1 for text in once if text not in sampled(asked))


def sampled(asked: list[str]) -> set[str]:
    """What preflight asked for, before anything else."""
    return set(asked[:40])
