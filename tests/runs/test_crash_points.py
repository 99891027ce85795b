"""Promises 2 and 3: a run killed at any instant continues; readers see all of a revision or nothing of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from faults import fail, pause
from nightjar.inference.errors import GateFailed, JobError, StorageError, TakenBack
from nightjar.inference.output import visibility
from nightjar.inference.storage.lake import LakeStorage
from publishing import roll_back
from support import Lake, run_steps
from writers import (
    BEFORE_INTENT,
    BEFORE_MANIFEST,
    BEFORE_PLAN,
    BEFORE_PUBLISHED,
    BEFORE_RECEIPTS,
    BEFORE_SNAPSHOT,
    BEFORE_SUCCESS,
    BEFORE_SWEEP,
    SHORT_S,
    OnDriver,
    Point,
    assert_published_once,
    die_at,
    metrics_of,
    publications_of,
    published_parts,
    run_steps_with,
)

HALVES = '''
def score(batch):
    """Half of x: every score that was twice x is another."""
    return {"score": batch["x"] / 2}
'''


@pytest.mark.parametrize(
    "point",
    [
        BEFORE_PLAN,
        BEFORE_RECEIPTS,
        BEFORE_MANIFEST,
        BEFORE_INTENT,
        BEFORE_SNAPSHOT,
        BEFORE_PUBLISHED,
        BEFORE_SUCCESS,
    ],
    ids=str,
)
def test_a_run_killed_there_continues_to_the_same_publication(
    shared: Lake, rows: pd.DataFrame, tmp_path: Path, point: Point
) -> None:
    """SIGKILL at that instant, then the command again, at once: same rows and metrics, one publication, once."""
    run_id = f"killed-{point}"
    die_at(shared.request(run_id=run_id), point, tmp_path)
    published = bool(publications_of(shared, run_id))
    assert published == (point in (BEFORE_PUBLISHED, BEFORE_SUCCESS))
    again = shared.run(run_id=run_id)
    assert_published_once(shared, run_id, rows)
    assert metrics_of(shared, run_id) == metrics_of(shared, "undisturbed")
    assert again.scored.progress.reused_shards == (0 if point in (BEFORE_PLAN, BEFORE_RECEIPTS) else 8)
    assert again.publication.number


@pytest.mark.parametrize("point", [BEFORE_PLAN, BEFORE_RECEIPTS], ids=str)
def test_a_new_revision_killed_while_it_begins_still_takes_over_what_did_not_change(
    lake: Lake, tmp_path: Path, point: Point
) -> None:
    """Killed before its plan, or between copies and receipts: continued, it scores only the changed file."""
    lake.ready().run()
    lake.write_file("part-03.parquet", 6000, 2000, row_group=500)
    die_at(lake.request(), point, tmp_path)
    again = lake.run()
    assert (again.scored.revision, again.scored.progress.reused_shards) == (2, 6)
    assert lake.published()["id"].tolist() == list(range(8000))
    assert {path.name for path in lake.revision(2).joinpath("data").iterdir()} == {
        name.rsplit("/", 1)[-1] for name in published_parts(lake, "2026-11-19")
    }


def test_what_one_attempt_did_not_want_is_kept_for_the_next(lake: Lake, tmp_path: Path) -> None:
    """Parts are swept once the revision is published: a file that was away for an attempt costs nothing.

    It goes with its folder: a file that is moved itself has a new change time, and counts as another.
    """
    lake.ready()
    late = lake.folder / "data" / "late"
    late.mkdir()
    (lake.folder / "data" / "part-03.parquet").rename(late / "part-03.parquet")
    die_at(lake.request(), BEFORE_MANIFEST, tmp_path)
    away = late.rename(tmp_path / "away")
    die_at(lake.request(), BEFORE_INTENT, tmp_path)
    away.rename(late)
    assert lake.run().scored.progress.reused_shards == 8
    assert sorted(lake.published()["id"]) == list(range(8000))


@pytest.mark.parametrize("point", [BEFORE_PUBLISHED, BEFORE_SWEEP, BEFORE_SUCCESS], ids=str)
def test_what_fails_after_the_publication_does_not_deny_it(lake: Lake, point: Point) -> None:
    """Readers see it: the run says so, and what was left to do; the next one does it."""
    error = StorageError("the storage is away")
    away = OnDriver(LakeStorage(), [fail(point.operation, point.pattern, point.nth, error)])
    ran = run_steps_with(lake.ready().request(), {"publish": away})
    assert (ran.publication.number, ran.publication.unfinished) == (1, "the storage is away")
    assert lake.published()["id"].tolist() == list(range(8000))
    assert not lake.revision().joinpath("_SUCCESS").exists()
    latest = lake.out / "latest"
    assert json.loads((latest / "files.json").read_text())["data"] is None, "nobody has swept the folder"
    assert not (latest / "data").exists()
    again = run_steps(replace(lake.request(), lease_s=SHORT_S))
    assert (again.publication.number, again.publication.unfinished, again.scored.finished) == (1, "", True)
    assert lake.revision().joinpath("_SUCCESS").exists()
    assert (latest / "data").resolve() == lake.revision() / "data"


def test_a_publication_that_the_ledger_cannot_be_told_of_is_one_all_the_same(lake: Lake) -> None:
    """Also for the next command, if the storage does not let it write that either."""
    error = StorageError("the storage is away")
    point = BEFORE_PUBLISHED
    away = OnDriver(LakeStorage(), [fail(point.operation, point.pattern, point.nth, error)])
    run_steps_with(lake.ready().request(), {"publish": away})
    still = OnDriver(LakeStorage(), [fail("create", "*/ledger/*", 2, error)])
    again = run_steps_with(replace(lake.request(), lease_s=SHORT_S), {"score": still})
    assert (again.publication.number, again.scored.finished) == (1, True)
    assert lake.published()["id"].tolist() == list(range(8000))


def test_what_leads_readers_there_fails_no_published_run(lake: Lake) -> None:
    """It is a note; the next command writes it, of whatever night it is."""
    away = OnDriver(LakeStorage(), [fail("write", "*/latest/*", None, StorageError("the storage is away"))])
    ran = run_steps_with(lake.ready().request(), {"publish": away})
    assert ran.publication.number == 1
    assert ran.publication.behind == (
        "latest/ and dates/ could not be written, the next command does it: the storage is away"
    )
    assert lake.run(date="2026-11-18").publication.behind == ""
    listed = json.loads((lake.out / "latest" / "files.json").read_text())
    parts = published_parts(lake, "2026-11-19")
    assert [Path(file["uri"]) for file in listed["files"]] == [lake.revision() / name for name in parts]
    assert (listed["publication"], listed["rows"]) == (2, 8000)


def test_what_fails_before_the_publication_fails_the_run(lake: Lake) -> None:
    away = OnDriver(LakeStorage(), [fail("create", "*/publications/*", None, StorageError("the storage is away"))])
    with pytest.raises(StorageError, match="the storage is away"):
        run_steps_with(lake.ready().request(), {"publish": away})
    assert lake.snapshot().number == 0
    assert lake.run().publication.number == 1


def test_a_run_that_is_done_says_which_publication_was_its_own(lake: Lake) -> None:
    """Not the newest one: that is another night's, and may not be taken back for it."""
    lake.ready().run()
    lake.run(date="2026-11-20")
    assert lake.run().publication.number == 1


def test_a_failing_gate_leaves_the_last_publication_as_it_was(lake: Lake) -> None:
    """The new revision is complete and wrong: nothing of it is seen, nothing of the old one is touched."""
    lake.ready(checks=[{"column": "score", "max": 15998.0, "min": 0.0}]).run()
    before, files = lake.published(), _content(lake.revision(1))
    lake.write_model(HALVES)
    lake.write_job(checks=[{"column": "score", "max": 1.0}])
    with pytest.raises(GateFailed, match="score") as failed:
        lake.run()
    place = failed.value.gates[-1].where[0]
    assert (place.file, place.row, place.value) == (f"{lake.folder}/data/part-00.parquet", 3, "1.5")
    assert place.replay == f"nightjar replay {lake.job_path} 2026-11-19 --shard {place.shard} --row 3"
    assert lake.revision(2).exists()
    assert lake.snapshot().number == 1
    pd.testing.assert_frame_equal(lake.published(), before)
    lake.write_job()
    assert lake.run().publication.number == 2
    assert lake.published()["score"].tolist() == [i / 2 for i in range(8000)]
    assert _content(lake.revision(1)) == files


def test_readers_see_nothing_of_a_revision_before_its_publication(lake: Lake) -> None:
    """Asked before every single thing that a run creates, a reader finds what was published before, whole."""
    lake.ready()
    seen: list[tuple[str, float | None]] = []

    def read(uri: str) -> None:
        try:
            files = lake.published()
        except JobError:
            seen.append((uri, None))
        else:
            assert len(files) == 8000
            seen.append((uri, files["score"].iloc[-1] / 7999))

    def watched() -> OnDriver:
        return OnDriver(LakeStorage(), [pause("create", "*/out/*", None, before=read)])

    for expected, source in ((None, None), (2.0, HALVES)):
        if source:
            lake.write_model(source)
        seen.clear()
        run_steps_with(lake.request(), dict.fromkeys(("score", "validate", "publish"), watched()))
        names = [uri for uri, _ in seen]
        at = next(i for i, uri in enumerate(names) if "/publications/" in uri)
        assert {factor for _, factor in seen[: at + 1]} == {expected}
        assert {factor for _, factor in seen[at + 1 :]} == {0.5 if source else 2.0}
        assert any("/manifest-" in uri for uri in names[:at])


def test_publishing_again_leaves_earlier_publications_readable(lake: Lake) -> None:
    """Revision 2 takes over what did not change; revision 1 is still there, byte for byte, and can be returned to."""
    lake.ready().run()
    before, files, parts = lake.published(), _content(lake.revision(1)), published_parts(lake, "2026-11-19")
    lake.write_file("part-03.parquet", 100_000, 2000)
    second = lake.run()
    assert (second.scored.revision, second.scored.progress.reused_shards) == (2, 6)
    assert 100_000 in lake.published()["id"].tolist()
    assert _content(lake.revision(1)) == files
    roll_back(LakeStorage(), str(lake.out), None)
    pd.testing.assert_frame_equal(lake.published(), before)
    assert published_parts(lake, "2026-11-19") == parts
    with pytest.raises(TakenBack, match=r"r2 .* rolled back or unpublished since"):
        lake.run()  # done, and rolled back from: running again does not undo that
    pd.testing.assert_frame_equal(lake.published(), before)


@pytest.mark.parametrize("how", ["rolled back", "unpublished", "limited"])
def test_what_was_taken_back_does_not_come_again_with_a_file_that_is_late(lake: Lake, how: str) -> None:
    """All but the late file would be the results that a person took back; with another model none of them is."""
    lake.ready().run(date="2026-11-18")
    lake.run()
    if how == "rolled back":
        roll_back(LakeStorage(), str(lake.out), None)
    else:
        visibility.unpublish(LakeStorage(), str(lake.out), "2026-11-19")
    if how == "limited":
        lake.run(run_id="2026-11-19", limit=1000)
    else:
        lake.write_file("part-04.parquet", 8000, 2000)
    with pytest.raises(TakenBack, match=r"^r1 of the run '2026-11-19' was published before and rolled back or unpub"):
        lake.run()
    assert set(lake.snapshot().runs) == {"2026-11-18"}
    lake.write_model(HALVES)
    again = lake.run()
    assert (again.scored.revision, again.scored.progress.reused_shards) == (2, 0)
    assert lake.published()["score"].max() == (7999 if how == "limited" else 9999) / 2


def test_a_fresh_run_that_was_killed_before_its_plan_is_continued_afresh(lake: Lake, tmp_path: Path) -> None:
    """Whoever is told to repeat the command need not know that it had --fresh."""
    lake.ready().run()
    die_at(lake.request(fresh=True), BEFORE_PLAN, tmp_path)
    again = lake.run()
    assert (again.scored.revision, again.scored.progress.reused_shards) == (2, 0)


def _content(folder: Path) -> dict[str, bytes]:
    """Every file of a closed revision."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
