"""Columns from the folders of a path: which values they have, and what is said where a path has none."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.arrow_types import arrow_type
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, SchemaMismatch, ShardsFailed
from nightjar.inference.input.listing import values_of
from nightjar.inference.input.sources import lines
from nightjar.inference.input.sources.rows import constant
from support import Lake

FEATURES = """
def score(batch):
    return {"score": batch["x"] + batch["month"]}
"""


def value(folder: str, kind: str) -> Any:
    """What `key=…` gives as this type."""
    return values_of(f"s3://lake/{folder}/x.parquet", {"key": arrow_type(kind)})["key"].as_py()


@pytest.mark.parametrize(
    ("written", "kind", "meant"),
    [
        ("de", "string", "de"),
        ("", "string", ""),
        ("a%2Fb%3Dc%20%F0%9F%90%A6", "string", "a/b=c 🐦"),
        ("50%", "string", "50%"),
        ("a=b", "string", "a=b"),
        ("a+b", "string", "a+b"),
        ("007", "string", "007"),
        ("007", "int32", 7),
        ("-1", "int8", -1),
        ("0.5", "float64", 0.5),
        ("true", "bool", True),
        ("2026-11-19", "date32", dt.date(2026, 11, 19)),
        ("2026-11-19 10%3A30%3A00", "timestamp[us]", dt.datetime(2026, 11, 19, 10, 30)),
        ("2026-11-19", "timestamp[s]", dt.datetime(2026, 11, 19)),
        ("__HIVE_DEFAULT_PARTITION__", "string", None),
        ("__HIVE_DEFAULT_PARTITION__", "int64", None),
    ],
)
def test_a_folder_says_a_value_of_the_declared_type(written: str, kind: str, meant: Any) -> None:
    assert value(f"key={written}", kind) == meant


@pytest.mark.parametrize(
    ("written", "kind"),
    [("de", "int32"), ("1.5", "int32"), ("300", "int8"), ("-1", "uint8"), ("", "int64"), ("19.11.2026", "date32"),
     ("maybe", "bool"), ("2026-11-19", "timestamp[us, UTC]")],
)  # fmt: skip
def test_a_value_of_another_type_names_folder_and_type(written: str, kind: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        value(f"key={written}", kind)
    said = str(caught.value)
    assert said.startswith(f"s3://lake/key={written}/x.parquet: the folder 'key={written}' has no value of the type ")
    assert said.endswith("which input.partitions declares for key")


def test_only_folders_count_wherever_they_are() -> None:
    """Not the file's own name. A key may need decoding, too, and may be there twice with one value."""
    assert value("a/key=1/b/key=1", "int64") == 1
    assert value("k%65y=1", "int64") == 1
    with pytest.raises(SchemaMismatch, match=r"the path has no folder 'key=…', and input\.partitions declares key$"):
        values_of("/lake/key=1", {"key": pa.int64()})


def test_a_column_of_one_value_takes_the_memory_of_a_part_of_it() -> None:
    text = "x" * 100
    column = constant(pa.scalar(text), 1_000_003)
    assert len(column) == 1_000_003
    assert column.unique().to_pylist() == [text]
    assert sum({chunk.buffers()[2].address: chunk.buffers()[2].size for chunk in column.chunks}.values()) < 8 << 20
    assert constant(pa.scalar(None, pa.int32()), 3).to_pylist() == [None] * 3
    assert constant(pa.scalar(1, pa.int8()), 0).type == pa.int8()


# ---- a lake --------------------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two countries and a file without one, by month; x is the row's number."""
    found = Lake(tmp_path, LOCAL)
    found.write_model(FEATURES)
    for index, folders in enumerate(
        ["country=de/month=01", "country=fr%20x/month=12", "country=__HIVE_DEFAULT_PARTITION__/month=2"]
    ):
        found.write_file(f"{folders}/a.parquet", index * 10, 10)
    found.write_job(
        input__partitions={"country": "string", "month": "int8"},
        model__features=["x", "month"],
        carry=["country", "id"],
    )
    return found


def test_a_hive_lake_is_scored_with_what_its_paths_say(lake: Lake) -> None:
    """As pandas reads it, with the types that were declared."""
    lake.run()
    found = lake.published()
    months = [1] * 10 + [12] * 10 + [2] * 10
    by_id = found.sort_values("id")
    assert by_id["score"].tolist() == [index + month for index, month in enumerate(months)]
    assert by_id["country"].tolist()[:20] == ["de"] * 10 + ["fr x"] * 10
    assert by_id["country"].isna().tolist() == [False] * 20 + [True] * 10


def test_a_file_in_a_wrong_folder_costs_itself(lake: Lake) -> None:
    lake.write_file("country=de/month=may/b.parquet", 30, 10)
    with pytest.raises(ShardsFailed, match="the folder 'month=may' has no value of the type int8"):
        lake.run()
    assert sum(record["rows_in"] for record in lake.records() if record["t"] == "receipt") == 30


def test_other_types_or_keys_of_the_path_are_another_identity(lake: Lake) -> None:
    lake.run()
    assert lake.run().scored.progress.scored_rows == 0
    lake.write_job(
        input__partitions={"country": "string", "month": "int16"},
        model__features=["x", "month"],
        carry=["country", "id"],
    )
    assert lake.run().scored.progress.scored_rows == 30


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"model__features": ["x", "country"]}, "model.features: 'country'"),
        ({"carry": ["id", "country"]}, "carry: 'country'"),
        ({"label": "month"}, "label: 'month'"),
        ({"input__schema": {"month": "int8"}}, "input.schema: 'month'"),
    ],
)
def test_a_column_that_only_paths_have_is_met_with_the_key_to_write(
    lake: Lake, keys: dict[str, Any], sentence: str
) -> None:
    lake.write_job(**{"model__features": ["x"], "carry": ["id"], **keys})
    with pytest.raises(JobError) as caught:
        lake.run()
    name = sentence.split("'")[1]
    said = str(caught.value)
    assert said.startswith(f"{sentence} is not a column of the input, but a folder of its paths ({name}=")
    assert said.endswith(f"; to have it as a column, write input.partitions: {{{name}: string}}")


def test_where_only_paths_are_asked_for_no_value_of_a_file_costs_its_row(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last is of another type than the beginning shows."""
    monkeypatch.setattr(lines, "SAMPLE_BYTES", 900)
    folder = _made(lake.folder / "lines" / "month=3")
    (folder / "a.csv").write_text("n,name\n" + "1,a\n" * 20_000 + "odd,b\n")
    (lake.folder / "plain.py").write_text('def score(batch):\n    return {"score": batch["month"]}\n')
    lake.write_job(
        input={"uri": "lines/", "partitions": {"month": "int8"}}, model__features=["month"], model__uses="plain:score",
        carry=[],
    )  # fmt: skip
    lake.run()
    assert lake.published()["score"].tolist() == [3.0] * 20_001


def test_a_dated_folder_of_the_uri_is_a_column_too(lake: Lake) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0]}), _made(lake.folder / "nights" / "date=2026-11-19") / "a.parquet")
    lake.write_job(
        input__uri="nights/date={date}/", input__partitions={"date": "date32"}, model__features=["x"],
        model__uses="plain:score", carry=["date"],
    )  # fmt: skip
    (lake.folder / "plain.py").write_text('def score(batch):\n    return {"score": batch["x"]}\n')
    lake.run()
    assert lake.published()["date"].tolist() == [dt.date(2026, 11, 19)] * 2


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
