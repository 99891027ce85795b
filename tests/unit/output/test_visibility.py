"""What readers see is listed, and changed by a person: each change is a publication, and can be undone."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import faults
from faults import FaultyStorage
from nightjar.flows.cli.main import app
from nightjar.inference.errors import AlreadyExists, JobError, TakenBack
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.output import publications as publish
from nightjar.inference.output import visibility
from nightjar.inference.output.nights import published_run
from nightjar.inference.output.publications import Origin
from nightjar.inference.output.visibility import Change
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage, join
from outputs import FIRST_MANIFEST
from publishing import finished, roll_back
from support import Lake

NIGHTS = ("2026-11-17", "2026-11-18", "2026-11-19")


@pytest.fixture
def output(lake: Lake) -> str:
    """Three nights, published one after the other."""
    lake.write_model()
    lake.write_job()
    for night in NIGHTS:
        finished(str(lake.out), night)
    return str(lake.out)


def seen(output: str) -> dict[str, int]:
    return {run: entry.revision for run, entry in publish.newest(LakeStorage(), output).runs.items()}


def overtaken(output: str, run: str, revision: int = 1) -> Storage:
    """A storage on which that run is published just before the next snapshot is created."""
    return FaultyStorage(
        LakeStorage(), [faults.pause("create", "*/publications/*", before=lambda _: finished(output, run, revision))]
    )


def test_one_night_is_taken_away_and_shown_again_and_the_others_stay(output: str) -> None:
    """What was published after it, too: a rollback would hide that."""
    taken = visibility.unpublish(LakeStorage(), output, "2026-11-17")
    assert (taken.number, taken.origin) == (4, Origin("unpublish", "2026-11-17", 1))
    assert seen(output) == {"2026-11-18": 1, "2026-11-19": 1}
    with pytest.raises(JobError, match="the run '2026-11-17' is not published in"):
        visibility.unpublish(LakeStorage(), output, "2026-11-17")
    again = visibility.republish(LakeStorage(), output, "2026-11-17")
    assert (again.number, again.origin) == (5, Origin("republish", "2026-11-17", 1))
    assert seen(output) == dict.fromkeys(NIGHTS, 1)
    with pytest.raises(JobError, match="readers see r1 of the run '2026-11-17' already"):
        visibility.republish(LakeStorage(), output, "2026-11-17")


def test_a_night_with_a_name_of_its_own_is_found_by_its_date(
    lake: Lake, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is named by its date comes first."""
    for run, date in (("extra", "2026-11-10"), ("more", "2026-11-19")):
        finished(output, run, date=date)
    find = functools.partial(published_run, publish.newest(LakeStorage(), output), output)
    assert [find(None, date)[0] for date in ("2026-11-10", "2026-11-19")] == ["extra", "2026-11-19"]
    assert find("more", "2026-11-19")[0] == "more"
    with pytest.raises(JobError, match="the run '2026-11-11' is not published"):
        find(None, "2026-11-11")
    assert "Lost: extra r1." in said(capsys, "unpublish", lake.job_path, "--date", "2026-11-10")


def test_what_is_shown_again_is_the_newest_revision_that_was_published(output: str) -> None:
    """After a rollback readers may see an earlier one; a later one that was never published is nobody's to show."""
    finished(output, "2026-11-18", 2)
    roll_back(LakeStorage(), output, 3)
    open_epoch(LakeStorage(), join(output, "runs", "2026-11-18", "r3"), this_holder("score")).stop(release=True)
    assert seen(output)["2026-11-18"] == 1
    assert visibility.republish(LakeStorage(), output, "2026-11-18").runs["2026-11-18"].revision == 2
    with pytest.raises(JobError, match="no published revision of the run '2026-11-16' is in"):
        visibility.republish(LakeStorage(), output, "2026-11-16")


def test_what_was_published_and_not_tidied_up_is_shown_again(output: str) -> None:
    """The command was killed, or the storage failed, before it wrote `_SUCCESS`."""
    finished(output, "2026-11-18", 2)
    LakeStorage().delete([join(output, "runs", "2026-11-18", "r2", "_SUCCESS")])
    visibility.unpublish(LakeStorage(), output, "2026-11-18")
    assert visibility.republish(LakeStorage(), output, "2026-11-18").runs["2026-11-18"].revision == 2


def test_a_revision_that_appeared_meanwhile_stays_the_one_that_is_shown(output: str) -> None:
    visibility.unpublish(LakeStorage(), output, "2026-11-18")
    with pytest.raises(JobError, match="revision 2 of the run '2026-11-18' was published meanwhile, and nothing was"):
        visibility.republish(overtaken(output, "2026-11-18", 2), output, "2026-11-18")
    assert seen(output)["2026-11-18"] == 2


def test_a_rollback_goes_back_over_a_publication_that_was_deleted(output: str) -> None:
    """As the error of a damaged one says that a person may."""
    LakeStorage().delete([join(output, "publications", "00000002.json")])
    after = roll_back(LakeStorage(), output, None)
    assert (after.origin, seen(output)) == (Origin("rollback", to=1), {"2026-11-17": 1})


def test_a_night_whose_manifest_was_damaged_is_not_shown_again(output: str) -> None:
    entry = publish.newest(LakeStorage(), output).runs["2026-11-18"]
    visibility.unpublish(LakeStorage(), output, "2026-11-18")
    Path(output, entry.manifest).write_text("{}")
    with pytest.raises(JobError, match="not the file that was published; restore it"):
        visibility.republish(LakeStorage(), output, "2026-11-18")
    assert "2026-11-18" not in seen(output)


def test_a_night_whose_files_are_gone_or_changed_is_not_shown_again(lake: Lake) -> None:
    """Its manifest alone leads readers to nothing."""
    lake.ready()
    storage, output = LakeStorage(), str(lake.out)
    for night in NIGHTS:
        lake.run(engine="local", date=night)
        visibility.unpublish(storage, output, night)
    one, other, third = (lake.out / "runs" / night / "r1" for night in NIGHTS)
    shutil.rmtree(one / "data")
    (listed,) = other.glob("shards-*.parquet")
    listed.write_bytes(listed.read_bytes() + b"0")
    next(third.glob("shards-*.parquet")).unlink()
    wrong = ("cannot be shown again, because it was deleted", "not the file that was published; restore it", "deleted")
    for night, what in zip(NIGHTS, wrong, strict=True):
        with pytest.raises(JobError, match=what):
            visibility.republish(storage, output, night)
    assert not seen(output)


def test_a_night_that_is_taken_away_by_its_date_is_shown_again_by_its_date(output: str) -> None:
    """Whatever its run is called."""
    finished(output, "repaired", date="2026-11-10")
    visibility.unpublish(LakeStorage(), output, None, "2026-11-10")
    assert "repaired" not in seen(output)
    assert visibility.republish(LakeStorage(), output, None, "2026-11-10").origin == Origin("republish", "repaired", 1)
    finished(output, "another", date="2026-11-10")
    for taken in ("another", "repaired"):
        visibility.unpublish(LakeStorage(), output, taken)
        again = visibility.republish(LakeStorage(), output, None, "2026-11-10")
        assert again.origin == Origin("republish", taken, 1), "the other one of that date is seen all the time"
    with pytest.raises(JobError, match="readers see r1 of the run 'repaired' already"):
        visibility.republish(LakeStorage(), output, None, "2026-11-10")
    with pytest.raises(JobError, match="no published revision of the run '2026-11-11' is in"):
        visibility.republish(LakeStorage(), output, None, "2026-11-11")


def test_a_named_run_that_was_taken_back_is_shown_again_where_it_lies(lake: Lake) -> None:
    """Where each night has an output of its own, its name alone would be looked for in that of today."""
    lake.ready(output__uri="out/{date}/")
    night = {"run_id": "repair", "date": "2026-11-10"}
    lake.run(engine="local", **night)
    request = lake.request(**night)
    visibility.unpublish(request.storage, request.output, "repair")
    lake.write_file("part-09.parquet", 8000, 10)
    with pytest.raises(TakenBack, match="`nightjar republish JOB repair --date 2026-11-10` shows r1 again"):
        lake.run(engine="local", **night)


def test_a_rollback_leaves_out_what_was_deleted_if_readers_do_not_see_the_run(
    lake: Lake, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody loses a night by that; one that readers see in another revision would vanish, and is refused below."""
    visibility.unpublish(LakeStorage(), output, "2026-11-17")
    shutil.rmtree(Path(output, "runs/2026-11-17"))
    app(["rollback", str(lake.job_path)], standalone_mode=False)
    told = capsys.readouterr()
    assert seen(output) == {"2026-11-18": 1, "2026-11-19": 1}
    assert "Note: not shown, because their files were deleted: 2026-11-17 r1" in told.err
    assert "publication 5: rollback to publication 3. Readers now see 2 runs" in told.out


def test_a_rollback_leaves_out_a_run_that_was_deleted_and_scored_anew_under_the_same_number(
    output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is there, but is another one than that publication shows."""
    visibility.unpublish(LakeStorage(), output, "2026-11-17")
    shutil.rmtree(Path(output, "runs/2026-11-17"))
    monkeypatch.setitem(FIRST_MANIFEST, "fingerprint", "7d")
    finished(output, "2026-11-17")
    with pytest.raises(JobError, match="r1 of the run '2026-11-17' cannot be shown again, because it was deleted"):
        roll_back(LakeStorage(), output, 3)
    visibility.unpublish(LakeStorage(), output, "2026-11-17")
    assert roll_back(LakeStorage(), output, 3).runs.keys() == {"2026-11-18", "2026-11-19"}


def test_a_named_run_that_was_deleted_is_scored_anew_for_its_own_date(output: str) -> None:
    """Its folder may be gone, with what said its date."""
    for revision in (1, 2):
        finished(output, "repair", revision, date="2026-11-10")
    shutil.rmtree(Path(output, "runs/repair/r1"))
    with pytest.raises(JobError, match="`nightjar run JOB --run-id repair --date 2026-11-10 --fresh` scores it anew"):
        roll_back(LakeStorage(), output, None)


def test_no_publication_is_shown_again_that_has_a_deleted_revision(
    lake: Lake, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What readers see now stays; a rollback among revisions that are still there is made."""
    finished(output, "2026-11-18", 2)
    shutil.rmtree(Path(output, "runs/2026-11-18/r1"))
    for words in (["--dry-run"], [], ["--to", "2"]):
        with pytest.raises(JobError, match=r"r1 of the run '2026-11-18' cannot be shown again, because it was deleted"):
            said(capsys, "rollback", lake.job_path, *words)
    assert (seen(output)["2026-11-18"], publish.newest(LakeStorage(), output).number) == (2, 4)
    assert roll_back(LakeStorage(), output, 1).runs.keys() == {"2026-11-17"}
    shutil.rmtree(Path(output, "runs/2026-11-18/r2"))
    Path(output, "runs/2026-11-18/r2").mkdir()
    with pytest.raises(JobError, match="no published revision of the run '2026-11-18' is in"):
        visibility.republish(LakeStorage(), output, "2026-11-18")


def test_a_night_is_taken_away_from_whatever_was_published_meanwhile(output: str) -> None:
    after = visibility.unpublish(overtaken(output, "2026-11-20"), output, "2026-11-18")
    assert after.number == 5
    assert seen(output) == {"2026-11-17": 1, "2026-11-19": 1, "2026-11-20": 1}


def test_a_new_revision_that_appeared_meanwhile_is_not_taken_away(output: str) -> None:
    """The person has not seen it."""
    with pytest.raises(JobError, match="revision 2 of the run '2026-11-18' was published meanwhile, and nothing was"):
        visibility.unpublish(overtaken(output, "2026-11-18", 2), output, "2026-11-18")
    assert seen(output)["2026-11-18"] == 2


def test_a_change_whose_answer_came_as_exists_is_found_done(output: str) -> None:
    exists = faults.Fault("create", "*/publications/*", error=AlreadyExists("sent twice"))
    after = visibility.unpublish(FaultyStorage(LakeStorage(), [exists]), output, "2026-11-18")
    assert (after.number, publish.newest(LakeStorage(), output)) == (4, after)


def test_a_rollback_undoes_the_taking_away_of_a_night_too(output: str) -> None:
    visibility.unpublish(LakeStorage(), output, "2026-11-18")
    assert roll_back(LakeStorage(), output, None).origin == Origin("rollback", to=3)
    assert seen(output) == dict.fromkeys(NIGHTS, 1)


def test_publications_are_listed_with_what_each_changed(output: str) -> None:
    finished(output, "2026-11-18", 2)
    roll_back(LakeStorage(), output, 2)
    found = visibility.publications(LakeStorage(), output, 3)
    assert [(each.publication, each.changes) for each in found] == [
        (5, (Change("2026-11-18", 2, 1), Change("2026-11-19", 1, 0))),
        (4, (Change("2026-11-18", 1, 2),)),
        (3, (Change("2026-11-19", 0, 1),)),
    ]
    everything = visibility.publications(LakeStorage(), output, 100)
    assert [each.publication for each in everything] == [5, 4, 3, 2, 1]
    assert everything[-1].changes == (Change("2026-11-17", 0, 1),)


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """What `nightjar …` prints, in this process."""
    app([str(word) for word in words], standalone_mode=False)
    return capsys.readouterr().out


def test_a_rollback_says_what_readers_would_lose_before_it_does_so(
    lake: Lake, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --dry-run nothing changes; without, the same is said of what was done."""
    would = said(capsys, "rollback", lake.job_path, "--dry-run")
    assert would == (
        "publication 2 would be shown again. Readers would see 2 runs, the latest 2026-11-18 r1. Lost: 2026-11-19 r1.\n"
    )
    dry = json.loads(said(capsys, "rollback", lake.job_path, "--dry-run", "--to", "1", "--json"))
    assert (dry["publication"], dry["runs"]) == (1, {"2026-11-17": 1})
    assert [each["run_id"] for each in dry["changes"]] == ["2026-11-18", "2026-11-19"]
    assert publish.newest(LakeStorage(), output).number == 3, "nothing was changed"
    did = said(capsys, "rollback", lake.job_path)
    assert did == (
        "publication 4: rollback to publication 2. Readers now see 2 runs, the latest 2026-11-18 r1. "
        "Lost: 2026-11-19 r1.\n"
    )


def test_a_rollback_undoes_only_what_was_there_when_it_was_decided(
    lake: Lake, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A night that is published while the command looks at the revisions it would show is neither hidden nor named."""
    looked = visibility.back

    def slowly(*given: Any) -> Any:
        found = looked(*given)
        finished(output, "2026-11-20")
        return found

    monkeypatch.setattr(visibility, "back", slowly)
    with pytest.raises(JobError, match="appeared meanwhile and nothing was rolled back"):
        app(["rollback", str(lake.job_path)], standalone_mode=False)
    assert seen(output) == dict.fromkeys([*NIGHTS, "2026-11-20"], 1)


@pytest.mark.parametrize(
    "words",
    [
        ["rollback"],
        ["unpublish", "2026-11-18"],
        ["republish", "2026-11-18"],
        ["approve", "2026-11-18"],
        ["evaluate"],
        ["report", "2026-11-18"],
        ["tables"],
        ["backfill", "--from", "2026-11-18", "--to", "2026-11-18", "--engine", "local"],
    ],
    ids=str,
)
def test_a_job_of_another_name_changes_nothing_of_an_output(lake: Lake, output: str, words: list[str]) -> None:
    """As of a job file that was copied, with an output.uri that was forgotten."""
    LakeStorage().write(join(output, "job.json"), b'{"job": "churn"}')
    lake.write_job(
        output__uri=output, late_labels={"key": ["id"], "label": "y", "input": {"uri": "labels/"}}, carry=["id"]
    )
    with pytest.raises(JobError, match=r"^output\.uri: .* belongs to the job 'churn'; give 'lake' a place of its own"):
        app([words[0], str(lake.job_path), *words[1:]], standalone_mode=False)
    assert seen(output) == dict.fromkeys(NIGHTS, 1)


def test_files_of_another_jobs_output_are_listed_and_its_folders_for_readers_are_left_alone(
    lake: Lake, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They tell the name of the job."""
    LakeStorage().write(join(output, "job.json"), b'{"job": "lake"}')
    said(capsys, "files", lake.job_path)
    before = content(output)
    assert "latest/view.sql" in before
    lake.write_job(output__uri=output, name="copied")
    app(["files", str(lake.job_path), "--json"], standalone_mode=False)
    told = capsys.readouterr()
    assert json.loads(told.out)["run"] == NIGHTS[-1]
    assert "Note: latest/ and dates/ were left as they are: output.uri: " in told.err
    assert "belongs to the job 'lake'" in told.err
    assert content(output) == before


def content(output: str) -> dict[str, bytes]:
    """Every file of an output."""
    files = (path for path in Path(output).rglob("*") if path.is_file())
    return {str(path.relative_to(output)): path.read_bytes() for path in files}


def test_commands_list_take_away_and_show_again(lake: Lake, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The run by place or by option; what readers see now is marked."""
    gone = said(capsys, "unpublish", lake.job_path, "2026-11-18")
    assert gone == (
        "publication 4: unpublish 2026-11-18 revision 1. Readers now see 2 runs, the latest 2026-11-19 r1. "
        "Lost: 2026-11-18 r1.\n"
    )
    listed = json.loads(said(capsys, "publications", lake.job_path, "--lines", "2", "--json"))
    assert [(each["publication"], each["made_by"]["act"]) for each in listed] == [(4, "unpublish"), (3, "publish")]
    assert "4 (now)" in said(capsys, "publications", lake.job_path)
    back = json.loads(said(capsys, "republish", lake.job_path, "2026-11-18", "--json"))
    assert (back["publication"], back["runs"]) == (5, dict.fromkeys(NIGHTS, 1))
    assert back["changes"] == [{"run_id": "2026-11-18", "before": 0, "after": 1}]
    with pytest.raises(JobError, match="which run"):
        said(capsys, "unpublish", lake.job_path)
