"""With `reuse: shards` a night takes over an earlier night's results of shards whose input did not change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import steps as run
from nightjar.flows.pages.estimate import plan_text, planned
from nightjar.inference.engine import LOCAL, auditing
from nightjar.inference.errors import AuditFailed, JobError, TakenBack
from nightjar.inference.history.run_tables import RunReport
from nightjar.inference.input.plan import Plan
from nightjar.inference.job.file import load_job
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.output import revisions as revs
from nightjar.inference.output.visibility import unpublish
from nightjar.inference.run import resume
from nightjar.inference.run.resume import needs_cluster
from support import DOUBLE, Lake, Ran

MONDAY, TUESDAY, WEDNESDAY = "2026-11-16", "2026-11-17", "2026-11-18"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Four files of two shards each, and a job that reuses shards."""
    return Lake(tmp_path, LOCAL).ready(reuse="shards")


def night(lake: Lake, date: str, **options: Any) -> Ran:
    return lake.run(date=date, **options)


def scored(ran: Ran) -> int:
    """The shards that a run scored itself."""
    return ran.scored.progress.shards - sum(each.shards for each in ran.verdict.reused)


def complete(lake: Lake, date: str) -> None:
    """What readers see of a night is each row of its input with the output of `DOUBLE`."""
    rows = lake.published(date)
    expected = run.discover(lake.request(date=date)).rows
    assert len(rows) == expected and rows["id"].is_unique
    assert (rows["score"] == 2 * rows["id"]).all()


def test_a_night_of_the_same_input_scores_nothing_and_stands_alone(lake: Lake) -> None:
    """The earlier night may be deleted. The figures, among them those of columns, are those of a night that scored."""
    first, second = night(lake, MONDAY), night(lake, TUESDAY)
    assert scored(first) == 8 and scored(second) == 0
    (reused,) = second.verdict.reused
    assert (reused.source, reused.shards, reused.rows) == (f"{MONDAY}/r1", 8, 8000)
    assert reused.saved_s == pytest.approx(first.scored.progress.spent.total, abs=0.02)
    assert second.verdict.metrics == first.verdict.metrics
    manifest = json.loads((lake.out / second.publication.manifest).read_text())
    assert manifest["reused"][0]["rows"] == 8000 and manifest["totals"]["rows_out"] == 8000
    links = {path.stat().st_nlink for path in (lake.revision(1, TUESDAY) / "data").iterdir()}
    assert links == {2}, "parts are linked, not copied, on a local disk"
    shutil.rmtree(lake.out / "runs" / MONDAY)
    complete(lake, TUESDAY)
    assert scored(night(lake, WEDNESDAY)) == 0


def test_only_files_that_changed_are_scored(lake: Lake) -> None:
    """One file changed, one is new, one is gone; what is published equals a night that scored everything."""
    night(lake, MONDAY)
    lake.write_file("part-01.parquet", 50_000, 2000)
    lake.write_file("part-09.parquet", 60_000, 3000)
    (lake.folder / "data" / "part-02.parquet").unlink()
    ran = night(lake, TUESDAY)
    assert (scored(ran), ran.scored.progress.shards) == (5, 9)
    assert ran.scored.again == ("part-01.parquet changed, part-09.parquet is new: 5 of 9 shards are scored",)
    complete(lake, TUESDAY)
    anew = night(lake, TUESDAY, fresh=True)
    assert scored(anew) == 9 and anew.verdict.metrics == ran.verdict.metrics


def test_shards_keep_their_boundaries_when_the_night_grows_and_has_more_actors(tmp_path: Path) -> None:
    """By default the size of a shard follows from the size of the night and the number of actors."""
    lake = Lake(tmp_path, LOCAL).ready(reuse="shards", input__shard_rows=None)
    before = night(lake, MONDAY).scored.progress.shards
    for index in range(4, 12):
        lake.write_file(f"part-{index:02d}.parquet", index * 2000, 2000)
    lake.write_job(reuse="shards", input__shard_rows=None, resources__actors=3)
    ran = night(lake, TUESDAY)
    assert ran.verdict.reused[0].shards == before and ran.verdict.reused[0].rows == 8000
    complete(lake, TUESDAY)


def test_what_scores_otherwise_reuses_nothing_and_the_change_is_named(lake: Lake) -> None:
    """The night after it reuses the newest night that was scored alike, however many others lie between."""
    night(lake, MONDAY)
    lake.write_model(DOUBLE.replace("* 2", "* 3"))
    ran = night(lake, TUESDAY)
    assert scored(ran) == 8 and ran.scored.again == ("model.py changed: 8 of 8 shards are scored",)
    lake.write_model()
    back = night(lake, WEDNESDAY)
    assert back.verdict.reused[0].source == f"{MONDAY}/r1" and scored(back) == 0
    complete(lake, WEDNESDAY)


def test_without_the_key_everything_is_scored_and_the_plan_says_what_could_be_reused(lake: Lake) -> None:
    night(lake, MONDAY)
    lake.write_file("part-00.parquet", 50_000, 2000)

    def said() -> str:
        request = lake.request(date=TUESDAY)
        discovery = run.discover(request)
        return plan_text(planned(request, discovery, run.plan(request, discovery)))

    assert "2 of 8 shards to score" in said()
    assert f"6 shards of 6,000 rows from {MONDAY} r1\n" in said()
    lake.write_job()
    assert "8 of 8 shards to score" in said()
    assert f"6 shards of 6,000 rows from {MONDAY} r1, if the job said `reuse: shards`" in said()
    assert scored(night(lake, TUESDAY)) == 8


@pytest.mark.system
def test_a_night_that_was_taken_back_is_no_source(lake: Lake) -> None:
    """Nor is one that was never published; and a run that has taken over its results is not published."""
    night(lake, MONDAY)
    request = lake.request(date=TUESDAY)
    found = run.discover(request)
    run.score(request, found)
    unpublish(request.storage, request.output, MONDAY)
    with pytest.raises(TakenBack, match=MONDAY):
        night(lake, TUESDAY)
    assert scored(night(lake, TUESDAY, fresh=True)) == 8
    night(lake, WEDNESDAY, limit=8000)
    assert night(lake, "2026-11-19").verdict.reused[0].source == f"{TUESDAY}/r2"


def test_a_night_that_took_over_nothing_is_published_though_the_earlier_one_was_taken_back(lake: Lake) -> None:
    night(lake, MONDAY)
    for index in range(4):
        lake.write_file(f"part-{index:02d}.parquet", 100_000 + index * 2000, 2000)
    request = lake.request(date=TUESDAY)
    run.score(request, run.discover(request))
    unpublish(request.storage, request.output, MONDAY)
    assert night(lake, TUESDAY).scored.progress.reused_rows == 8000, "nothing is scored again"
    complete(lake, TUESDAY)


def test_the_ledger_of_a_night_is_not_read_again_if_nothing_of_it_can_be_taken_over(lake: Lake) -> None:
    night(lake, MONDAY)
    request, uri = lake.request(date=TUESDAY), str(lake.revision(1, TUESDAY))
    source = revs.revision_named(request.storage, request.output, f"{MONDAY}/r1")
    plan = source.plan()
    assert plan is not None
    writer = open_epoch(request.storage, uri, this_holder("score"), lease_s=3600)
    for segment in (lake.revision(1, MONDAY) / "ledger").iterdir():
        segment.write_text("damaged")
    revs.adopt(writer, uri, Plan.of([]), source, plan, states_beside=False)
    writer.stop(release=True)


def test_later_nights_are_no_source(lake: Lake) -> None:
    """An earlier date that is scored afterwards does not take over what came after it."""
    night(lake, TUESDAY)
    assert scored(night(lake, MONDAY)) == 8


@pytest.mark.parametrize("file", ["manifest-000002.json", "plan-000001.parquet"])
def test_a_night_that_cannot_be_read_is_no_source_and_it_is_said(lake: Lake, file: str) -> None:
    night(lake, MONDAY)
    (lake.revision(1, MONDAY) / file).write_bytes(b"torn")
    ran = night(lake, TUESDAY)
    assert scored(ran) == 8 and f"nothing of the night {MONDAY} can be reused" in ran.scored.again[0]
    complete(lake, TUESDAY)


def test_a_part_that_was_removed_is_scored_and_one_that_rotted_is_found(lake: Lake) -> None:
    night(lake, MONDAY)
    parts = sorted((lake.revision(1, MONDAY) / "data").iterdir())
    parts[0].unlink()
    parts[1].write_bytes(parts[1].read_bytes()[:-9] + b"123456789")
    with pytest.raises(AuditFailed):
        night(lake, TUESDAY)
    request = lake.request(date=TUESDAY)
    found = run.discover(request)
    assert run.plan(request, found).left == 1
    assert needs_cluster(request, found, there=False), "what rotted is not taken over again"
    ran = night(lake, TUESDAY)
    assert scored(ran) == 2 and ran.scored.progress.failed_attempts == 1
    complete(lake, TUESDAY)


def test_a_run_that_is_continued_with_other_code_looks_again(lake: Lake) -> None:
    """A night begins with code that is mended afterwards: it takes over what the night before has all the same."""
    night(lake, MONDAY)
    lake.write_model("def score(batch):\n    raise ValueError('not yet')\n")
    with pytest.raises(Exception, match="not yet"):
        night(lake, TUESDAY)
    lake.write_model()
    assert scored(night(lake, TUESDAY)) == 0
    complete(lake, TUESDAY)


def test_rows_in_the_quarantine_are_taken_over_with_their_shard(lake: Lake) -> None:
    lake.write_model(DOUBLE.replace("    return", '    if 17 in batch["x"]:\n        raise ValueError(17)\n    return'))
    first = night(lake, MONDAY)
    second = night(lake, TUESDAY)
    assert scored(second) == 0 and second.scored.progress.counts == first.scored.progress.counts
    assert list(lake.quarantined(1, TUESDAY)["_row"]) == [17]


def test_a_row_that_was_taken_over_has_the_command_of_this_run(tmp_path: Path) -> None:
    """The earlier run may be deleted."""
    lake = Lake(tmp_path, LOCAL)
    lake.write_files()
    lake.write_model(DOUBLE.replace("    return", '    if 17 in batch["x"]:\n        raise ValueError(17)\n    return'))
    lake.write_job(reuse="shards")
    night(lake, MONDAY)
    night(lake, TUESDAY)
    shutil.rmtree(lake.out / "runs" / MONDAY)
    (line,) = RunReport(lake.request(date=TUESDAY), 1).incidents(10)
    assert line.replay.startswith(f"nightjar replay {lake.job_path} {TUESDAY} --shard "), line.replay


def test_a_limited_run_takes_over_what_it_would_score(lake: Lake) -> None:
    night(lake, MONDAY)
    ran = night(lake, TUESDAY, limit=10, run_id="few")
    assert [each.shards for each in ran.verdict.reused] == [1]
    assert len(list((lake.out / "runs" / "few" / "r1" / "data").iterdir())) == 1


def test_only_a_night_with_something_to_do_for_a_cluster_starts_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needed(*, there: bool = False, **options: Any) -> bool:
        request = lake.request(date=TUESDAY, **options)
        return needs_cluster(request, run.discover(request), there=there)

    assert needed(), "nothing is known before the first night"
    night(lake, MONDAY)
    assert not needed()
    assert needed(there=True) and needed(fresh=True)
    with monkeypatch.context() as large:
        large.setattr(auditing, "FEW_BYTES", 1000)
        assert needed()
    with monkeypatch.context() as many:
        many.setattr(resume, "FEW_SHARDS", 7)
        assert needed()
    lake.write_job(reuse="shards", rescore__share=0.5)
    assert needed()
    lake.write_job(reuse="shards")
    lake.write_file("part-09.parquet", 60_000, 3000)
    assert needed()
    night(lake, TUESDAY)
    assert not needed() and not needed(there=True), "nothing is left of a published night"


def test_a_damaged_file_of_an_earlier_night_fails_neither_plan_nor_night(lake: Lake) -> None:
    """It names what made results old; the night goes on without that."""
    night(lake, MONDAY)
    (lake.revision(1, MONDAY) / "identity-000001.json").write_text("{")
    lake.write_model(DOUBLE + "\n# changed\n")
    request = lake.request(date=TUESDAY)
    assert run.plan(request, run.discover(request)).left == 8
    assert scored(night(lake, TUESDAY)) == 8


def test_what_is_saved_costs_what_its_workers_cost(tmp_path: Path) -> None:
    lake = Lake(tmp_path, LOCAL).ready(reuse="shards", cost={"cpu_hour": 3600, "currency": "EUR"})
    night(lake, MONDAY)
    (reused,) = night(lake, TUESDAY).verdict.reused
    assert reused.saved == pytest.approx(reused.saved_s, abs=1e-3) and reused.saved > 0


def test_nights_with_an_output_each_cannot_reuse(lake: Lake) -> None:
    lake.write_job(reuse="shards", output__uri="out/{date}/")
    with pytest.raises(JobError, match=r"reuse: .*output\.uri has a \{date\}"):
        load_job(lake.job_path)
