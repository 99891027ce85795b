"""What a lake may hold: published right, or refused in one sentence that names file and cause."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, NightjarError, QuarantineFull, ShardsFailed
from nightjar.inference.history.run_tables import RunReport
from nightjar.inference.input import schemas
from nightjar.inference.input.sources import parquet
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from s3 import S3Server
from support import Lake, data_files

PARTS = 6
"""Files of 1000 rows in `ordinary`."""


def ordinary(lake: Lake) -> Path:
    """A lake of good files, whose first rows come after those of `odd.parquet` files a test may add."""
    for index in range(PARTS):
        lake.write_file(f"part-{index}.parquet", index * 1000, 1000)
    lake.write_model()
    lake.write_job()
    return lake.folder / "data"


def of(rows: range) -> pa.Table:
    """The columns of a `Lake` for these ids."""
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "x": pa.array(rows, pa.float32()),
            "name": pa.array([f"row {i}" for i in rows], pa.string()),
        }
    )


def causes(lake: Lake) -> dict[str, tuple[str, str]]:
    """File name → cause and message of its last failed attempt, without the path."""
    found = {}
    for record in lake.records():
        if record["t"] == "failed":
            folder, _, name = record["uri"].rpartition("/")
            found[name] = (record["cause"], record["message"].replace(f"{folder}/", ""))
    return found


# ---- odd, and right -----------------------------------------------------------------------------------------


def test_files_that_are_odd_but_whole_are_published(lake: Lake) -> None:
    """None, one and many rows; more columns, other orders, other words on nulls; folders and names of any kind."""
    data = ordinary(lake)
    one, more, order, none, nulls = (of(range(10000 + i * 10, 10001 + i * 10 + (i > 0))) for i in range(5))
    names = {
        "0-first.parquet": more.append_column("extra", pa.array([1, 2])).select(["extra", "name", "x", "id"]),
        "1-one.parquet": one,
        "2-order.parquet": order.select(["name", "id", "x"]),
        "3-none.parquet": none.slice(0, 0),
        "4-none-guessed.parquet": pa.table({"id": pa.nulls(0), "x": pa.nulls(0), "name": pa.nulls(0)}),
        "5-nulls.parquet": nulls.cast(pa.schema([field.with_nullable(False) for field in nulls.schema])),
        "dt=2026-01-01/region=eu west/%20 #1?&.parquet": of(range(20000, 20003)),
        "dt=2026-01-02/'quoted' \"twice\"/größe 東京 🐦.parquet": of(range(20010, 20013)),
        "semi;colon/back\\slash/star*[1]{date}.pq": of(range(20020, 20023)),
    }
    for name, table in names.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, data / name)
    ran = lake.run()
    assert (ran.scored.progress.failed_attempts, ran.scored.progress.counts.rows_quarantined) == (0, 0)
    found = lake.published()
    wanted = [(name, i) for name, table in names.items() for i in table["id"].to_pylist()]
    wanted += [(f"part-{i // 1000}.parquet", i) for i in range(PARTS * 1000)]
    files = found["_file"].str.removeprefix(f"{data}/")
    assert sorted(zip(files, found["id"], strict=True)) == sorted(wanted)
    assert (found["score"] == found["id"] * 2).all()
    assert (found["name"] == "row " + found["id"].astype(str)).all()
    assert found.columns.tolist() == ["id", "name", "score", "_file", "_row"]


def test_names_on_object_storage_are_taken_as_they_are(lake: Lake, server: S3Server) -> None:
    """Input and output, read and written, listed and named in lineage: nothing is decoded or encoded on the way."""
    bucket = server.create_bucket("inputs")
    storage = LakeStorage(StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key))
    lake.write_model()
    lake.write_job(input__uri=f"{bucket}/in %20=#/", output__uri=f"{bucket}/out ü=%/'#1?'")
    names = [
        "dt=2026-01-01/a b.parquet",
        "%20/%2F%zz.parquet",
        "hash#1?x=y&z.parquet",
        "'quoted' \"twice\".parquet",
        "größe 東京 🐦.parquet",
        "plus+at@:;,$!(x)*[1]{date}~^`|.parquet",
    ]
    for index, name in enumerate(names):
        sink = pa.BufferOutputStream()
        pq.write_table(of(range(index * 10, index * 10 + 3)), sink)
        storage.write(f"{bucket}/in %20=#/{name}", sink.getvalue())
    lake.run(storage=storage)
    uris = list(data_files(storage, lake.request(storage=storage).output, None))
    assert all(uri.startswith(f"{bucket}/out ü=%/'#1?'/runs/2026-11-19/r1/data/") for uri in uris)
    found = pd.concat([pq.read_table(storage.open(uri)).to_pandas() for uri in uris])
    wanted = [(f"{bucket}/in %20=#/{name}", i * 10 + j) for i, name in enumerate(names) for j in range(3)]
    assert sorted(zip(found["_file"], found["id"], strict=True)) == sorted(wanted)


@pytest.mark.parametrize("end", ["", "/"])
def test_a_whole_bucket_is_input_and_output(lake: Lake, server: S3Server, end: str) -> None:
    into, out = (server.create_bucket(f"{name}-{len(end)}") for name in ("whole-input", "whole-output"))
    storage = LakeStorage(StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key))
    lake.write_model()
    lake.write_job(input__uri=into + end, output__uri=out + end)
    sink = pa.BufferOutputStream()
    pq.write_table(of(range(3)), sink)
    storage.write(f"{into}/a.parquet", sink.getvalue())
    lake.run(storage=storage)
    (uri,) = data_files(storage, out, None)
    assert uri.startswith(f"{out}/runs/2026-11-19/r1/data/")
    assert pq.read_table(storage.open(uri))["id"].to_pylist() == [0, 1, 2]


# ---- files that are bad -------------------------------------------------------------------------------------


def without_column(path: Path) -> None:
    pq.write_table(of(range(5)).drop_columns(["name"]), path)


def retyped(path: Path) -> None:
    pq.write_table(of(range(5)).set_column(1, "x", pa.array(["1"] * 5)), path)


def twice(path: Path) -> None:
    table = of(range(5))
    pq.write_table(pa.Table.from_arrays([*table.columns, table["x"]], names=["id", "x", "name", "x"]), path)


def other_zone(path: Path) -> None:
    pq.write_table(of(range(5)).set_column(0, "id", pa.array([0] * 5, pa.timestamp("us", "UTC"))), path)


def csv(path: Path) -> None:
    path.write_text("id,x,name\n1,1.0,row 1\n")


def zero_bytes(path: Path) -> None:
    path.write_bytes(b"")


BAD: list[tuple[Callable[[Path], None], str, str]] = [
    (without_column, "SchemaMismatch", "column 'name' is missing"),
    (retyped, "SchemaMismatch", "column 'x' is string, in most of the input it is float32"),
    (twice, "SchemaMismatch", "column 'x' is there twice"),
    (other_zone, "SchemaMismatch", "column 'id' is timestamp[us, UTC], in most of the input it is int64"),
    (csv, "InputCorrupt", "not a readable Parquet file: "),
    (zero_bytes, "InputCorrupt", "not a readable Parquet file: "),
]


@pytest.mark.parametrize("uri", ["data/", "data/*", "data"])
def test_what_a_folder_holds_is_read_as_the_files_names_tell_and_with_the_jobs_options(lake: Lake, uri: str) -> None:
    """The folder's own name tells no format."""
    (lake.folder / "data").mkdir()
    for name in "ab":
        (lake.folder / f"data/{name}.csv").write_text(f"id;x\n1;1,5\n2;{'3,25' if name == 'a' else '4,75'}\n")
    lake.write_job(input__uri=uri, input__options={"delimiter": ";", "decimal": ","}, carry=["id"])
    lake.write_model("def score(batch):\n    return {'score': batch['x'] * 2}\n")
    lake.run(engine=LOCAL)
    assert sorted(lake.published()["score"]) == [3, 3, 6.5, 9.5]


def test_bad_files_cost_themselves_even_the_first_ones(lake: Lake) -> None:
    """They come before all others, so the columns of the lake are not theirs: each is named with what is wrong with
    it, every other row is committed, and readers see nothing."""
    data = ordinary(lake)
    for make, _, _ in BAD:
        make(data / f"0-{make.__name__}.parquet")
    with pytest.raises(ShardsFailed, match=rf"{len(BAD)} of {len(BAD) + PARTS} shards have no result; the first is 0-"):
        lake.run()
    found = causes(lake)
    for make, cause, message in BAD:
        name = f"0-{make.__name__}.parquet"
        assert found[name][0] == cause
        assert found[name][1].startswith(f"{name}: {message}")
    assert sum(record["rows_out"] for record in lake.records() if record["t"] == "receipt") == PARTS * 1000
    assert lake.snapshot().runs == {}


ALL_BUT_ONE = """
def score(batch):
    if 3217 in batch["x"]:
        raise ValueError("not this row")
    return {"score": batch["x"] * 2}
"""


def test_one_large_row_group_is_several_shards_and_is_decoded_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pyarrow writes a file by default. Each row has its own index, in what is published and in the quarantine."""
    lake.write_file("one.parquet", 0, 4500, row_group=4500)
    lake.write_model(ALL_BUT_ONE)
    lake.write_job(input__shard_rows=1000, retry__max_quarantined=0.01)
    read, decoded = parquet._read_groups, []

    def counted(file: pq.ParquetFile, groups: list[int], columns: list[str]) -> pa.Table:
        decoded.append(groups)
        return read(file, groups, columns)

    monkeypatch.setattr(parquet, "_read_groups", counted)
    list(ShardWorker(lake.worker_spec()).process(map(Assignment, lake.planned().shards())))
    assert decoded == [[0]]
    lake.run()
    assert [record["rows_in"] for record in lake.records() if record["t"] == "receipt"] == [900] * 5
    published = lake.published()
    assert published["_row"].tolist() == published["id"].tolist() == [row for row in range(4500) if row != 3217]
    assert lake.quarantined()["_row"].tolist() == [3217]


def test_a_row_group_that_is_kept_is_no_other_file_s_and_no_other_version_s(lake: Lake) -> None:
    """What is read of the second night's file is what is in it."""
    for first in (0, 10_000):
        lake.write_file("one.parquet", first, 3000, row_group=3000)
        lake.write_model()
        lake.write_job(input__shard_rows=1000)
        lake.run(fresh=True)
        assert lake.published()["id"].tolist() == list(range(first, first + 3000))


def test_a_column_that_most_files_lack_is_a_wrong_job(lake: Lake) -> None:
    """Refused before anything starts, whichever files have it."""
    data = ordinary(lake)
    pq.write_table(of(range(3)).append_column("late", pa.array([True] * 3)), data / "0-first.parquet")
    lake.write_job(carry=["id", "late"])
    with pytest.raises(JobError, match=r"^carry: 'late' is not a column of the input; it has id, x, name$"):
        lake.run()
    assert not lake.out.exists()


def test_how_a_writer_stored_a_column_is_no_other_type(lake: Lake) -> None:
    """DuckDB declares a column without nulls where a file has none, polars writes large texts, pandas categories."""
    data = ordinary(lake)
    declared = pa.schema([field.with_nullable(False) for field in of(range(0)).schema])
    for path in data.iterdir():
        pq.write_table(pq.read_table(path).cast(declared), path)
    kinds = (
        pa.string(),
        pa.large_string(),
        pa.dictionary(pa.int16(), pa.string()),
        pa.dictionary(pa.uint32(), pa.string()),
    )
    expected = {i: f"row {i}" for i in range(6000)}
    for index, kind in enumerate(kinds):
        first = 6000 + 3 * index
        names = pa.array(["a", None, f"b{index}"])
        expected |= zip(range(first, first + 3), names.to_pylist(), strict=True)
        pq.write_table(of(range(first, first + 3)).set_column(2, "name", names.cast(kind)), data / f"z-{index}.parquet")
    lake.write_job(carry=["id", "name"])
    lake.run()
    published = lake.published()
    names = [None if pd.isna(name) else name for name in published["name"]]
    assert dict(zip(published["id"], names, strict=True)) == expected
    assert published["score"].tolist() == [2 * i for i in range(len(expected))]
    parts = [pq.read_schema(path) for path in (lake.revision() / "data").iterdir()]
    assert {(part.field("id").nullable, part.field("name").type) for part in parts} == {(True, pa.string())}


@pytest.mark.parametrize("groups", [1, 3], ids=["small files in one shard", "and several row groups"])
def test_categories_may_be_more_than_one_file_needs(lake: Lake, groups: int) -> None:
    """pandas numbers a file's categories with eight bits where that suffices: together they are more."""
    (lake.folder / "data").mkdir()
    words = [[f"{file}-{word}" for word in range(100 + file * 20)] for file in range(3)]
    for file, own in enumerate(words):
        frame = pd.DataFrame({"id": range(len(own)), "x": np.ones(len(own), np.float32), "name": pd.Categorical(own)})
        rows = -(-len(own) // groups)
        frame.to_parquet(lake.folder / "data" / f"{file}.parquet", index=False, row_group_size=rows)
    lake.write_model()
    lake.write_job(carry=["name"], input__shard_rows=1000)
    assert lake.run().scored.progress.shards == 1
    assert lake.published()["name"].tolist() == [word for own in words for word in own]


def test_old_timestamps_of_spark_are_carried_exactly(lake: Lake) -> None:
    """As nanoseconds, which Arrow makes of INT96 if not told otherwise, the year 9999 would be 1816."""
    moments = [dt.datetime(2026, 1, 1, 1, 2, 3, 456789), dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1), None]
    path = lake.write_file("part-0.parquet", 0, 4)
    table = pq.read_table(path).append_column("valid_to", pa.array(moments, pa.timestamp("us")))
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    assert "int96" in str(pq.ParquetFile(path).metadata.schema)
    lake.write_model()
    lake.write_job(carry=["id", "valid_to"])
    lake.run()
    (part,) = (lake.revision() / "data").iterdir()
    assert pq.read_table(part)["valid_to"].to_pylist() == moments


# ---- values -------------------------------------------------------------------------------------------------

ROWS = 40


def nested(levels: int) -> pa.Array:
    """Lists of structs of lists …, so many levels deep, empty and null ones among them."""
    values: list[Any] = [None if i % 7 == 3 else 2**62 + i for i in range(ROWS)]
    kind: pa.DataType = pa.int64()
    for level in range(levels):
        if level % 2:
            values = [[] if i % 11 == level else [value, value] for i, value in enumerate(values)]
            kind = pa.list_(kind)
        else:
            values = [None if i % 13 == level else {"in": v, "word": f"w{i}"} for i, v in enumerate(values)]
            kind = pa.struct([("in", kind), ("word", pa.string())])
    return pa.array(values, kind)


def words(file: int, kind: pa.DataType) -> pa.Array:
    """Few words, others in each file and each row group."""
    return pa.array([f"{file}-{i // 7}-{i % 3}" for i in range(ROWS)]).cast(kind)


def exact(file: int) -> dict[str, pa.Array]:
    """Columns in which a step by way of a float, a text or the wrong dictionary shows."""
    n = range(ROWS)
    index8 = pa.dictionary(pa.int8(), pa.string())
    columns = {
        "int64": pa.array([2**53 + 1 + i if i % 2 else -(2**63) + i for i in n], pa.int64()),
        "uint64": pa.array([2**64 - 1 - i if i % 2 else 2**63 + i for i in n], pa.uint64()),
        "decimal32": pa.array([decimal.Decimal(i).scaleb(-2) for i in n], pa.decimal32(9, 2)),
        "decimal64": pa.array([decimal.Decimal(10**16 + i).scaleb(-2) for i in n], pa.decimal64(18, 2)),
        "decimal128": pa.array([decimal.Decimal(10**36 + i).scaleb(-9) for i in n], pa.decimal128(38, 9)),
        "decimal256": pa.array([decimal.Decimal(-(10**75) - i) for i in n], pa.decimal256(76, 0)),
        "dictionary": words(file, pa.dictionary(pa.int32(), pa.string())),
        "dictionary8": words(file, index8),
        "dictionary_of_numbers": pa.array([file * 2**54 + i % 3 for i in n], pa.int64()).dictionary_encode(),
        "dictionary_in_struct": pa.StructArray.from_arrays([words(file, index8)], ["word"]),
        "dictionary_in_list": pa.array(
            [[f"{file}{i % 4}", None] for i in n], pa.list_(pa.dictionary(pa.int32(), pa.string()))
        ),
        "nested": nested(10),
    }
    moment = dt.datetime(2026, 3, 29, 0, 59, 59, 999999, dt.UTC)  # Berlin's clocks go from 2 to 3 a second later
    for zone in ("UTC", "Europe/Berlin", "Asia/Kathmandu", "+05:30"):
        column = pa.array([moment + dt.timedelta(seconds=i) for i in n], pa.timestamp("us", zone))
        columns[f"at {zone}"] = column.cast(pa.timestamp("ns", zone))
    return columns


REFUSING = '''
def score(batch):
    """Twice x, but not for every tenth row."""
    if (batch["x"] % 10 == 7).any():
        raise ValueError("a seven")
    return {"score": batch["x"] * 2}
'''


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Two files of several row groups, scored as one shard: what went in, what was published, the quarantined rows."""
    lake = Lake(tmp_path_factory.mktemp("exact"), LOCAL)
    (lake.folder / "data").mkdir()
    paths = [lake.folder / "data" / f"{file}.parquet" for file in range(2)]
    for file, path in enumerate(paths):
        columns = {"id": pa.array(range(ROWS)), "x": pa.array(range(ROWS), pa.float32()), **exact(file)}
        pq.write_table(pa.table(columns), path, row_group_size=7)
    lake.write_model(REFUSING)
    lake.write_job(carry=["id", *exact(0)], input__shard_rows=1000, retry__max_quarantined=0.1)
    ran = lake.run()
    assert (ran.scored.progress.shards, ran.scored.progress.counts.rows_quarantined) == (1, 8)
    (data,) = (lake.revision() / "data").iterdir()
    (quarantine,) = (lake.revision() / "quarantine").iterdir()
    return pa.concat_tables(map(pq.read_table, paths)), pq.read_table(data), pq.read_table(quarantine)


@pytest.mark.parametrize("name", list(exact(0)))
def test_a_value_is_carried_exactly(carried: tuple[pa.Table, pa.Table, pa.Table], name: str) -> None:
    """Value by value with its type, in the output and in the quarantine; dictionaries' indices of 32 bits."""
    given, published, quarantine = carried
    kind = schemas.normalised(given.schema).field(name).type
    bad = [row for row in range(2 * ROWS) if row % ROWS % 10 == 7]
    good = [row for row in range(2 * ROWS) if row not in bad]
    assert published.schema.field(name).type == kind
    assert published[name].to_pylist() == [given[name][row].as_py() for row in good]
    lost = quarantine["input"].combine_chunks().field(name)
    assert lost.type == kind
    assert lost.to_pylist() == [given[name][row].as_py() for row in bad]


BIG_ROW = '''
def score(batch):
    """The length of the text; one text is too much for it."""
    for text in batch["text"]:
        if text.startswith("bad"):
            raise ValueError(text)
    return {"score": [len(text) for text in batch["text"]]}
'''

MB = 1 << 20


@pytest.mark.system
def test_a_row_of_50_megabytes_is_a_row(lake: Lake) -> None:
    """Scored and carried if it can be, quarantined whole if not; ledger, tables and messages stay small."""
    texts = ["a", "b" * (50 * MB), "bad" + "c" * (50 * MB), "d"]
    (lake.folder / "data").mkdir()
    pq.write_table(pa.table({"id": range(4), "text": texts}), lake.folder / "data" / "big.parquet")
    lake.write_model(BIG_ROW)
    lake.write_job(
        carry=["id", "text"], model__features=["text"], model__outputs={"score": "int64"}, retry__max_quarantined=0.25
    )
    lake.run()
    found = lake.published()
    assert found["text"].tolist() == [texts[0], texts[1], texts[3]]
    assert found["score"].tolist() == [1, 50 * MB, 1]
    lost = lake.quarantined().iloc[0]
    assert lost["input"]["text"] == texts[2]
    assert len(lost["message"]) <= 600
    # But for the record of the packages in use, which grows with them alone.
    assert all(len(str(record)) < 3000 for record in lake.records() if record["t"] != "packages")
    assert len(str(RunReport(lake.request(), 1).incidents(300))) < 3000


LONG_TEXTS = 2100
"""Of one megabyte each: more bytes than the 32-bit offsets of one Arrow array can address."""


def long_texts(lake: Lake, form: str) -> pa.Array:
    """One file with one row group of long texts, or of lists of one; returns the twenty different ones.

    Written from a dictionary, and read as plain text: the file is small, and so is the memory it takes to make it.
    """
    texts = pa.array([f"{i}:" + "abcdefgh" * (MB // 8) for i in range(20)])
    column: pa.Array = pa.DictionaryArray.from_arrays(pa.array([i % 20 for i in range(LONG_TEXTS)], pa.int32()), texts)
    if form == "in lists":
        column = pa.ListArray.from_arrays(pa.array(range(LONG_TEXTS + 1), pa.int32()), column)
    ids = range(LONG_TEXTS)
    table = pa.table({"id": pa.array(ids), "x": pa.array(ids, pa.float32()), "text": column})
    path = lake.folder / "data" / "long.parquet"
    path.parent.mkdir()
    pq.write_table(table, path, row_group_size=LONG_TEXTS, store_schema=False)
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == 1
    return texts


@pytest.mark.long
@pytest.mark.parametrize("form", ["plain", "in lists"])
def test_more_text_in_a_column_chunk_than_32_bits_address(lake: Lake, form: str) -> None:
    """Read, carried and written, one row of it quarantined, though no one array can hold it. Takes 6 GB of memory."""
    texts = long_texts(lake, form)
    lake.write_model(REFUSING.replace("% 10 == 7", "== 7"))
    lake.write_job(carry=["id", "text"], input={"uri": "data/", "shard_rows": LONG_TEXTS})  # else it would be cut
    lake.run()
    (part,) = (lake.revision() / "data").iterdir()
    ids = []
    for batch in pq.ParquetFile(part).iter_batches(100, columns=["id", "text"]):
        ids += batch["id"].to_pylist()
        column = batch["text"] if form == "plain" else batch["text"].flatten()
        assert column.equals(texts.take(pa.array([i % 20 for i in batch["id"].to_pylist()])))
    assert ids == [i for i in range(LONG_TEXTS) if i != 7]
    text = lake.quarantined().iloc[0]["input"]["text"]
    assert (text if form == "plain" else text[0]) == texts[7].as_py()


# ---- rows that are bad --------------------------------------------------------------------------------------

RAISES = '''
def score(batch):
    """Twice x, but not for these."""
    if set(batch["x"].tolist()) & {bad}:
        raise ValueError("not this one")
    return {{"score": batch["x"] * 2}}
'''


@pytest.mark.parametrize("spread", [True, False], ids=["in every shard", "in one shard"])
@pytest.mark.parametrize("bad", [6, 7])
def test_the_budget_of_bad_rows_is_exact(lake: Lake, bad: int, spread: bool) -> None:
    """0.001 of 6000 rows is 6: so many may be lost, wherever they lie, and the run is published; one more fails it."""
    ordinary(lake)
    rows = {i * 1000 % 6000 + 500 + i // 6 for i in range(bad)} if spread else {2500 + i for i in range(bad)}
    lake.write_model(RAISES.format(bad=rows))
    if bad > 6:
        sentence = (
            r"7 rows are quarantined, more than the 6 of 6000 that retry\.max_quarantined = 0\.001 allows"
            if spread
            else r"1 of 6 shards .* part-2\.parquet.* 7 rows failed where at most 6 may \(.*\); the first is row 500: "
        )
        with pytest.raises((QuarantineFull, ShardsFailed), match=sentence):
            lake.run()
        assert lake.snapshot().runs == {}
        return
    ran = lake.run()
    assert (ran.scored.progress.counts.rows_out, ran.scored.progress.counts.rows_quarantined) == (5994, 6)
    assert set(range(6000)) - set(lake.published()["id"]) == rows
    assert [gate.passed for gate in ran.verdict.gates] == [True, True]


@pytest.mark.parametrize("allowed", [0.001, 1.0])
def test_a_run_of_bad_rows_alone_fails(lake: Lake, allowed: float) -> None:
    """Even where every row may be lost: a model that scores none is no model. Nothing is published."""
    ordinary(lake)
    lake.write_model("def score(batch):\n    raise ValueError('none at all')\n")
    lake.write_job(retry__max_quarantined=allowed)
    with pytest.raises(NightjarError) as caught:
        lake.run()
    assert re.search(r"none of the first 32 rows of .*part-0\.parquet.*none at all", str(caught.value))
    assert lake.snapshot().runs == {}
    assert not list(lake.revision().glob("data/*"))
