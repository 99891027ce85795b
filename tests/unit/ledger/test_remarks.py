"""What is known of how a night was scored is in its ledger: no later command, failed or not, forgets any of it.

A command here is the score step without Ray: it plans, takes over, learns what preflight tells, scores and commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nightjar.flows.finished_run import FinishedRun
from nightjar.flows.pages import standing
from nightjar.flows.pages.ending import after_failure, summary
from nightjar.flows.pages.escaping import markdown
from nightjar.inference.engine.local import LocalEngine
from nightjar.inference.errors import JobError, ShardsFailed
from nightjar.inference.history.night import look
from nightjar.inference.history.run_tables import follow, worded
from nightjar.inference.input.plan import Plan
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.lines import Intent, Packages, Planned, Preflight, Published
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.ledger.remarks import FEW_CUTS, Remarks, cut_batches, small_batches
from nightjar.inference.output import revisions as revs
from nightjar.inference.records import Counts, Receipt, Seen
from nightjar.inference.run import refusals
from nightjar.inference.run.campaign import Campaign
from nightjar.inference.run.lease import leased
from nightjar.inference.run.publishing import _revocation
from nightjar.inference.run.request import identity_of
from nightjar.inference.run.results import Scored
from nightjar.inference.run.resume import number_for, plan_in
from nightjar.inference.run.scoring import discover
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.preflight import Loaded
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.witness.seen import Collection, sentences
from runpages import PUBLICATION, PUBLISHED, failed_page
from support import Lake

BAD = """
def score(batch):
    if set(batch["x"]) & {5, 150, 250, 2100}:
        raise ValueError("bad")
    return {"score": batch["x"] * 2}
"""

TRIPLE = """
def score(batch):
    return {"score": batch["x"] * 3}
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
        return self.writer.state.progress

    def score(self, shards: int = 100) -> None:
        """Score and commit so many of those that are missing."""
        missing = [shard for shard in self.plan.shards() if shard.id not in self.writer.state.committed]
        spec = replace(
            self.lake.worker_spec(), revision=self.uri, epoch=self.writer.epoch, segment=self.writer.state.number
        )
        events = ShardWorker(spec).process(map(Assignment, missing[:shards]))
        self.writer.append([event for event in events if isinstance(event, Receipt)])

    def learn(self, version: str = "1.0", *notes: str) -> None:
        """What preflight found, with this release of a package."""
        loaded = Loaded("cpu", packages={"mylib": version})
        refusals.keep_external_reads(self.lake.request().job, loaded, notes, self.writer)

    @property
    def notes(self) -> list[str]:
        """What is said of the run as it is now."""
        return list(self.writer.state.about.notes(0))

    def publish(self) -> None:
        """The revision is closed: the next command begins another."""
        self.writer.append([Intent(1, Published(1, "", "", "2026-11-19"))])


@contextmanager
def command(lake: Lake, *, fresh: bool = False) -> Iterator[Command]:
    """Begin one; it ends with the block."""
    request = lake.request(fresh=fresh)
    found = discover(request)
    newest = revs.newest_revision(request.storage, request.run_uri)
    uri = revs.revision_uri(request.run_uri, number_for(newest, request, None))
    with leased(request, uri, "score", keep=False) as writer:
        plan = plan_in(request, writer, uri, found, identity_of(request, found.schema), newest)
        yield Command(lake, uri, writer, plan)


def learn(lake: Lake, *, fresh: bool = False) -> None:
    """A command that comes as far as its preflight, which finds nothing."""
    with command(lake, fresh=fresh) as now:
        now.learn()


def versions(now: Command) -> list[str]:
    """The releases that the manifest would name."""
    return list(now.writer.state.about.loaded["mylib"])


def changed(what: str) -> str:
    return (
        f"packages changed since this run was begun, and what is scored stays: {what}; `identity.packages` makes them "
        "count"
    )


def told(lake: Lake) -> list[tuple[str, str]]:
    """What is said of tonight's run."""
    found = look(lake.request())
    return worded(found.again, found.notes)


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
        assert (now.progress.done_shards, now.progress.counts.batches_cut) == (1, 3)
        now.score()
        assert now.progress.counts.batches_cut == 4
    assert followed(lake).counts.batches_cut == 4
    lake.write_file("part-03.parquet", 6000, 1500)
    with command(lake) as now:
        assert (now.progress.done_shards, now.progress.counts.batches_cut) == (6, 4)
        now.score()
        now.publish()
    lake.write_file("part-03.parquet", 6000, 1000)
    with command(lake) as now:
        assert (now.progress.done_shards, now.progress.counts.batches_cut) == (6, 4)
    assert followed(lake).counts.batches_cut == 4


def test_cuts_of_a_result_that_is_taken_back_count_no_more(lake: Lake) -> None:
    """It is scored again, and those batches are cut again. Ledgers of before do not say how many there were."""
    progress = Progress(
        shards=2, done_shards=2, counts=Counts(rows_in=2000, rows_out=1997, rows_quarantined=3, batches_cut=4)
    )
    line = {
        "shard": "s",
        "attempt": 1,
        "pieces": [{"uri": "u"}],
        "rows_in": 1000,
        "rows_out": 997,
        "rows_quarantined": 3,
        "batches_cut": 3,
    }
    line |= {"rows_left_out": 0, "rows_partial": 0}
    revoked = _revocation(line, "torn")
    progress.fold(revoked)
    assert (progress.done_shards, progress.counts.batches_cut) == (1, 1)


# ---- what identity does not cover ---------------------------------------------------------------------------

RARE = Seen("file", "/models/rare.json", "model.py:3")
(SAID,) = sentences([RARE])


def test_what_results_were_scored_with_is_known_to_whoever_takes_them_over(lake: Lake) -> None:
    """Only one worker of the first revision came to it. The second takes its shards over, the third the second's."""
    with command(lake) as now:
        now.learn()
        now.writer.append([RARE])
        now.score()
        now.publish()
    for revision in (2, 3):
        lake.write_file("part-03.parquet", 6000, 1000 + revision)
        with command(lake) as now:
            assert now.uri.endswith(f"r{revision}")
            assert now.notes == [SAID]
            now.score()
            now.publish()
    assert [record["t"] for record in lake.records(3)].count("seen") == 1
    assert now.writer.state.about.outside.all() == (RARE,)


def test_what_another_identity_used_is_forgotten_with_its_results(lake: Lake) -> None:
    """Once the model is mended nothing is said of it; put back, its results count again, and so does that."""
    bad = (lake.folder / "model.py").read_text()
    with command(lake) as now:
        now.learn()
        now.writer.append([RARE])
        now.score(1)
    lake.write_model(bad.replace("2", "3"))
    with command(lake) as now:
        assert now.notes == []
    lake.write_model(bad)
    with command(lake) as now:
        assert now.notes == [SAID]


def test_a_job_that_becomes_strict_refuses_results_of_before(lake: Lake) -> None:
    """This preflight sees nothing; workers of an earlier command did. A mended model is scored, and so is --fresh."""
    with command(lake) as now:
        now.learn()
        now.writer.append([RARE])
        now.score(1)
    lake.write_job(model__batch_size=100, identity="strict")
    with pytest.raises(JobError, match=r"^identity: strict: model.py reads /models/rare.json.*This run has results"):
        learn(lake)
    learn(lake, fresh=True)
    lake.write_model(TRIPLE)
    learn(lake)


def test_what_a_strict_job_kept_no_result_of_is_not_held_against_it(lake: Lake) -> None:
    """It failed where a worker came to it. Whatever of the machine was mended since, the next command may try again."""
    lake.write_job(identity="strict")
    with command(lake) as now:
        plan = now.plan
        spec = replace(lake.worker_spec(), revision=now.uri, epoch=now.writer.epoch)
        campaign = Campaign(plan, spec, LocalEngine(), now.writer, "")
        campaign._take(RARE)
        campaign._take(Seen("folder", "/logs", "model.py:9"))
        campaign.flush()
    assert [record["name"] for record in lake.records() if record["t"] == "seen"] == ["/logs"]
    learn(lake)


# ---- packages -----------------------------------------------------------------------------------------------


def test_packages_that_changed_are_said(lake: Lake) -> None:
    """The second command fails after its first shard; the third, under the same package, publishes and says it."""
    with command(lake) as now:
        now.learn("1.0")
        now.score(1)
    with command(lake) as now:
        now.learn("1.1")
        now.score(1)
    assert told(lake) == [("note", changed("mylib 1.0 → 1.1"))]
    with command(lake) as now:
        now.learn("1.1")
        assert now.notes == [changed("mylib 1.0 → 1.1")]
        now.score()
        now.publish()
    assert versions(now) == ["1.0", "1.1"]
    lake.write_file("part-03.parquet", 6000, 1500)
    with command(lake) as now:
        now.learn("1.2")
        assert now.notes == [changed("mylib 1.0 → 1.1, mylib 1.1 → 1.2")]
        now.score()
    assert versions(now) == ["1.0", "1.1", "1.2"]


def test_batches_that_were_cut_are_told_once_they_are_many() -> None:
    assert [bool(cut_batches(batches)) for batches in (0, FEW_CUTS, FEW_CUTS + 1)] == [False, False, True]
    assert cut_batches(1000) == [
        "1,000 batches failed and were scored in parts, which takes longer; see the errors in the quarantine, and "
        "if it is empty, check whether the predictor can take batches of this size"
    ]


def test_what_a_ledger_lacks_of_results_that_it_takes_over_is_written_once() -> None:
    """What was noticed, each state of each package, and what preflight said, unless it has said something since."""
    source = Remarks(
        preflight=("slow",),
        outside=Collection([Seen("database", "/d.sqlite", "p.py:1", 3)]),
        loaded={"numpy": ("1", "2"), "attrs": ("3",)},
    )
    mine = Remarks()
    lines = mine.lacking(source)
    assert lines == [
        Seen("database", "/d.sqlite", "p.py:1", 3),
        Packages({"numpy": "1", "attrs": "3"}),
        Packages({"numpy": "2"}),
        Preflight(("slow",)),
    ]
    for line in lines:
        mine.fold(line)
    assert (mine.preflight, mine.loaded, mine.outside.all()) == (source.preflight, source.loaded, source.outside.all())
    assert mine.lacking(source) == []
    assert Remarks(preflight=("fast",)).lacking(Remarks(preflight=("slow",))) == []
    assert Remarks(preflight=("fast",)).lacking(Remarks()) == []


def test_packages_are_said_where_nothing_is_left_to_score(lake: Lake) -> None:
    """A gate refused the run, its limit is relaxed, and the repeated command needs no preflight."""
    for version in ("1.0", "1.1"):
        with command(lake) as now:
            now.learn(version)
            now.score(4)
    with command(lake) as now:
        refusals.keep_external_reads(lake.request().job, Loaded(""), (), now.writer)
        assert now.notes == [changed("mylib 1.0 → 1.1")]


# ---- what preflight said, and what made shards old ----------------------------------------------------------


def test_what_preflight_said_is_there_while_nothing_is_tried_anew(lake: Lake) -> None:
    """The next preflight says it again, or something else; a command that scores nothing has none."""
    with command(lake) as now:
        now.learn("1.0", "the model writes over its batch")
        now.score()
    with command(lake) as now:
        refusals.keep_external_reads(lake.request().job, Loaded(""), (), now.writer)
        assert now.notes == ["the model writes over its batch"]
        now.learn("1.0")
        assert now.notes == []


def test_what_made_shards_old_stays_told(lake: Lake) -> None:
    """Not only by the command that planned them anew, which may fail."""
    with command(lake) as now:
        now.score()
        assert now.writer.state.about.again == ()
        now.publish()
    lake.write_model(TRIPLE)
    why = "model.py changed: 8 of 8 shards are scored"
    for shards in (1, 1, 8):
        with command(lake) as now:
            assert now.writer.state.about.again == (why,)
            now.score(shards)
            assert told(lake) == [("again", why)]
    lake.write_file("part-03.parquet", 6000, 1500)
    with command(lake) as now:
        assert now.writer.state.about.again == (why, "part-03.parquet changed: 2 of 8 shards are scored")


def test_a_command_killed_before_it_had_a_plan_hides_no_reason(lake: Lake) -> None:
    """Nor does one that was replaced by another change before it had any result."""
    with command(lake) as now:
        now.score()
        now.publish()
    request = lake.request()
    with leased(request, f"{request.run_uri}/r2", "score", keep=False):
        pass
    lake.write_model(f"{TRIPLE}\n'vocab.json'\n")
    with command(lake) as now:
        assert now.writer.state.about.again == ("model.py changed: 8 of 8 shards are scored",)
    (lake.folder / "vocab.json").write_text("{}")
    with command(lake) as now:
        (why,) = now.writer.state.about.again
        assert why == "model.py changed, vocab.json is new: 8 of 8 shards are scored"


def test_what_is_put_back_is_not_scored_again_and_not_said_to_be(lake: Lake) -> None:
    """The published results are taken over after all."""
    before = (lake.folder / "model.py").read_text()
    with command(lake) as now:
        now.score()
        now.publish()
    lake.write_model(TRIPLE)
    with command(lake) as now:
        now.score(1)
    lake.write_model(before)
    with command(lake) as now:
        assert now.progress.done_shards == 8
        assert now.writer.state.about.again == ()


# ---- what a run had to do without, and what it read ---------------------------------------------------------


def test_each_kind_of_batch_that_lack_of_memory_made_smaller_has_a_sentence() -> None:
    told = (
        "memory did not suffice for {}, so that smaller ones were scored; more memory for each actor allows larger ones"
    )
    assert small_batches([]) == []
    assert small_batches([0, 1000, 2000]) == [told.format("micro-batches of more than 1,000 rows")]


def test_a_run_says_which_snapshots_of_a_table_it_read() -> None:
    """The last plan's, and the first one's, if it was another."""
    about = Remarks()
    told = []
    for snapshot in ("", "4", "4", "5", "6", "5", "4"):
        about.fold(Planned(file="plan-1.parquet", fingerprint="", date="2026-11-19", snapshot=snapshot))
        told.append(about.notes(0))
    began = "; the run began with snapshot {}, and kept what is the same".format
    assert told == [
        (),
        ("the input is snapshot 4 of its table",),
        ("the input is snapshot 4 of its table",),
        (f"the input is snapshot 5 of its table{began(4)}",),
        (f"the input is snapshot 6 of its table{began(4)}",),
        (f"the input is snapshot 5 of its table{began(4)}",),
        ("the input is snapshot 4 of its table",),
    ]


# ---- where it is told ---------------------------------------------------------------------------------------


def test_a_run_that_failed_tells_it_in_the_terminal_and_in_status(lake: Lake) -> None:
    """The terminal of the command, and `status` once that is closed."""
    with command(lake) as now:
        now.score(1)
    lake.write_model(TRIPLE)
    with command(lake) as now:
        now.learn("1.0", "the model writes over its batch")
        now.writer.append([RARE])
    request = lake.request()
    told = [
        "  again      model.py changed: 8 of 8 shards are scored",
        "  note       the model writes over its batch",
        f"  note       {SAID}",
    ]
    failed = after_failure(request, ShardsFailed("7 of 8 shards have no result"))
    for text in (failed, standing.status_text(standing.status(request))):
        assert [each for each in text.splitlines() if each.startswith(("  again", "  note"))] == told


def test_the_pages_of_a_run_tell_it(lake: Lake) -> None:
    """Of one that failed and of one that is published."""
    with command(lake) as now:
        now.score(1)
    lake.write_model(TRIPLE)
    with command(lake) as now:
        now.writer.append([RARE])
        about = now.writer.state.about
    failed = failed_page(lake.request(), ShardsFailed("7 of 8 shards have no result"))
    scored = Scored(1, 1, Progress(), warnings=about.notes(0), again=about.again)
    _, published = summary(FinishedRun(lake.request(), scored, PUBLISHED, PUBLICATION), "")
    for word, text in [("again", "model.py changed: 8 of 8 shards are scored"), ("note", SAID)]:
        assert f"| {word} | {markdown(text)} |" in failed.splitlines()
        assert f"| {word} | {markdown(text)} |" in published.splitlines()
