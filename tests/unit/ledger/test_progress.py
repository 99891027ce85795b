"""How far a run is: what each kind of line of its ledger adds, and the figures that are shown of it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

import steps as run
from nightjar.inference.ledger.holders import Holder
from nightjar.inference.ledger.lines import Closed, Doing, Line, Opened, Planned, Revoked, Split
from nightjar.inference.ledger.progress import Progress, TokenRates, lowest
from nightjar.inference.records import NO_COUNTS, Counts, Failed, Receipt
from nightjar.inference.usage import Usage
from support import Lake

PLANNED = Planned(
    file="plan-000001.parquet",
    fingerprint="fp",
    date="2026-11-19",
    shards=8,
    rows=8000,
    done_shards=2,
    counts=Counts(rows_in=2000, rows_out=1990, rows_quarantined=10, batches_cut=3),
)
SCORED = Receipt(
    "s1", 1, 1, "w", None, None, 4.0, 100.0, retries=2, batches_cut=7, rows_in=1000, rows_out=995, rows_quarantined=5
)


def opened(task: str, nonce: str = "n1", flow_run: str = "") -> Opened:
    """By default of a flow run of its own."""
    return Opened(Holder(task, flow_run or nonce, "night-7", 12, 1.5, nonce, "2026-11-19T02:00:00+00:00"))


def folded(*lines: Line, start: Progress | None = None) -> Progress:
    progress = replace(start or Progress())
    for line in lines:
        progress.fold(line)
    return progress


def changed(before: Progress, after: Progress) -> dict[str, Any]:
    """What a line changed."""
    old = asdict(before)
    return {name: value for name, value in asdict(after).items() if value != old[name]}


def test_a_plan_says_what_there_is_and_what_is_done_of_it() -> None:
    """What failed before is kept, what was scored before is taken over."""
    before = folded(opened("score"), Failed("s", 1, "OSError", "no", died=True), SCORED)
    assert asdict(folded(PLANNED, start=before)) == {
        **asdict(Progress()),
        "shards": 8,
        "rows": 8000,
        "done_shards": 2,
        "counts": PLANNED.counts.by_name,
        "reused_shards": 2,
        "reused_rows": 2000,
        "failed_attempts": 1,
        "deaths": 1,
        "step": "score",
        "writer": "n1",
        "flow_run": "n1",
    }
    assert folded(replace(PLANNED, counts=NO_COUNTS), start=before).counts == NO_COUNTS


SOME = replace(SCORED, rows_left_out=30, rows_partial=3, ceilings=(0, 50))
"""As `SCORED`, of a job with a condition and two models, for one of which memory did not suffice."""


def test_rows_that_were_left_out_and_those_of_some_models_are_counted_like_others() -> None:
    """A new plan says how many there are; what memory has shown is kept."""
    before = folded(opened("score"), replace(PLANNED, counts=replace(PLANNED.counts, rows_left_out=60, rows_partial=5)))
    assert (before.counts.rows_left_out, before.counts.rows_partial, before.ceilings) == (60, 5, ())
    after = folded(SOME, replace(SOME, ceilings=(40, 70)), start=before)
    found = after.counts
    assert (found.rows_left_out, found.rows_partial, found.rows_in_quarantine) == (120, 11, 31)
    assert after.ceilings == (40, 50)
    revoked = Revoked(
        "s1",
        1,
        "PartDamaged",
        "no",
        counts=Counts(rows_in=1000, rows_out=995, rows_quarantined=5, rows_left_out=30, rows_partial=3),
    )
    less = folded(revoked, start=after)
    assert (less.counts.rows_left_out, less.counts.rows_partial) == (90, 8)
    planned = folded(replace(PLANNED, counts=Counts(rows_left_out=7, rows_partial=1)), start=after)
    assert (planned.counts.rows_left_out, planned.counts.rows_partial) == (7, 1)
    assert planned.ceilings == (40, 50)


@pytest.mark.parametrize(
    ("before", "said", "least"),
    [((), (), ()), ((), (0, 7), (0, 7)), ((5,), (0, 7), (5, 7)), ((5, 9), (6, 0), (5, 9)), ((0, 9), (6, 7), (6, 7))],
)
def test_each_model_has_the_lowest_ceiling_that_memory_has_shown(
    before: tuple[int, ...], said: tuple[int, ...], least: tuple[int, ...]
) -> None:
    assert lowest([before, said]) == least


def test_a_plan_with_shards_nobody_counted_has_at_least_the_rows_that_were_read() -> None:
    progress = folded(replace(PLANNED, rows=500, uncounted=6))
    assert (progress.rows, progress.uncounted, progress.counted) == (2000, 6, False)
    progress.fold(SCORED)
    assert progress.rows == 3000
    for _ in range(5):
        progress.fold(SCORED)
    assert (progress.rows, progress.done_shards, progress.counted) == (8000, 8, True)
    counted = folded(replace(PLANNED, rows=500))
    assert (counted.rows, counted.counted) == (500, True)


def test_a_receipt_adds_what_was_scored_and_when() -> None:
    before = folded(opened("score"), PLANNED)
    first = folded(SCORED, start=before)
    assert changed(before, first) == {
        "done_shards": 3,
        "counts": {
            **before.counts.by_name,
            "rows_in": 3000,
            "rows_out": 2985,
            "rows_quarantined": 15,
            "batches_cut": 10,
        },
        "step": "score",
        "retries": 2,
        "first_start": 100.0,
        "last_end": 104.0,
    }
    earlier = folded(replace(SCORED, started_at=90.0, seconds=1.0), start=first)
    assert (earlier.first_start, earlier.last_end, earlier.retries, earlier.counts.batches_cut) == (90.0, 104.0, 4, 17)
    later = folded(replace(SCORED, started_at=101.0, seconds=9.0), start=first)
    assert (later.first_start, later.last_end) == (100.0, 110.0)


def test_a_receipt_that_is_taken_over_is_no_work_of_this_run() -> None:
    before = folded(opened("score"), PLANNED)
    after = folded(replace(SCORED, adopted_from="r1"), start=before)
    assert changed(before, after) == {
        "done_shards": 3,
        "counts": {
            **before.counts.by_name,
            "rows_in": 3000,
            "rows_out": 2985,
            "rows_quarantined": 15,
            "batches_cut": 10,
        },
        "reused_shards": 3,
        "reused_rows": 3000,
    }


@pytest.mark.parametrize(
    ("step", "then"), [("plan", "score"), ("load", "score"), ("score", "score"), ("validate", "validate")]
)
def test_the_first_receipt_says_that_scoring_began(step: str, then: str) -> None:
    assert folded(Doing(step), SCORED).step == then


def test_failures_deaths_splits_and_revocations_are_counted() -> None:
    before = folded(opened("score"), PLANNED)
    failed = Failed("s1", 1, "OSError", "no")
    assert changed(before, folded(failed, start=before)) == {"failed_attempts": 1}
    dead = Failed("s1", 1, "Died", "gone", died=True)
    assert changed(before, folded(dead, dead, start=before)) == {"failed_attempts": 2, "deaths": 2}
    assert changed(before, folded(Split("s1", "no", 3), start=before)) == {"shards": 10}
    revoked = Revoked(
        "s1", 1, "PartDamaged", "no", counts=Counts(rows_in=904, rows_out=900, rows_quarantined=4, batches_cut=2)
    )
    left = Counts(rows_in=1096, rows_out=1090, rows_quarantined=6, batches_cut=1)
    taken_back = {"done_shards": 1, "counts": left.by_name, "failed_attempts": 1}
    assert changed(before, folded(revoked, start=before)) == taken_back
    assert folded(revoked, start=replace(before, done_shards=7)).done_shards == 6


def test_the_seconds_of_failed_attempts_are_added_up_in_each_score_step() -> None:
    before = folded(opened("score"), PLANNED)
    failed = Failed("s1", 1, "OSError", "no", spent_s=1.5)
    twice = folded(failed, replace(failed, attempt=2, spent_s=2.0), start=before)
    assert changed(before, twice) == {"failed_attempts": 2, "failed_s": 3.5}
    again = folded(opened("score", "n2"), failed, start=twice)
    assert (again.failed_attempts, again.failed_s) == (3, 1.5)


def test_repeated_requests_are_those_of_the_shards_that_this_command_committed() -> None:
    earlier = folded(opened("score"), SCORED)
    assert earlier.retries == 2
    assert folded(opened("score", "n2"), replace(SCORED, shard="s2", retries=1), start=earlier).retries == 1


def test_a_step_that_scores_takes_over_what_is_done_and_another_does_not() -> None:
    before = folded(opened("score"), replace(PLANNED, done_shards=0, counts=NO_COUNTS))
    scored = folded(SCORED, start=before)
    assert changed(scored, folded(opened("validate", "n2"), start=scored)) == {"step": "validate", "writer": "n2"}
    assert changed(scored, folded(opened("score", "n2"), start=scored)) == {
        "step": "plan",
        "writer": "n2",
        "flow_run": "n2",
        "reused_shards": 1,
        "reused_rows": 1000,
        "first_start": 0.0,
        "last_end": 0.0,
        "retries": 0,
    }
    assert changed(scored, folded(Closed(), start=scored)) == {}


def test_a_score_step_that_its_flow_run_repeats_goes_on_with_what_the_first_one_scored() -> None:
    """The audit found a part damaged, or Prefect repeated the step: the cost is that of both, so the rows must be."""
    used = replace(SCORED, usage=Usage(requests=9))
    first = folded(opened("score"), PLANNED, used, replace(used, started_at=200.0))
    assert (first.reused_shards, first.scored_rows, first.steady_s) == (2, 2000, 104.0)
    revoked = Revoked("s1", 1, "PartDamaged", "no", counts=Counts(rows_in=1000, rows_out=995, rows_quarantined=5))
    again = folded(opened("validate", "n2"), revoked, opened("score", "n3", "n1"), start=first)
    assert (again.reused_shards, again.scored_rows, again.steady_s, again.usage_before) == (2, 1000, 104.0, Usage())
    done = folded(replace(used, started_at=300.0), start=again)
    assert (done.reused_shards, done.scored_rows, done.steady_s) == (2, 2000, 108.0)
    assert done.rows_per_s == 2000 / 108.0
    planned = folded(PLANNED, start=again)
    assert (planned.earlier_rows, planned.earlier_s, planned.flow_run) == (1000, 104.0, "n1")
    other = folded(opened("score", "n4"), start=done)
    assert (other.reused_shards, other.scored_rows, other.steady_s, other.usage_before.requests) == (4, 0, 0.0, 27)


def test_a_part_of_an_earlier_command_that_is_taken_back_is_not_already_done() -> None:
    first = folded(opened("score"), PLANNED)
    revoked = Revoked("s0", 1, "PartDamaged", "no", counts=Counts(rows_in=1000, rows_out=995, rows_quarantined=5))
    again = folded(revoked, opened("score", "n3", "n1"), SCORED, start=first)
    assert (again.reused_shards, again.done_shards, again.scored_rows) == (1, 2, 1000)
    nameless = replace(first, flow_run="")
    assert folded(Opened(replace(opened("score").writer, flow_run="")), start=nameless).reused_shards == 2


def test_speed_is_of_the_rows_scored_now_from_the_first_start_to_the_last_end() -> None:
    none = Progress(rows=100)
    assert (none.scored_rows, none.steady_s, none.rows_per_s, none.remaining_s(1.0)) == (0, 0.0, 0.0, None)
    half = Progress(
        shards=8,
        rows=8000,
        done_shards=4,
        counts=Counts(rows_in=4000, rows_out=3990, rows_quarantined=10),
        reused_shards=1,
        reused_rows=1000,
        first_start=100.0,
        last_end=130.0,
    )
    assert (half.scored_rows, half.steady_s, half.rows_per_s) == (3000, 30.0, 100.0)
    assert half.remaining_s(130.0) == 40.0
    assert half.remaining_s(135.0) == 35.0
    assert half.remaining_s(120.0) == 40.0, "a clock elsewhere may be behind"
    assert half.remaining_s(500.0) == 0.0
    assert half.remaining_s() == 0.0, "by this machine's clock the last shard ended long ago"
    backwards = replace(half, last_end=99.0)
    assert (backwards.steady_s, backwards.rows_per_s) == (0.0, 0.0)


def test_where_rows_are_not_counted_shards_tell_how_long_it_will_take() -> None:
    half = Progress(
        shards=8,
        rows=1300,
        done_shards=4,
        counts=Counts(rows_in=1300, rows_out=1290, rows_quarantined=10),
        reused_shards=1,
        reused_rows=1000,
        first_start=100.0,
        last_end=130.0,
        uncounted=8,
    )
    assert half.remaining_s(130.0) == 40.0, "three shards took 30 s, four are left"
    assert replace(half, reused_shards=4).remaining_s(130.0) == 120.0, "as if one shard had taken all that time"
    assert replace(half, shards=4).remaining_s(130.0) == 0.0


def test_rates_of_tokens_are_those_of_this_command_and_the_longest_prompt_is_that_of_all() -> None:
    """Over the time from the first shard's start to the last one's end, whoever asked at once."""
    earlier = replace(SCORED, usage=Usage(requests=9, prompt_tokens=900, output_tokens=90, longest_prompt=500))
    used = Usage(requests=11, retries=1, prompt_tokens=200, output_tokens=40, longest_prompt=30, answering_ms=6000)
    one = replace(SCORED, shard="s2", usage=used, started_at=200.0, seconds=4.0)
    other = replace(SCORED, shard="s3", usage=used, started_at=201.0, seconds=4.0)
    progress = folded(opened("score"), PLANNED, earlier, opened("score", "n2"), PLANNED, one, other)
    assert (progress.usage.requests, progress.usage.longest_prompt, progress.usage.prompt_tokens) == (31, 500, 1300)
    assert progress.token_rates == TokenRates(20 / 5, 400 / 5, 80 / 5, 12000 / 80)
    assert folded(opened("score"), PLANNED).token_rates == TokenRates()
    short = folded(opened("score"), PLANNED, replace(one, seconds=0.5))
    assert short.token_rates == TokenRates(10 / 0.5, 200 / 0.5, 40 / 0.5, 6000 / 40), "in less than a second"


def test_a_run_gives_away_its_own_progress_once_which_then_says_how_far_it_is(lake: Lake) -> None:
    request = lake.ready().request(engine="local")
    told: list[Progress] = []
    scored = run.score(request, run.discover(request), told.append)
    (progress,) = told
    assert progress is scored.progress
    assert (progress.done_shards, progress.step) == (8, "score")
