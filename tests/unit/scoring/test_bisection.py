"""Bisection is for rows that fail alone: a predictor that cannot take batches ends the attempt, not the night."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.flows.pages.wording import describe
from nightjar.inference.errors import BatchesBroken, LengthInvalid
from nightjar.inference.ledger.lines import Planned, Revoked
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.ledger.remarks import FEW_CUTS, cut_batches
from nightjar.inference.records import Counts, Failed, Receipt
from nightjar.inference.scoring.assignment import Assignment, BatchSize
from nightjar.inference.scoring.broken_batches import ALLOWED, Cuts
from nightjar.inference.scoring.preflight import Loaded, preflight_steps, samples
from nightjar.inference.scoring.scored_rows import ScoredRows
from nightjar.inference.scoring.worker import ShardWorker
from predicting import score_table, told
from support import Lake, OneStep

Raises = Callable[[list[int]], bool]


class Counting(OneStep):
    """Twice x; raises where it is told to, and counts its calls."""

    def __init__(self, raises: Raises, error: type[Exception] = ValueError) -> None:
        self.raises, self.error = raises, error
        self.calls = 0

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        self.calls += 1
        seen = table["x"].to_pylist()
        if self.raises(seen):
            raise self.error(f"not {len(seen)} at once")
        return {"score": pa.array(np.asarray(table["x"]) * 2)}


AT = f"{__file__.removeprefix(f'{Path.cwd()}/')}:{Counting.__call__.__code__.co_firstlineno + 4}, in __call__"
"""Where it raises, as messages say it."""


def score(scorer: Counting, rows: int, batch: int, cuts: Cuts) -> ScoredRows:
    table = pa.table({"x": pa.array(range(rows), pa.int64())})
    steps = score_table(table, scorer, BatchSize(batch), {"score": pa.int64()}, at=lambda row: 1000 + row, cuts=cuts)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            scored: ScoredRows = stop.value
            return scored


def test_a_predictor_that_takes_single_rows_only_ends_the_attempt_within_a_few_calls() -> None:
    """27,000 rows of it used to be 27,000 failing calls and as many single ones."""
    scorer = Counting(lambda seen: len(seen) > 1)
    with pytest.raises(
        BatchesBroken,
        match=r"batches of more than one row.*not 2 at once \(.*, in __call__\); each row alone",
    ):
        score(scorer, 27_000, 4096, Cuts())
    assert scorer.calls < 5 * ALLOWED


def test_bad_rows_here_and_there_do_not_hide_it() -> None:
    """Few rows that fail alone do not explain that nearly every batch fails."""
    scorer = Counting(lambda seen: len(seen) > 1 or seen[0] % 10 == 0)
    with pytest.raises(BatchesBroken):
        score(scorer, 1000, 1000, Cuts())
    assert scorer.calls < 10 * ALLOWED


def test_a_predictor_that_takes_far_fewer_rows_than_it_is_given_ends_the_attempt() -> None:
    scorer = Counting(lambda seen: len(seen) > 100)
    with pytest.raises(BatchesBroken, match=r"or give it smaller ones: model\.batch_size"):
        score(scorer, 27_000, 1000, Cuts())


def test_the_rows_that_fail_together_are_named_by_their_places_in_the_file() -> None:
    scorer = Counting(lambda seen: len(seen) == 10 and seen[0] >= 20)
    with pytest.raises(BatchesBroken) as broken:
        score(scorer, 40, 10, Cuts(allowed=0, share=0.0))
    assert str(broken.value) == (
        "the predictor fails for batches though it can score each of their rows: rows 1020 to 1029 together raise "
        f"ValueError: not 10 at once ({AT}). Mend how it handles a batch, or give it smaller ones: model.batch_size"
    )
    with pytest.raises(BatchesBroken) as broken:
        score(Counting(lambda seen: len(seen) > 1), 2, 2, Cuts(allowed=0, share=0.0))
    assert str(broken.value) == (
        "the predictor fails for batches of more than one row: rows 1000 to 1001 together raise ValueError: not 2 at "
        f"once ({AT}); each row alone is scored. Mend how it handles a batch, or set model.batch_size: 1"
    )


@given(
    st.sets(st.integers(0, 299), max_size=300),
    st.sampled_from([1, 7, 32, 100, 300]),
)
def test_rows_that_fail_alone_explain_every_cut(bad: set[int], batch: int) -> None:
    """However many they are: they are quarantined, and the batches that held one are counted."""
    cuts = Cuts(allowed=0, share=0.0)
    scored = score(Counting(lambda seen: bool(bad & set(seen))), 300, batch, cuts)
    assert [failure.row for failure in scored.failures] == sorted(bad)
    assert cuts.broken == 0
    assert cuts.batches == len({row // batch for row in bad if min(batch, 300 - row // batch * batch) > 1})


def test_an_accident_now_and_then_is_no_broken_batch_path() -> None:
    """Each third batch fails at first, and would be scored whole if it were tried again."""
    failed: set[int] = set()

    def third(seen: list[int]) -> bool:
        if seen[0] % 96 or seen[0] in failed:
            return False
        failed.add(seen[0])
        return True

    cuts = Cuts()
    assert not score(Counting(third), 96 * 100, 32, cuts).failures
    assert (cuts.batches, cuts.broken) == (100, 100)


def test_batches_whose_halves_are_scored_go_on_and_are_counted() -> None:
    """Three calls in place of one are said, and cost no night."""
    cuts = Cuts()
    assert not score(Counting(lambda seen: len(seen) > 16), 32 * 100, 32, cuts).failures
    assert cuts.batches == 100


class Dropping(OneStep):
    """Twice x, but without the values of some rows, as a function of the batch tells them."""

    def __init__(self, dropped: Callable[[list[int]], set[int]]) -> None:
        self.dropped = dropped

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        seen = table["x"].to_pylist()
        values = [2 * x for x in seen if x not in self.dropped(seen)]
        if len(values) != len(seen):
            raise LengthInvalid("output 'score'", len(values), len(seen))
        return {"score": pa.array(values, pa.int64())}


def test_one_large_batch_that_drops_a_row_ends_the_attempt_with_its_own_numbers() -> None:
    """Its halves have the right number, so no row is to blame; what it gave other batches, nobody knows."""
    scorer = Dropping(lambda seen: {seen[-1]} if len(seen) > 20 else set())
    with pytest.raises(BatchesBroken) as broken:
        score(scorer, 1000, 100, Cuts())
    assert str(broken.value) == (
        "output 'score' has 99 values for a batch of 100 rows (rows 1000 to 1099), and smaller batches of rows 1000 to "
        "1024 are right, so that no row is to blame. Mend how the code handles a batch: it must return one value for "
        "each row, in the order of the rows or with the batch's own index, however many rows there are"
    )


def test_one_value_for_all_rows_ends_the_attempt_at_the_first_batch() -> None:
    """As a mean is: each row alone has one value, of itself."""
    with pytest.raises(BatchesBroken, match=r"has 1 value for a batch of 4 rows \(rows 1000 to 1003\)"):
        score(Dropping(lambda seen: set(seen[1:])), 4, 4, Cuts())


def test_a_row_that_is_dropped_alone_too_costs_itself_and_names_the_batch_that_lacked_it() -> None:
    scored = score(Dropping(lambda _: {1, 57}), 300, 100, Cuts())
    assert [(each.row, each.error) for each in scored.failures] == [(1, "LengthInvalid"), (57, "LengthInvalid")]
    assert scored.outputs["score"].to_pylist() == [2 * x for x in range(300) if x not in {1, 57}]
    assert {each.message for each in scored.failures} == {
        "output 'score' has 98 values for a batch of 100 rows (rows 1000 to 1099); for this row alone, output 'score' "
        "has 0 values for a batch of 1 row: return one for each input row, in the same order"
    }


def test_a_row_that_is_dropped_in_a_batch_of_its_own_names_no_other() -> None:
    scored = score(Dropping(lambda _: {2}), 5, 1, Cuts())
    assert [each.message for each in scored.failures] == [
        "output 'score' has 0 values for a batch of 1 row: return one for each input row, in the same order"
    ]


def test_a_row_that_raises_beside_one_that_is_dropped_says_only_its_own_error() -> None:
    class Both(Dropping):
        def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
            if table["x"].to_pylist() == [3]:
                raise ValueError("not this one")
            return super().__call__(table)

    scored = score(Both(lambda seen: {2} if len(seen) > 1 else {2, 3}), 4, 4, Cuts())
    assert (3, "not this one") in [(each.row, each.message) for each in scored.failures]


def test_memory_is_no_cut() -> None:
    cuts = Cuts(allowed=0, share=0.0)
    assert not score(Counting(lambda seen: len(seen) > 3, MemoryError), 300, 100, cuts).failures
    assert (cuts.batches, cuts.broken) == (0, 0)


# ---- in preflight -------------------------------------------------------------------------------------------

TRUTH = '''
def score(batch):
    """Right for one row, and an error for two."""
    return {"score": batch["x"] if batch["x"] >= 0 else 0}
'''

ONCE = '''
CALLS = []


def score(batch):
    """The first call fails."""
    CALLS.append(len(batch["x"]))
    if len(CALLS) == 1:
        raise RuntimeError("not yet")
    return {"score": batch["x"] * 2}
'''


def tried(lake: Lake) -> list[Loaded | str]:
    return told(preflight_steps(ShardWorker(lake.worker_spec()), samples(lake.planned())))


def test_preflight_refuses_a_predictor_that_fails_for_more_than_one_row(lake: Lake) -> None:
    lake.ready()
    lake.write_model(TRUTH)
    said = tried(lake)[-1]
    assert isinstance(said, str)
    assert said.startswith("the predictor fails for batches of more than one row: rows 0 to 1 together raise")
    assert "ValueError: The truth value of an array with more than one element is ambiguous" in said
    assert said.endswith("each row alone is scored. Mend how it handles a batch, or set model.batch_size: 1")


def test_preflight_gives_no_more_rows_than_the_job_does(lake: Lake) -> None:
    """Whoever scores row by row, and says so, may."""
    lake.ready(model__batch_size=1)
    lake.write_model(TRUTH)
    assert tried(lake)[-1] == Loaded("cpu")


def test_one_failure_in_preflight_may_be_an_accident(lake: Lake) -> None:
    """A second place is tried, and scored whole; what happened at the first is said."""
    lake.ready()
    lake.write_model(ONCE)
    last = tried(lake)[-1]
    assert isinstance(last, Loaded)
    assert [text.startswith("the predictor fails for batches") for text in last.notes] == [True]


# ---- in a run -----------------------------------------------------------------------------------------------


def events(lake: Lake) -> list[Any]:
    work = [Assignment(shard) for shard in lake.planned().shards()]
    return list(ShardWorker(lake.worker_spec()).process(work))


def test_a_shard_of_it_fails_for_good_in_seconds(lake: Lake) -> None:
    """Trying again cannot help, and it says what to change."""
    lake.ready()
    lake.write_model(TRUTH)
    failed = [event for event in events(lake) if isinstance(event, Failed)]
    assert [(each.cause, each.terminal) for each in failed] == [("BatchesBroken", True)] * 8
    assert "set model.batch_size: 1" in failed[0].message


def test_receipts_count_the_batches_that_were_cut(lake: Lake) -> None:
    """As many as hold a row that fails, and the run's progress adds them up."""
    lake.ready(model__batch_size=100)
    lake.write_model(
        "def score(batch):\n"
        "    if set(batch['x']) & {5, 6, 250, 1999}:\n"
        "        raise ValueError('bad')\n"
        "    return {'score': batch['x']}\n"
    )
    receipts = [event for event in events(lake) if isinstance(event, Receipt)]
    assert [(each.rows_quarantined, each.batches_cut) for each in receipts[:3]] == [(3, 2), (1, 1), (0, 0)]
    progress = Progress(shards=8)
    for receipt in receipts:
        progress.fold(receipt)
    assert progress.counts.batches_cut == 3


def test_rows_that_nobody_counted_are_added_as_they_are_read() -> None:
    """At the end they are all rows of the run, also where a shard was scored again."""
    progress = Progress()
    plan = Planned(file="p", fingerprint="f", date="d", shards=2, rows=10)
    progress.fold(replace(plan, uncounted=1))
    receipts = [
        Receipt(name, 1, 1, "w", None, None, 1.0, 0.0, rows_in=10, rows_out=9, rows_quarantined=1) for name in "ab"
    ]
    progress.fold(receipts[0])
    assert (progress.rows, progress.counted, progress.remaining_s(now=1.0)) == (10, False, 1.0)
    progress.fold(receipts[1])
    assert (progress.rows, progress.counted) == (20, True)
    progress.fold(Revoked("b", 1, "PartDamaged", "no", counts=Counts(rows_in=10, rows_out=9, rows_quarantined=1)))
    assert not progress.counted
    progress.fold(receipts[1])
    assert (progress.rows, progress.counted) == (20, True)
    progress.fold(plan)
    assert (progress.rows, progress.counted) == (10, True)


@pytest.mark.parametrize(("cuts", "said"), [(0, False), (FEW_CUTS, False), (FEW_CUTS + 1, True)])
def test_a_person_is_told_when_more_than_a_few_batches_were_cut(cuts: int, said: bool) -> None:
    assert bool(cut_batches(cuts)) == said
    assert ("batches cut" in describe(Progress(shards=2, counts=Counts(batches_cut=cuts)))) == said
