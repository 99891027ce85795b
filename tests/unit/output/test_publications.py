"""Promise 2: a publication is one atomic act, whatever else is published, rolled back or killed meanwhile."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import faults
from faults import FaultyStorage
from nightjar.inference.errors import AlreadyExists, Damaged, Fenced, Held, JobError, StorageError, Transient
from nightjar.inference.input.plan import Plan
from nightjar.inference.ledger.epochs import LedgerWriter, open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.lines import Intent, Published, PublishedAs
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output import visibility
from nightjar.inference.output.nights import night_of, published_run
from nightjar.inference.output.owner import check_owner, claim_output
from nightjar.inference.output.parts import checksum
from nightjar.inference.output.publications import Origin, Snapshot
from nightjar.inference.records import Part, Piece, Receipt, shard_of
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.validation.manifest import read_manifest
from outputs import EMPTY_LIST, LISTS_NOTHING, PARTS, Output
from publishing import roll_back
from support import data_files

LONG_S = 3600.0
NIGHT = "2026-11-19"


@pytest.fixture
def output(tmp_path: Path) -> str:
    return str(tmp_path / "out")


def writer_of(output: str, run: str, storage: Storage | None = None, revision: int = 1) -> LedgerWriter:
    """The one who writes this revision now, whoever wrote it before."""
    uri = join(output, "runs", run, f"r{revision}")
    clock = itertools.count(step=2 * LONG_S).__next__
    return open_epoch(
        storage or LakeStorage(), uri, this_holder("publish"), lease_s=LONG_S, clock=clock, sleep=lambda _: None
    )


def entry(run: str, revision: int = 1) -> Published:
    sum_ = checksum(manifest(run, revision))
    return Published(revision, f"runs/{run}/r{revision}/manifest-000002.json", sum_, run[:10])


def manifest(run: str, revision: int = 1) -> bytes:
    return json.dumps({"run_id": run, "revision": revision, "shards": LISTS_NOTHING}).encode()


def published(output: str, *runs: str) -> None:
    """Publish these runs, one after the other."""
    for run in runs:
        writer = writer_of(output, run)
        LakeStorage().write(join(output, entry(run).manifest), manifest(run))
        LakeStorage().write(join(output, "runs", run, "r1", "shards-000001.parquet"), EMPTY_LIST)
        publish.publish(writer, output, run, entry(run))
        writer.stop(release=True)


def intend(output: str, run: str, number: int, revision: int = 1) -> None:
    """A writer said in the ledger what it would publish, and died."""
    writer = writer_of(output, run, revision=revision)
    writer.append([Intent(number, entry(run, revision))])
    writer.stop(release=False)


def now(output: str) -> Snapshot:
    return publish.newest(LakeStorage(), output)


def notes(output: str) -> list[str]:
    """Why each publication was made, in order; they have all numbers from 1."""
    return [publish.snapshot(LakeStorage(), output, n).note for n in range(1, now(output).number + 1)]


def test_before_anything_is_published_readers_find_nothing_and_are_told(output: str) -> None:
    assert now(output) == Snapshot(0)
    with pytest.raises(JobError, match=r"nothing is published in .*out yet"):
        published_run(now(output), output, None)


def test_each_publication_shows_all_runs_and_leaves_earlier_ones_as_they_were(output: str) -> None:
    """The newest counts; a reader that still holds an older one is not disturbed."""
    published(output, "2026-11-18")
    first = Path(output, "publications", "00000001.json").read_bytes()
    published(output, "2026-11-19")
    assert now(output).runs == {run: entry(run) for run in ("2026-11-18", "2026-11-19")}
    assert publish.snapshot(LakeStorage(), output, 1).runs == {"2026-11-18": entry("2026-11-18")}
    assert Path(output, "publications", "00000001.json").read_bytes() == first
    with pytest.raises(JobError, match=r"'2026-11-17' is not published in .*; published: 2026-11-18, 2026-11-19"):
        published_run(now(output), output, "2026-11-17")


def test_the_latest_night_is_the_highest_date_so_a_backfill_rewinds_nobody(output: str) -> None:
    """Order of publication does not matter. A run named by its date stands for it before others of that date."""
    published(output, "2026-11-19", "2026-11-17", "2026-11-18")
    assert now(output).latest() == "2026-11-19"
    assert published_run(now(output), output, None) == ("2026-11-19", entry("2026-11-19"))
    assert published_run(now(output), output, None, "2026-11-17") == (
        "2026-11-17",
        entry("2026-11-17"),
    )
    published(output, "2026-11-19-again", "2026-11-18-again")
    assert now(output).latest() == "2026-11-19"
    assert Snapshot(1).latest() is None


def test_a_number_taken_by_another_run_means_a_new_intent(output: str) -> None:
    """The other's publication is kept, and this one builds on it."""
    overtake = faults.pause("create", "*/publications/*", before=lambda _: published(output, "2026-11-18"))
    writer = writer_of(output, "2026-11-19", FaultyStorage(LakeStorage(), [overtake]))
    assert publish.publish(writer, output, "2026-11-19", entry("2026-11-19")) == 2
    assert notes(output) == ["run 2026-11-18 revision 1", "run 2026-11-19 revision 1"]
    assert set(now(output).runs) == {"2026-11-18", "2026-11-19"}
    assert writer.state.intent is not None
    assert writer.state.intent.number == 2
    writer.stop(release=True)


def test_runs_that_publish_at_once_are_all_seen(output: str) -> None:
    """Each gets a number of its own, and none is built on a state that lacks another."""
    runs = [f"2026-11-{day}" for day in range(10, 18)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda run: published(output, run), runs))
    assert now(output).number == 8
    assert set(now(output).runs) == set(runs)
    sizes = [len(publish.snapshot(LakeStorage(), output, n).runs) for n in range(1, 9)]
    assert sizes == list(range(1, 9))


def test_an_intent_left_by_a_crash_is_carried_out(output: str) -> None:
    """With its own manifest: readers may have been promised nothing else."""
    intend(output, "2026-11-19", 1)
    writer = writer_of(output, "2026-11-19")
    assert publish.publish(writer, output, "2026-11-19", entry("2026-11-19", 7)) == 1
    assert now(output).runs == {"2026-11-19": entry("2026-11-19")}
    writer.stop(release=True)


def test_a_number_that_shows_another_manifest_of_the_same_revision_was_not_taken_by_this_writer(output: str) -> None:
    """Who publishes is told by what is shown, too, not by the name of the run alone."""
    other = replace(entry(NIGHT), checksum="of another manifest")
    publish.add(LakeStorage(), output, 1, {NIGHT: other}, Origin("publish", NIGHT, 1))
    intend(output, NIGHT, 1)
    writer = writer_of(output, NIGHT)
    assert publish.publish(writer, output, NIGHT, entry(NIGHT)) == 2
    assert now(output).runs == {NIGHT: entry(NIGHT)}
    writer.stop(release=True)


def test_an_intent_whose_number_others_took_gets_another(output: str) -> None:
    intend(output, "2026-11-19", 1)
    published(output, "2026-11-17", "2026-11-18")
    published(output, "2026-11-19")
    assert [note.split()[1] for note in notes(output)] == ["2026-11-17", "2026-11-18", "2026-11-19"]


def test_an_intent_whose_number_was_pruned_since_gets_another(output: str) -> None:
    """The number is free again, but far below what readers see: a publication there would show nobody anything."""
    intend(output, "2026-11-17", 1)
    published(output, "2026-11-18", "2026-11-19")
    Path(output, "publications/00000001.json").unlink()
    published(output, "2026-11-17")
    assert publish.numbers(LakeStorage(), output) == [2, 3]
    assert set(now(output).runs) == {"2026-11-17", "2026-11-18", "2026-11-19"}


def test_a_publication_the_ledger_does_not_know_of_is_not_made_again(output: str) -> None:
    """Killed between the two; meanwhile others published and somebody rolled back. That stays so."""
    kill = faults.fail("create", "*/r1/ledger/00000003.jsonl", error=StorageError("killed here"))
    dying = writer_of(output, "2026-11-17", FaultyStorage(LakeStorage(), [kill]))
    with pytest.raises(StorageError, match="killed here"):
        publish.publish(dying, output, "2026-11-17", entry("2026-11-17"))
    dying.stop(release=False)
    published(output, "2026-11-18")
    roll_back(LakeStorage(), output, 0)
    heir = writer_of(output, "2026-11-17")
    assert publish.publish(heir, output, "2026-11-17", entry("2026-11-17")) == 1
    assert heir.state.published == PublishedAs(1)
    assert (now(output).number, now(output).runs) == (3, {})
    heir.stop(release=True)


@pytest.mark.parametrize(
    "error", [Transient("no answer"), AlreadyExists("sent twice")], ids=["no-answer", "sent-twice"]
)
def test_a_lost_answer_does_not_publish_twice(output: str, error: Exception) -> None:
    published(output, "2026-11-18")
    lossy = FaultyStorage(LakeStorage(), [faults.Fault("create", "*/publications/*", error=error)])
    writer = writer_of(output, "2026-11-19", lossy)
    assert publish.publish(writer, output, "2026-11-19", entry("2026-11-19")) == 2
    assert now(output).number == 2
    writer.stop(release=True)


def test_a_writer_replaced_between_intent_and_publication_adds_none(output: str) -> None:
    """Whoever replaced it carried out the intent; the sleeper finds that, and may not say that it did it."""

    def replaced(_: str) -> None:
        heir = writer_of(output, "2026-11-19")
        publish.publish(heir, output, "2026-11-19", entry("2026-11-19"))
        heir.stop(release=True)

    stalling = FaultyStorage(LakeStorage(), [faults.pause("create", "*/publications/*", before=replaced)])
    sleeper = writer_of(output, "2026-11-19", stalling)
    with pytest.raises(Fenced):
        publish.publish(sleeper, output, "2026-11-19", entry("2026-11-19"))
    assert notes(output) == ["run 2026-11-19 revision 1"]
    sleeper.stop(release=True)


def test_an_earlier_revision_is_never_published_over_a_later_one(output: str) -> None:
    """A writer of revision 1 that wakes up after revision 2 was published."""
    writer = writer_of(output, "2026-11-19", revision=2)
    publish.publish(writer, output, "2026-11-19", entry("2026-11-19", 2))
    writer.stop(release=True)
    late = writer_of(output, "2026-11-19", revision=1)
    with pytest.raises(Held, match="revision 2 of the run '2026-11-19' was published meanwhile"):
        publish.publish(late, output, "2026-11-19", entry("2026-11-19", 1))
    assert now(output).runs["2026-11-19"].revision == 2
    late.stop(release=True)


def test_rollback_shows_the_publication_before_and_each_repetition_goes_further_back(output: str) -> None:
    """Rolling back is a new publication: nothing is taken away, and it can be taken back."""
    published(output, "2026-11-17", "2026-11-18", "2026-11-19")
    first = roll_back(LakeStorage(), output, None)
    assert (first.number, first.note) == (4, "rollback to publication 2")
    assert set(now(output).runs) == {"2026-11-17", "2026-11-18"}
    second = roll_back(LakeStorage(), output, None)
    assert (second.number, second.note) == (5, "rollback to publication 1")
    assert set(now(output).runs) == {"2026-11-17"}
    with pytest.raises(JobError, match="no earlier publication to go back to"):
        roll_back(LakeStorage(), output, None)
    assert now(output) == second
    roll_back(LakeStorage(), output, 3)
    assert now(output).runs == publish.snapshot(LakeStorage(), output, 3).runs
    assert len(notes(output)) == 6


def test_rollback_to_a_number_shows_exactly_that_one(output: str) -> None:
    """Any number that exists, and 0 for nothing at all."""
    published(output, "2026-11-17", "2026-11-18")
    assert roll_back(LakeStorage(), output, 1).runs == {"2026-11-17": entry("2026-11-17")}
    assert roll_back(LakeStorage(), output, 0).runs == {}
    with pytest.raises(JobError, match="no earlier publication"):
        roll_back(LakeStorage(), output, None)
    for unknown in (99, -1):
        with pytest.raises(JobError, match=f"there is no publication {unknown}"):
            roll_back(LakeStorage(), output, unknown)
    assert now(output).number == 4


def test_what_is_published_after_a_rollback_builds_on_it(output: str) -> None:
    """The night rolled back stays away; rolling back again undoes the newest one alone."""
    published(output, "2026-11-17", "2026-11-18")
    roll_back(LakeStorage(), output, None)
    published(output, "2026-11-19")
    assert set(now(output).runs) == {"2026-11-17", "2026-11-19"}
    roll_back(LakeStorage(), output, None)
    assert set(now(output).runs) == {"2026-11-17"}


def test_a_rollback_never_undoes_what_appeared_while_it_was_made(output: str) -> None:
    """What the person saw is no longer the newest: it says so, and the new publication stands."""
    published(output, "2026-11-17", "2026-11-18")
    overtake = faults.pause("create", "*/publications/*", before=lambda _: published(output, "2026-11-19"))
    with pytest.raises(JobError, match=r"publication 3 \(run 2026-11-19 revision 1\) appeared .* repeat with --to 1"):
        roll_back(FaultyStorage(LakeStorage(), [overtake]), output, None)
    assert now(output).number == 3
    assert set(now(output).runs) == {"2026-11-17", "2026-11-18", "2026-11-19"}


def test_a_rollback_whose_answer_came_as_exists_is_found_done(output: str) -> None:
    published(output, "2026-11-17", "2026-11-18")
    exists = faults.Fault("create", "*/publications/*", error=AlreadyExists("sent twice"))
    back = roll_back(FaultyStorage(LakeStorage(), [exists]), output, None)
    assert (back.number, now(output)) == (3, back)


def test_an_output_belongs_to_one_job(output: str) -> None:
    claim_output(LakeStorage(), output, "delays")
    claim_output(LakeStorage(), output, "delays")
    with pytest.raises(JobError, match=r"output.uri: .* belongs to the job 'delays'"):
        claim_output(LakeStorage(), output, "arrivals")


def test_a_manifest_that_was_changed_is_not_what_was_published(output: str) -> None:
    """Readers check it against the snapshot."""
    published(output, "2026-11-19")
    place = Path(output, entry("2026-11-19").manifest)
    place.write_text("{}")
    with pytest.raises(JobError, match="not the file that was published; restore it"):
        read_manifest(LakeStorage(), output, now(output).runs["2026-11-19"])


def test_the_sweep_deletes_what_no_receipt_names_and_nothing_newer_or_foreign(output: str) -> None:
    """Of its own epoch and older. Only the first receipt of a shard names its parts."""
    uri = join(output, "runs", "x", "r1")
    shard = shard_of((Piece("/in/a.parquet", 9, "v", 0, 10, (0, 1)),), "fingerprint")
    writer_of(output, "x").stop(release=True)
    writer = writer_of(output, "x")

    def part(kind: str, epoch: int, nonce: str) -> Part:
        name = f"{kind}/{shard.id}-{epoch:06d}-{nonce}.parquet"
        LakeStorage().write(join(uri, name), b"rows")
        return Part(name, 10, 4, "sum")

    first = Receipt(
        shard.id,
        1,
        1,
        "w",
        part("data", 1, "a" * 8),
        part("quarantine", 1, "b" * 8),
        0,
        0,
        rows_in=10,
        rows_out=9,
        rows_quarantined=1,
    )
    second = Receipt(shard.id, 2, 2, "w", part("data", 2, "c" * 8), None, 0, 0, rows_in=10, rows_out=10)
    part("data", 1, "d" * 8)
    part("quarantine", 2, "e" * 8)
    newer = part("data", 3, "f" * 8)
    Path(uri, "data", "notes.txt").write_text("mine")
    writer.append([first, second])
    revs.sweep(writer, uri, Plan.of([shard]))
    left = sorted(str(path.relative_to(uri)) for kind in ("data", "quarantine") for path in Path(uri, kind).iterdir())
    assert first.data is not None
    assert first.quarantine is not None
    assert left == sorted([first.data.name, first.quarantine.name, newer.name, "data/notes.txt"])
    writer.stop(release=True)


def test_the_sweep_deletes_what_killed_writers_left_of_parts_and_nothing_newer(output: str) -> None:
    """Afterwards the folders hold exactly the published parts. A newer epoch's writer may be alive."""
    uri = join(output, "runs", "x", "r1")
    shard = shard_of((Piece("/in/a.parquet", 9, "v", 0, 10, (0, 1)),), "fingerprint")
    writer_of(output, "x").stop(release=True)
    writer = writer_of(output, "x")

    def begun(kind: str, epoch: int) -> Path:
        left = Path(uri, kind, f".nightjar-{shard.id}-{epoch:06d}-00c0ffee.parquet-{'0' * 32}.tmp")
        LakeStorage().write(str(left), b"half of the ro")
        return left

    newer = [begun("data", 3), begun("quarantine", 3)]
    for kind, epoch in (("data", 1), ("data", 2), ("quarantine", 1)):
        begun(kind, epoch)
    revs.sweep(writer, uri, Plan.of([shard]))
    assert sorted(path for kind in ("data", "quarantine") for path in Path(uri, kind).iterdir()) == newer
    writer.stop(release=True)


# ---- how a snapshot lies there, and what is said of it ------------------------------------------------------


def test_a_snapshot_is_json_that_a_person_can_read(output: str) -> None:
    before = dt.datetime.now(dt.UTC)
    published(output, "2026-11-19")
    text = Path(output, "publications", "00000001.json").read_text()
    content = json.loads(text)
    at = dt.datetime.fromisoformat(content.pop("at"))
    assert at.utcoffset() == dt.timedelta(0)
    assert abs(at - before) < dt.timedelta(minutes=1)
    assert at.microsecond % 1000 == 0
    assert content == {
        "number": 1,
        "runs": {
            "2026-11-19": {
                "revision": 1,
                "manifest": "runs/2026-11-19/r1/manifest-000002.json",
                "checksum": entry("2026-11-19").checksum,
                "date": "2026-11-19",
            }
        },
        "note": "run 2026-11-19 revision 1",
        "origin": {"act": "publish", "run": "2026-11-19", "revision": 1, "to": 0},
    }
    assert text.startswith('{\n "number": 1,\n'), "a line for each key"


@pytest.mark.parametrize(
    ("origin", "note"),
    [
        (Origin("publish", "night-7", 12), "run night-7 revision 12"),
        (Origin("rollback", to=41), "rollback to publication 41"),
        (Origin("unpublish", "night-7", 12), "unpublish night-7 revision 12"),
        (Origin("republish", "night-7", 12), "republish night-7 revision 12"),
    ],
)
def test_a_note_says_what_made_a_snapshot(output: str, origin: Origin, note: str) -> None:
    made = publish.add(LakeStorage(), output, 7, {}, origin)
    assert (made.number, made.note, made.origin) == (7, note, origin)
    assert publish.snapshot(LakeStorage(), output, 7) == made


@pytest.mark.parametrize("content", ["", '{"number": 2, ', "[]", "{}"])
def test_a_publication_that_cannot_be_read_is_named(output: str, content: str) -> None:
    """If nobody can restore it, its night is shown again after it was deleted."""
    published(output, "2026-11-17", "2026-11-18", "2026-11-19")
    damaged = Path(output, "publications", "00000003.json")
    damaged.write_text(content)
    with pytest.raises(Damaged, match=f"{damaged}: not a publication that .* restore it, or delete it: readers then"):
        now(output)
    with pytest.raises(Damaged, match="restore it"):
        roll_back(LakeStorage(), output, None)
    damaged.unlink()
    Path(output, "runs/2026-11-19/r1/_SUCCESS").write_text('{"publication": 3, "manifest": ""}')
    again = visibility.republish(LakeStorage(), output, "2026-11-19")
    assert (again.number, set(again.runs)) == (3, {"2026-11-17", "2026-11-18", "2026-11-19"})


def test_snapshots_are_counted_by_their_numbers_whatever_else_lies_there(output: str) -> None:
    for number in (2, 10, 100_000_000):
        publish.add(LakeStorage(), output, number, {}, Origin("rollback"))
    for name in ("notes.txt", "00000010 (copy).json", "00000011.json~", "notes.json"):
        Path(output, "publications", name).write_text("mine")
    assert publish.numbers(LakeStorage(), output) == [2, 10, 100_000_000]
    assert now(output).number == 100_000_000


def test_a_night_is_shown_by_the_run_that_is_named_by_it(output: str) -> None:
    """In the order of nights; of several others of a date the last by name."""
    runs = {
        "b": Published(1, "m", "c", "2026-11-19"),
        "2026-11-18": Published(1, "m", "c", "2026-11-18"),
        "z": Published(1, "m", "c", "2026-11-18"),
        "a": Published(1, "m", "c", "2026-11-19"),
        "2026-11-20": Published(1, "m", "c", "2026-11-17"),
    }
    nights = Snapshot(1, runs).nights()
    assert list(nights.items()) == [("2026-11-17", "2026-11-20"), ("2026-11-18", "2026-11-18"), ("2026-11-19", "b")]
    assert Snapshot(1, runs).latest() == "b"
    for date, run in nights.items():
        assert published_run(Snapshot(1, runs), output, None, date) == (run, runs[run])
    with pytest.raises(JobError, match="the run '2026-11-16' is not published"):
        published_run(Snapshot(1, runs), output, None, "2026-11-16")


def test_what_is_not_published_is_answered_with_what_is(output: str) -> None:
    """The last five of many, and how many more there are; nothing, once everything was taken away."""
    days = [f"2026-11-{day}" for day in (17, 11, 12, 13, 14, 15, 16)]
    now = Snapshot(1, {day: entry(day) for day in days})
    assert published_run(now, output, "2026-11-13") == ("2026-11-13", entry("2026-11-13"))
    assert published_run(now, output, None) == ("2026-11-17", entry("2026-11-17"))
    with pytest.raises(JobError) as refused:
        published_run(now, output, "x")
    last = ", ".join(sorted(days)[-5:])
    assert str(refused.value) == f"the run 'x' is not published in {output}; published: {last} and 2 more"
    with pytest.raises(JobError) as refused:
        published_run(Snapshot(0), output, "x")
    assert str(refused.value) == f"the run 'x' is not published in {output}; published: none"
    with pytest.raises(JobError) as refused:
        published_run(Snapshot(0), output, None)
    assert str(refused.value) == f"nothing is published in {output} yet; `nightjar run JOB` publishes"
    with pytest.raises(JobError) as refused:
        published_run(Snapshot(2), output, None)
    assert (
        str(refused.value) == f"nothing is published in {output} any more; `nightjar publications JOB` lists what was"
    )
    with pytest.raises(JobError) as refused:
        publish.snapshot(LakeStorage(), output, 3)
    assert str(refused.value) == f"there is no publication 3 in {output}; `nightjar publications JOB` lists them"


def test_what_readers_see_of_a_run_is_its_newest_revision(output: str) -> None:
    assert publish.shown(LakeStorage(), output, "2026-11-19") is None
    published(output, "2026-11-18", "2026-11-19")
    assert publish.shown(LakeStorage(), output, "2026-11-18") == entry("2026-11-18")
    assert publish.shown(LakeStorage(), output, "x") is None


def test_the_same_revision_may_be_published_again_and_an_earlier_one_is_told_why_not(output: str) -> None:
    writer = writer_of(output, "2026-11-19", revision=2)
    assert publish.publish(writer, output, "2026-11-19", entry("2026-11-19", 2)) == 1
    writer.stop(release=True)
    again = writer_of(output, "2026-11-19", revision=2)
    again.append([Intent(2, entry("2026-11-19", 2))])
    assert publish.publish(again, output, "2026-11-19", entry("2026-11-19", 2)) == 2
    again.stop(release=True)
    late = writer_of(output, "2026-11-19", revision=1)
    with pytest.raises(Held) as held:
        publish.publish(late, output, "2026-11-19", entry("2026-11-19", 1))
    assert str(held.value) == ("revision 2 of the run '2026-11-19' was published meanwhile; this one stays unseen")
    late.stop(release=True)


def test_a_run_that_others_overtake_every_time_gives_up_and_says_so(output: str) -> None:
    """It tried a hundred numbers, each of which another run took first."""

    def overtake(uri: str) -> None:
        number = int(Path(uri).stem)
        publish.add(LakeStorage(), output, number, {}, Origin("rollback", to=0))

    always = faults.pause("create", "*/publications/*", None, before=overtake)
    writer = writer_of(output, "2026-11-19", FaultyStorage(LakeStorage(), [always]))
    with pytest.raises(JobError) as refused:
        publish.publish(writer, output, "2026-11-19", entry("2026-11-19"))
    assert str(refused.value) == f"publications in {output} are created faster than this run can publish; try again"
    assert now(output).number == 99, "the first turn only says what it will try"
    writer.stop(release=True)


def test_an_output_without_an_owner_is_free_and_one_of_another_job_is_not(output: str) -> None:
    storage, place = LakeStorage(), Path(output, "job.json")
    check_owner(storage, output, "delays")
    assert not place.exists(), "looking changes nothing"
    claim_output(storage, output, "delays")
    content = json.loads(place.read_text())
    assert dt.datetime.fromisoformat(content.pop("since")).utcoffset() == dt.timedelta(0)
    assert content == {"job": "delays"}
    check_owner(storage, output, "delays")
    with pytest.raises(JobError) as refused:
        check_owner(storage, output, "arrivals")
    assert str(refused.value) == (
        f"output.uri: {output} belongs to the job 'delays'; give 'arrivals' a place of its own"
    )
    for foreign in ("[]", "7", "{}", "no JSON"):
        place.write_text(foreign)
        for ask in (claim_output, check_owner):
            with pytest.raises(JobError) as refused:
                ask(storage, output, "arrivals")
            assert str(refused.value) == (
                f"output.uri: {place} was not written by Nightjar; give 'arrivals' a place of its own"
            )


def test_the_files_of_a_publication_are_those_its_snapshot_vouches_for(tmp_path: Path) -> None:
    """Manifest and list of shards by their checksums, and each data file by name in that list."""
    made = Output(str(tmp_path))
    made.publish(NIGHT)
    made.publish("2026-11-20")
    folder = tmp_path / "runs" / NIGHT / "r1"
    names = [f"data/{index}-000001-00000001.parquet" for index in range(PARTS)]
    assert list(data_files(made.storage, made.uri, NIGHT)) == [f"{folder}/{name}" for name in names]
    assert all("2026-11-20" in file for file in data_files(made.storage, made.uri, None))
    entry = made.now().runs[NIGHT]
    found = night_of(made.storage, made.uri, 0, NIGHT, entry)
    assert found.parts["name"].to_pylist() == names
    manifest = folder / "manifest-000001.json"
    listed = folder / "shards-000001.parquet"
    listed.write_bytes(listed.read_bytes() + b"0")
    with pytest.raises(JobError) as refused:
        night_of(made.storage, made.uri, 0, NIGHT, entry)
    assert str(refused.value) == f"{listed}: not the file that was published; restore it"
    manifest.write_bytes(b"{}")
    with pytest.raises(JobError) as refused:
        night_of(made.storage, made.uri, 0, NIGHT, entry)
    assert str(refused.value) == f"{manifest}: not the file that was published; restore it"
    with pytest.raises(JobError) as refused:
        night_of(made.storage, made.uri, 0, NIGHT, replace(entry, checksum=checksum(b"{}")))
    assert str(refused.value) == f"{manifest}: names no list of shards; restore it"
