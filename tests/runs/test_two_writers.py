"""Promise 5: of two writers of one run at most one commits, at most one publication results, the other is told.

Here a writer stalls as a paused machine does, is replaced after its lease, and wakes up again at each step.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pandas as pd
import pytest

import faults
import steps as run
from faults import pause
from nightjar.inference.errors import AlreadyExists, Held
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.output import revisions as revs
from nightjar.inference.storage.lake import LakeStorage
from support import Lake, run_steps, wait_until
from writers import (
    BEFORE_INTENT,
    BEFORE_MANIFEST,
    BEFORE_PLAN,
    BEFORE_PUBLISH,
    BEFORE_PUBLISHED,
    BEFORE_SNAPSHOT,
    BEFORE_SUCCESS,
    BEFORE_SWEEP,
    BEFORE_VALIDATE,
    SHORT_S,
    OnDriver,
    Point,
    Writer,
    assert_published_once,
    published_parts,
    run_steps_with,
)

WAITING = '''
import time
from pathlib import Path

def score(batch):
    """Twice x, as soon as somebody says go."""
    while not (Path(__LIVE__) / "go").exists():
        time.sleep(0.05)
    return {"score": batch["x"] * 2}
'''
"""A predictor that keeps a run going until the test lets it end."""


@pytest.mark.parametrize(
    "point",
    [
        BEFORE_PLAN,
        BEFORE_VALIDATE,
        BEFORE_MANIFEST,
        BEFORE_PUBLISH,
        BEFORE_INTENT,
        BEFORE_SNAPSHOT,
        BEFORE_PUBLISHED,
        BEFORE_SWEEP,
        BEFORE_SUCCESS,
    ],
    ids=str,
)
def test_a_writer_that_stalls_is_replaced_and_changes_nothing_when_it_wakes(
    shared: Lake, rows: pd.DataFrame, point: Point
) -> None:
    """One publication, no doubled row, no stray part; the sleeper is told that it was replaced."""
    run_id = f"stalls-{point}"
    sleeper = Writer(shared.request(run_id=run_id), point)
    sleeper.start_and_stall()
    try:
        run_steps(replace(shared.request(run_id=run_id), lease_s=SHORT_S))
        assert_published_once(shared, run_id, rows)
        before = published_parts(shared, run_id)
    finally:
        error = sleeper.wake_and_join()
    if point in (BEFORE_SWEEP, BEFORE_SUCCESS):
        assert error is None  # it had published, which nobody can take from it; its successor found that, and finished
    else:
        assert isinstance(error, Held), error
        assert error.exit_code == 3
    assert_published_once(shared, run_id, rows)
    assert published_parts(shared, run_id) == before


def test_of_two_that_start_at_once_one_publishes(lake: Lake) -> None:
    """Simultaneous: both see a run that nobody writes; one gets it, the other learns who has it."""
    lake.write_model(WAITING)
    lake.ready()
    together = threading.Barrier(2)
    begins = pause("create", "*/ledger/00000001.jsonl", before=lambda _: together.wait(60))
    both = [replace(lake.request(), storage=OnDriver(LakeStorage(), [begins])) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        tried = [pool.submit(run_steps, request) for request in both]
        wait_until(lambda: any(each.done() for each in tried), 120, "one of them ends")
        (lake.folder / "go").touch()
        errors = [each.exception(120) for each in tried]
    refused = [error for error in errors if error is not None]
    assert len(refused) == 1, errors
    assert isinstance(refused[0], Held)
    assert "is being written by" in str(refused[0])
    lake.run(run_id="undisturbed")
    assert_published_once(lake, "2026-11-19", lake.published("undisturbed"))


def test_one_that_comes_while_another_writes_is_told_who_that_is(shared: Lake) -> None:
    """Staggered, with --fresh or without: it changes nothing, and names task and process."""
    request = shared.request(run_id="staggered")
    found = run.discover(request)
    holder = open_epoch(request.storage, revs.revision_uri(request.run_uri, 1), this_holder("score", "h"), lease_s=1)
    try:
        for late in (replace(request, flow_run="late"), replace(request, flow_run="late", fresh=True)):
            with pytest.raises(Held, match=r"being written by score of flow run h, process \d+ on \S+, since"):
                run.score(late, found)
    finally:
        holder.stop(release=True)
    assert not shared.revision(2, "staggered").exists()
    assert {record["t"] for record in shared.records(1, "staggered")} == {"opened", "closed"}


def test_a_fresh_run_leaves_no_way_back_to_the_writer_it_replaced(shared: Lake, rows: pd.DataFrame) -> None:
    """--fresh begins revision 2 beside a stalled revision 1, which can no longer publish over it."""
    sleeper = Writer(shared.request(run_id="fresh"), BEFORE_INTENT)
    sleeper.start_and_stall()
    try:
        ran = run_steps(replace(shared.request(run_id="fresh", fresh=True), lease_s=SHORT_S))
    finally:
        error = sleeper.wake_and_join()
    assert ran.scored.revision == 2
    assert isinstance(error, Held)
    assert_published_once(shared, "fresh", rows, revision=2)


def test_a_fresh_run_that_is_repeated_by_its_own_flow_is_continued(shared: Lake) -> None:
    """Prefect repeats a task of the same flow run: that continues the fresh revision, and begins no other."""
    request = shared.request(run_id="repeated", fresh=True, flow_run="flow")
    found = run.discover(request)
    first = run.score(request, found)
    again = run.score(request, found)
    assert (first.revision, again.revision) == (1, 1)
    assert (again.workers, again.progress.done_shards) == (0, 8), "nothing is scored twice"
    assert (again.progress.reused_shards, again.progress.scored_rows) == (0, 8000), "its flow run scored them"


def test_who_looked_before_a_publication_does_not_write_into_it(lake: Lake) -> None:
    """A published revision is closed for ever, also to a command that last looked at it while it was open.

    The second command comes just before the first publishes, and with other input: planned into the published
    revision, its shards would cost the published ones their parts.
    """
    lake.ready()
    first = Writer(lake.request(), BEFORE_INTENT)
    first.start_and_stall()
    lake.write_file("part-00.parquet", 0, 2000, row_group=500)
    second = Writer(lake.request(), Point("before it opens", "score", "list", "*/r1/ledger", 2))
    try:
        second.start_and_stall()
        assert first.wake_and_join() is None
        before = published_parts(lake, "2026-11-19")
    finally:
        first.stall.wake()
        error = second.wake_and_join()
    assert isinstance(error, Held)
    assert published_parts(lake, "2026-11-19") == before
    assert lake.published()["id"].tolist() == list(range(8000))
    ran = lake.run()
    assert (ran.scored.revision, ran.scored.progress.reused_shards) == (2, 6)
    assert lake.published()["id"].tolist() == list(range(8000))


def test_who_is_replaced_while_it_takes_results_over_leaves_no_copies(lake: Lake) -> None:
    """A new revision begins with copies of what did not change; a sleeper's copies go again when it wakes."""
    lake.ready().run()
    lake.write_file("part-03.parquet", 6000, 2000, row_group=500)
    sleeper = Writer(lake.request(), Point("while it copies", "score", "copy", "*/r2/data/*", 3))
    sleeper.start_and_stall()
    try:
        run_steps(replace(lake.request(), lease_s=SHORT_S))
    finally:
        error = sleeper.wake_and_join()
    assert isinstance(error, Held)
    assert {path.name for path in lake.revision(2).joinpath("data").iterdir()} == {
        name.rsplit("/", 1)[-1] for name in published_parts(lake, "2026-11-19")
    }
    assert lake.published()["id"].tolist() == list(range(8000))


def test_lost_answers_replace_nobody(shared: Lake, rows: pd.DataFrame) -> None:
    """A creation that happened, but whose answer was lost or came as "exists", is one's own."""
    exists = AlreadyExists("sent twice on purpose")
    lossy = OnDriver(
        LakeStorage(),
        [
            faults.lose_answer("create", "*/ledger/*", nth=2),
            faults.Fault("create", "*/ledger/*", None, error=exists),
            faults.lose_answer("create", "*/publications/*"),
            faults.lose_answer("create", "*/_SUCCESS"),
            faults.lose_answer("create", "*/manifest-*"),
        ],
    )
    run_steps_with(shared.request(run_id="lossy"), dict.fromkeys(("score", "validate", "publish"), lossy))
    assert_published_once(shared, "lossy", rows)
