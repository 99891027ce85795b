"""What is known of how a night was scored is in its ledger: no later command, failed or not, forgets any of it.

A command here is the score step without Ray: it plans, takes over, learns what preflight tells, scores and commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nightjar.inference import revisions as revs
from nightjar.inference.assignment import Assignment
from nightjar.inference.ledger import LedgerWriter
from nightjar.inference.plan import Plan
from nightjar.inference.progress import Progress
from nightjar.inference.report import follow
from nightjar.inference.request import identity_of
from nightjar.inference.resume import number_for, plan_in, progress_of
from nightjar.inference.run import _revocation, discover
from nightjar.inference.shards import Receipt, encode
from nightjar.inference.tenure import tenure
from nightjar.inference.worker import ShardWorker
from support import Lake

BAD = """
def score(batch):
    if set(batch["x"]) & {5, 150, 250, 2100}:
        raise ValueError("bad")
    return {"score": batch["x"] * 2}
"""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Four files of two shards each, a thousand rows a shard."""
    return Lake(tmp_path / "job").ready(model__batch_size=100)


class Command:
    """One command for tonight's run, as far as its score step goes."""

    def __init__(self, lake: Lake, uri: str, writer: LedgerWriter, plan: Plan) -> None:
        self.lake, self.uri, self.writer, self.plan = lake, uri, writer, plan

    @property
    def progress(self) -> Progress:
        """As the step begins with it."""
        return progress_of(self.writer, self.plan)

    def score(self, shards: int = 100) -> None:
        """Score and commit so many of those that are missing."""
        missing = [shard for shard in self.plan.shards() if shard.id not in self.writer.state.committed]
        spec = replace(self.lake.worker_spec(), revision=self.uri, epoch=self.writer.epoch, segment=self.writer.number)
        events = ShardWorker(spec).process(map(Assignment, missing[:shards]))
        self.writer.append([encode(event) for event in events if isinstance(event, Receipt)])

    def publish(self) -> None:
        """The revision is closed: the next command begins another."""
        self.writer.append([{"t": "intent", "number": 1}])


@contextmanager
def command(lake: Lake) -> Iterator[Command]:
    """Begin one; it ends with the block."""
    request = lake.request()
    found = discover(request)
    newest = revs.newest_revision(request.storage, request.run_uri)
    uri = revs.revision_uri(request.run_uri, number_for(newest, request))
    with tenure(request, uri, "score", keep=False) as writer:
        plan = plan_in(request, writer, uri, found, identity_of(request, found.schema), newest)
        yield Command(lake, uri, writer, plan)


def followed(lake: Lake) -> Progress:
    """As `status` and the display read it."""
    request = lake.request()
    progress = next(follow(request.storage, request.run_uri))
    assert progress is not None
    return progress


# ---- batches that were cut ----------------------------------------------------------------------------------


def test_cuts_count_whichever_command_scored(lake: Lake) -> None:
    """A run is continued, planned anew for a changed file, and taken over by a new revision: they stay."""
    lake.write_model(BAD)
    with command(lake) as now:
        now.score(1)
    with command(lake) as now:
        assert (now.progress.done_shards, now.progress.cuts) == (1, 3)
        now.score()
        assert now.progress.cuts == 4
    assert followed(lake).cuts == 4
    lake.write_file("part-03.parquet", 6000, 1500)
    with command(lake) as now:
        assert (now.progress.done_shards, now.progress.cuts) == (6, 4)
        now.score()
        now.publish()
    lake.write_file("part-03.parquet", 6000, 1000)
    with command(lake) as now:
        assert (now.progress.done_shards, now.progress.cuts) == (6, 4)
    assert followed(lake).cuts == 4


def test_cuts_of_a_result_that_is_taken_back_count_no_more(lake: Lake) -> None:
    """It is scored again, and those batches are cut again. Ledgers of before do not say how many there were."""
    progress = Progress(shards=2, done_shards=2, rows_out=1997, rows_quarantined=3, cuts=4)
    line = {"shard": "s", "attempt": 1, "pieces": [{"uri": "u"}], "rows_out": 997, "rows_quarantined": 3, "cuts": 3}
    record = _revocation(line, "torn")
    progress.fold(record)
    assert (progress.done_shards, progress.cuts) == (1, 1)
    del record["cuts"]
    progress.fold(record)
    assert progress.cuts == 1
