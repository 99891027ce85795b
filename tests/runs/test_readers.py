"""DuckDB, pandas, polars and pyarrow read the published `data/` folder as it lies there, carried columns untouched."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazily import lazily
from nightjar.inference.engine import LOCAL
from nightjar.inference.input import schemas
from support import Lake

pl = lazily("polars")

ROWS = 300
BAD = range(100, 200)
"""Rows the model refuses: the whole second row group, so that one part has no row."""

BIG = 2**62 + 1
NOW = dt.datetime(2026, 11, 19, 2, 30, 0, 123456, tzinfo=dt.UTC)

REFUSING = """
def score(batch):
    if ((batch["x"] >= 100) & (batch["x"] < 200)).any():
        raise ValueError("not this one")
    return {"score": batch["x"] * 0.5, "label": ["even" if x % 2 == 0 else "odd" for x in batch["x"]],
            "vector": [[x, -x] for x in batch["x"]]}
"""


def holes(values: list[Any]) -> list[Any]:
    """Every seventh value is null."""
    return [None if index % 7 == 3 else value for index, value in enumerate(values)]


def carried() -> dict[str, pa.Array]:
    """Columns of the types a lake holds, nulls among them."""
    n = range(ROWS)
    words = [f"größe {i % 5}" for i in n]
    columns = {
        f"{sign}int{bits}": pa.array(holes([i % 100 for i in n]), getattr(pa, f"{sign}int{bits}")())
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    }
    return columns | {
        "big": pa.array([BIG + i for i in n], pa.int64()),
        "ubig": pa.array([2**64 - 1 - i for i in n], pa.uint64()),
        "flag": pa.array(holes([i % 2 == 0 for i in n])),
        "half": pa.array(np.arange(ROWS, dtype=np.float16)),
        "real": pa.array(holes([i / 3 for i in n]), pa.float32()),
        "double": pa.array([float("nan") if i % 5 == 0 else i / 3 for i in n], pa.float64()),
        "text": pa.array(holes(words)),
        "large_text": pa.array(holes(words), pa.large_string()),
        "category": pa.array(holes(words)).dictionary_encode(),
        "ordered": pa.DictionaryArray.from_arrays(
            pa.array([i % 3 for i in n], pa.int8()), pa.array(["low", "mid", "high"]), ordered=True
        ),
        "bytes": pa.array(holes([bytes([i % 256, 0, 255]) for i in n]), pa.binary()),
        "fixed_bytes": pa.array([i.to_bytes(4, "big") for i in n], pa.binary(4)),
        "day": pa.array(holes([dt.date(2026, 1, 1) + dt.timedelta(i) for i in n]), pa.date32()),
        "clock_ms": pa.array([dt.time(1, 2, i % 60) for i in n], pa.time32("ms")),
        "clock": pa.array(holes([dt.time(1, 2, i % 60, i) for i in n]), pa.time64("us")),
        "at_ms": pa.array([NOW + dt.timedelta(seconds=i) for i in n], pa.timestamp("ms", "UTC")),
        "at": pa.array(holes([NOW + dt.timedelta(seconds=i) for i in n]), pa.timestamp("us", "Europe/Berlin")),
        "at_ns": pa.array([1_700_000_000_000_000_001 + i for i in n], pa.timestamp("ns")),
        "naive": pa.array([NOW.replace(tzinfo=None) for _ in n], pa.timestamp("us")),
        "lasted": pa.array(holes([dt.timedelta(microseconds=i) for i in n]), pa.duration("us")),
        "money": pa.array(holes([decimal.Decimal(i).scaleb(-2) for i in n]), pa.decimal128(12, 2)),
        "huge_money": pa.array([decimal.Decimal(10**37 + i) for i in n], pa.decimal128(38, 0)),
        "numbers": pa.array(holes([[*range(i % 4)] for i in n]), pa.list_(pa.int64())),
        "texts": pa.array(holes([["a", None]] * ROWS), pa.large_list(pa.string())),
        "embedding": pa.array([[i, i + 1, i + 2] for i in n], pa.list_(pa.float32(), 3)),
        "record": pa.array(holes([{"a": i, "b": {"c": f"{i}"}} for i in n])),
        "records": pa.array([[{"a": i}] * (i % 3) for i in n]),
        "tags": pa.array(holes([[("k", i), ("l", None)] for i in n]), pa.map_(pa.string(), pa.int64())),
        "seconds": pa.array([NOW.replace(microsecond=0) for _ in n], pa.timestamp("s", "UTC")),
        "date64": pa.array([dt.date(2026, 1, 1) for _ in n], pa.date64()),
        "uuid": pa.array([i.to_bytes(16, "big") for i in n], pa.uuid()),
        "matrix": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(ROWS * 4, dtype=np.float32).reshape(-1, 2, 2)),
        "codes": pa.array([i % 4 for i in n], pa.int64()).dictionary_encode(),
        "categories": pa.array([[words[i]] for i in n], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        "nothing": pa.nulls(ROWS, pa.null()),
        "only_nulls": pa.nulls(ROWS, pa.string()),
        "Ünïcode col-umn.1": pa.array(words),
    }


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """One run that carries every type, in two files, one part of which is empty."""
    lake = Lake(tmp_path_factory.mktemp("readers"), LOCAL)
    columns = {"id": pa.array(range(ROWS), pa.int64()), "x": pa.array(range(ROWS), pa.float32()), **carried()}
    fields = [
        pa.field(
            name, values.type, nullable=values.null_count > 0 or name not in {"id", "big"}, metadata=META.get(name)
        )
        for name, values in columns.items()
    ]
    table = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))
    (lake.folder / "data").mkdir()
    pq.write_table(table, lake.folder / "data" / "a.parquet", row_group_size=100)
    pq.write_table(table.slice(0, 50), lake.folder / "data" / "b.parquet")
    lake.write_model(REFUSING)
    lake.write_job(
        input__shard_rows=100,
        carry=["id", *carried()],
        model__outputs={"score": "float32", "label": "string", "vector": "list<float32>"},
        retry__max_quarantined=1.0,
    )
    lake.run()
    # What a reader of the input sees is what a reader of the output must see.
    given = pa.concat_tables([pq.read_table(lake.folder / "data" / name) for name in ("a.parquet", "b.parquet")])
    kept = [index for index in range(ROWS + 50) if index not in BAD]
    return Published(lake.revision() / "data", given.take(kept))


META = {"id": {b"comment": b"the key"}, "money": {b"unit": b"EUR"}}


class Published:
    """The folder readers are pointed at, and the input rows that must be in it."""

    def __init__(self, folder: Path, given: pa.Table) -> None:
        self.folder = folder
        self.given = given

    @property
    def glob(self) -> str:
        return f"{self.folder}/*.parquet"

    def in_order(self) -> pa.Table:
        """All parts by pyarrow, in input order."""
        tables = [pq.read_table(path) for path in self.folder.glob("*.parquet")]
        return pa.concat_tables(tables).sort_by([("_file", "ascending"), ("_row", "ascending")])


def test_a_part_may_be_empty(published: Published) -> None:
    """All of its rows are in the quarantine; the readers below read over it."""
    rows = sorted(pq.read_metadata(path).num_rows for path in published.folder.glob("*.parquet"))
    assert rows == [0, 50, 100, 100]


@pytest.mark.parametrize("name", ["id", *carried()])
def test_a_carried_column_is_untouched(published: Published, name: str) -> None:
    """Value by value, null by null, with its type, its nullability and its field's metadata; indices have 32 bits."""
    found, given = published.in_order(), published.given
    assert found.schema.field(name).equals(schemas.normalised(given.schema).field(name), check_metadata=True)
    mine, theirs = found[name].combine_chunks(), given[name].combine_chunks()
    if pa.types.is_dictionary(mine.type):
        mine, theirs = mine.dictionary_decode(), theirs.dictionary_decode()
    assert mine.equals(theirs) or both_nan(mine, theirs)


def both_nan(mine: pa.Array, theirs: pa.Array) -> bool:
    return pa.types.is_floating(mine.type) and bool(np.array_equal(mine.to_numpy(), theirs.to_numpy(), equal_nan=True))


def test_the_folder_is_one_dataset_with_one_schema(published: Published) -> None:
    """The column order is: carried, outputs, lineage; the lineage is plain text and a number."""
    table = pq.read_table(published.folder)
    assert table.num_rows == 250
    assert table.column_names == ["id", *carried(), "score", "label", "vector", "_file", "_row"]
    assert table.schema.field("score").type == pa.float32()
    assert table.schema.field("_file").type == pa.string()
    assert table.schema.field("_row").type == pa.int64()
    schemas = {pq.read_schema(path).remove_metadata().to_string() for path in published.folder.glob("*.parquet")}
    assert len(schemas) == 1


def test_pandas_reads_the_folder(published: Published) -> None:
    frame = pd.read_parquet(published.folder).sort_values(["_file", "_row"], ignore_index=True)
    check_values(frame["id"].tolist(), frame["big"].tolist(), frame["score"].tolist(), frame["label"].tolist())
    assert (frame["id"].dtype, frame["score"].dtype) == (np.int64, np.float32)
    assert str(frame["at"].dtype) == "datetime64[us, Europe/Berlin]"
    assert frame["at"][0] == NOW
    assert frame["money"][2] == decimal.Decimal("0.02")
    assert frame["category"].dtype == "category"
    assert frame["ordered"].cat.ordered
    assert frame["vector"][2].tolist() == [2.0, -2.0]
    assert frame["text"].isna().sum() == published.given["text"].null_count


def test_polars_reads_the_folder(published: Published) -> None:
    frame = pl.read_parquet(published.glob).sort("_file", "_row")
    check_values(*(frame[name].to_list() for name in ("id", "big", "score", "label")))
    schema = frame.schema
    assert (schema["id"], schema["score"], schema["label"]) == (pl.Int64, pl.Float32, pl.String)
    assert schema["at"] == pl.Datetime("us", "Europe/Berlin")
    assert frame["at"][0] == NOW
    assert schema["money"] == pl.Decimal(12, 2)
    assert frame["money"][2] == decimal.Decimal("0.02")
    assert frame["category"].cast(pl.String).to_list() == published.given["category"].to_pylist()
    assert frame["numbers"].to_list() == published.given["numbers"].to_pylist()
    assert frame["record"][4] == {"a": 4, "b": {"c": "4"}}
    assert frame["ubig"][0] == 2**64 - 1
    assert frame["text"].null_count() == published.given["text"].null_count
    assert pl.scan_parquet(published.glob).filter(pl.col("id") == 299).select("score").collect().item() == 149.5


def test_duckdb_reads_the_folder(published: Published) -> None:
    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    duck.execute(f"CREATE VIEW night AS FROM read_parquet('{published.glob}') ORDER BY _file, _row")
    found = duck.sql("SELECT id, big, score, label FROM night").fetchall()
    check_values(*(list(column) for column in zip(*found, strict=True)))
    types = dict(row[:2] for row in duck.sql("DESCRIBE night").fetchall())
    assert (types["id"], types["big"], types["ubig"]) == ("BIGINT", "BIGINT", "UBIGINT")
    assert (types["score"], types["label"], types["vector"]) == ("FLOAT", "VARCHAR", "FLOAT[]")
    assert (types["at"], types["naive"], types["day"]) == ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP", "DATE")
    assert (types["money"], types["category"], types["_file"]) == ("DECIMAL(12,2)", "VARCHAR", "VARCHAR")
    assert types["record"] == "STRUCT(a BIGINT, b STRUCT(c VARCHAR))"
    assert types["tags"] == "MAP(VARCHAR, BIGINT)"
    same = "night.at = TIMESTAMPTZ '2026-11-19 02:30:00.123456+00'"
    one = duck.sql(f"SELECT {same}, money, ubig FROM night LIMIT 1").fetchall()
    assert one == [(True, decimal.Decimal("0.00"), 2**64 - 1)]
    nulls = duck.sql("SELECT count(*) - count(text), count(only_nulls) FROM night").fetchall()
    assert nulls == [(published.given["text"].null_count, 0)]


def check_values(ids: list[int], big: list[int], scores: list[float], labels: list[str]) -> None:
    """What every reader must see: the kept rows of both files, exact integers, and the model's outputs."""
    kept = [*range(100), *range(200, 300), *range(50)]
    assert ids == kept
    assert big == [BIG + i for i in kept]
    assert scores == [i / 2 for i in kept]
    assert labels == ["odd" if i % 2 else "even" for i in kept]
