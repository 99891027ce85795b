"""The next micro-batch is prepared while the model computes; what comes of the rows is the same."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import BatchesBroken, OverBudget, ProcessSpoilt
from nightjar.inference.records import RowFailure
from nightjar.inference.scoring.assignment import Assignment, BatchSize
from nightjar.inference.scoring.microbatches import drained
from nightjar.inference.scoring.prepared_batches import Preparer, PreparingThread
from nightjar.inference.scoring.scored_rows import ScoredRows
from nightjar.inference.scoring.worker import ShardWorker
from predicting import score_table
from support import DOUBLE, Lake

TYPES = {"score": pa.int64()}


THREAD = PreparingThread()


class Doubling:
    """Doubles x in two steps; each step fails at some values, and the second one above some number of rows."""

    def __init__(self, unprepared: set[int] = frozenset(), unscored: set[int] = frozenset(), most: int = 1000) -> None:  # type: ignore[assignment]
        self.unprepared, self.unscored, self.most = unprepared, unscored, most
        self.before: Callable[[list[int]], object] = lambda _: None
        self.prepared: list[list[int]] = []

    def prepare(self, table: pa.Table) -> list[int]:
        values: list[int] = table["x"].to_pylist()
        self.prepared.append(values)
        if self.unprepared & set(values):
            raise ValueError("cannot be prepared")
        return values

    def score(self, values: list[int]) -> dict[str, pa.Array]:
        self.before(values)
        if len(values) > self.most:
            raise MemoryError
        if self.unscored & set(values):
            raise ValueError("cannot be scored")
        return {"score": pa.array(np.array(values, np.int64) * 2)}

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        return self.score(self.prepare(table))


def outcome(
    scorer: Doubling, rows: int, size: int, skip: dict[int, RowFailure], budget: int | None, preparer: Preparer | None
) -> object:
    table = pa.table({"x": pa.array(range(rows), pa.int64())})
    try:
        found: ScoredRows = drained(
            score_table(table, scorer, BatchSize(size), TYPES, skip=skip, budget=budget, preparer=preparer)
        )
    except (OverBudget, BatchesBroken) as error:
        return type(error), str(error)
    kept = None if found.kept is None else found.kept.tolist()
    return found.outputs, kept, [(each.row, each.error, each.message) for each in found.failures]


@given(
    rows=st.integers(0, 40),
    size=st.integers(1, 12),
    unprepared=st.sets(st.integers(0, 40), max_size=4),
    unscored=st.sets(st.integers(0, 40), max_size=4),
    skipped=st.sets(st.integers(0, 40), max_size=6),
    most=st.integers(1, 15),
    budget=st.one_of(st.none(), st.integers(0, 6)),
)
def test_the_same_comes_of_the_rows(
    rows: int, size: int, unprepared: set[int], unscored: set[int], skipped: set[int], most: int, budget: int | None
) -> None:
    skip = {row: RowFailure(row, "Odd", "left out", "") for row in skipped if row < rows}
    ahead = Doubling(unprepared, unscored, most)
    preparer = Preparer(ahead, THREAD)
    expected = outcome(Doubling(unprepared, unscored, most), rows, size, skip, budget, None)
    assert outcome(ahead, rows, size, skip, budget, preparer) == expected
    # What was begun for a table that ended early is not taken for the next one.
    assert outcome(Doubling(), rows, size, skip, None, Preparer(Doubling(), THREAD)) == outcome(
        Doubling(), rows, size, skip, None, None
    )


def test_what_was_begun_for_one_table_is_never_scored_for_another() -> None:
    scorer = Doubling(unscored={0})
    preparer = Preparer(scorer, THREAD)
    one, other = (pa.table({"x": pa.array(range(start, start + 4), pa.int64())}) for start in (0, 10))
    with pytest.raises(OverBudget):
        drained(score_table(one, scorer, BatchSize(1), TYPES, budget=0, preparer=preparer))
    found: ScoredRows = drained(score_table(other, scorer, BatchSize(1), TYPES, preparer=preparer))
    assert found.outputs["score"].to_pylist() == [20, 22, 24, 26]


def test_a_batch_is_prepared_while_the_one_before_is_scored() -> None:
    """One batch ahead, not more."""
    scorer, begun = Doubling(), threading.Event()
    prepare = scorer.prepare

    def preparing(table: pa.Table) -> list[int]:
        found = prepare(table)
        if found[0] == 2:
            begun.set()
        return found

    def scoring(values: list[int]) -> None:
        if values[0] == 0:
            assert begun.wait(60)
            assert sorted(scorer.prepared) == [[0, 1], [2, 3]]

    scorer.prepare, scorer.before = preparing, scoring  # type: ignore[method-assign]
    table = pa.table({"x": pa.array(range(6), pa.int64())})
    found: ScoredRows = drained(score_table(table, scorer, BatchSize(2), TYPES, preparer=Preparer(scorer, THREAD)))
    assert found.outputs["score"].to_pylist() == [0, 2, 4, 6, 8, 10]
    assert sorted(scorer.prepared) == [[0, 1], [2, 3], [4, 5]]


def is_shown(thread: PreparingThread) -> bool:
    """Whether what it does is shown at last."""
    for _ in range(60_000):
        if thread.frame() is not None:
            return True
        time.sleep(0.001)
    return False


def test_the_thread_ends_with_who_has_it_and_is_shown_only_where_it_is_waited_for() -> None:
    before = set(threading.enumerate())
    one = PreparingThread()
    (thread,) = set(threading.enumerate()) - before
    assert one.frame() is None
    assert one.result(one.submit(partial(is_shown, one)))
    assert one.frame() is None
    del one
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


SCRATCH = """
import time
import numpy as np

scratch = np.empty(4096)  # used for each batch anew, as one does for speed

def prep(batch):
    n = len(batch["x"])
    scratch[:n] = batch["x"]
    time.sleep(0.002)
    return {"x": scratch[:n] * 1.0}

def score(batch):
    if 600 in batch["x"]:
        raise ValueError("bad")
    return {"score": batch["x"] * 2}
"""


def test_a_preprocess_is_called_by_one_thread_at_a_time(lake: Lake) -> None:
    """At the beginning of a table, beside batches that are tried again, and where several models share it."""
    lake.write_files(files=2, rows=1000)
    lake.write_model(SCRATCH)
    model = {"uses": "model:score", "features": ["x"], "outputs": {"score": "float32"}}
    lake.write_job(
        model=None,
        models=[{"name": "a", **model}, {"name": "b", **model}],
        preprocess="model:prep",
        resources={"actors": 1, "cpus": 2},
        retry={"max_quarantined": 0.5},
    )
    assert lake.run(engine=LOCAL).scored.progress.counts.rows_quarantined == 1
    found = lake.published()
    assert (found.a_score == found.id * 2).all()
    assert (found.b_score == found.id * 2).all()


def test_a_preprocess_that_hangs_in_its_thread_is_named(lake: Lake) -> None:
    """And not the wait for it."""
    lake.write_files(files=1, rows=1000)
    lake.write_model(
        f"{DOUBLE}\nimport time\ndef prep(batch):\n    time.sleep(10 * (300 in batch['x']))\n    return batch\n"
    )
    lake.write_job(preprocess="model:prep", resources={"actors": 1, "cpus": 2}, retry={"stall_s": 1})
    worker = ShardWorker(lake.worker_spec())
    with pytest.raises(ProcessSpoilt, match=r"no progress for retry\.stall_s = 1 s, in prep \(\S+/model\.py:8\)"):
        list(worker.process([Assignment(shard) for shard in lake.planned().shards()]))


OVERLAPS = """
import threading

second = threading.Event()

def prep(batch):
    if 256 in batch["x"]:
        second.set()
    return batch

def score(batch):
    if 0 in batch["x"] and len(batch["x"]) == 256 and not second.wait({patience}):
        raise ValueError("nothing was prepared meanwhile")
    return {{"score": batch["x"] * 2}}
"""


@pytest.mark.parametrize(("cpus", "patience", "cuts"), [(2, 60, 0), (1, 0.01, 1)])
def test_a_worker_with_two_cores_prepares_ahead(lake: Lake, cpus: int, patience: float, cuts: int) -> None:
    """With one core it does not: a thread would only take the model's time."""
    lake.write_file("a.parquet", 0, 1000)
    lake.write_model(OVERLAPS.format(patience=patience))
    lake.write_job(preprocess="model:prep", resources={"actors": 1, "cpus": cpus})
    ran = lake.run(engine=LOCAL)
    assert (ran.scored.progress.counts.rows_out, ran.scored.progress.counts.batches_cut) == (1000, cuts)
