"""What `carry` names: every column or those that match a pattern, the same for every shard, with their exact types."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.history.replay import replay_row
from nightjar.inference.output.revisions import newest_revision, planned_by
from nightjar.inference.storage.lake import LakeStorage
from support import Lake, data_files

NESTED = pa.table(
    {
        "id": pa.array([0, 1, 2], pa.int16()),
        "x": pa.array([0.0, 1.0, 2.0], pa.float32()),
        "geo_point": pa.array(
            [{"lat": 1.5, "tags": ["a"]}, None, {"lat": None, "tags": []}],
            pa.struct([("lat", pa.float32()), ("tags", pa.list_(pa.string()))]),
        ),
        "geo_cells": pa.array([[1, 2], [], None], pa.list_(pa.uint8())),
        "geo_kind": pa.array(["a", "b", "a"]).dictionary_encode(),
        "at": pa.array([dt.datetime(2026, 1, 1)] * 3, pa.timestamp("ms", "Europe/Berlin")),
        "price": pa.array([None, 1, 2], pa.decimal128(9, 2)),
    }
)
"""Columns of many types, and of a field that says more than its type."""


def parts(lake: Lake) -> pa.Table:
    """What readers see, with the types that the parts have."""
    request = lake.request()
    return pa.concat_tables(
        pq.read_table(request.storage.open(name)) for name in data_files(request.storage, request.output, None)
    )


def fingerprint(lake: Lake) -> str:
    """What scores tonight's newest revision."""
    return planned_by(newest_revision(LakeStorage(), lake.request().run_uri))


def hive(lake: Lake) -> Lake:
    """A lake of two folders, one per country, whose columns have many types."""
    for country in ("de", "fr"):
        folder = lake.folder / "data" / f"country={country}"
        folder.mkdir(parents=True)
        pq.write_table(NESTED, folder / "part.parquet")
    lake.write_model()
    return lake


def test_all_columns_are_carried_with_their_types(lake: Lake) -> None:
    """Those from the path and those with a declared type, too; and none is kept from the model by that."""
    hive(lake).write_job(carry="all", input__partitions={"country": "string"}, input__schema={"id": "int64"})
    lake.run()
    found = parts(lake)
    assert found.column_names == [*NESTED.column_names, "country", "score", "_file", "_row"]
    wanted = NESTED.set_column(0, "id", NESTED["id"].cast(pa.int64()))
    for name in NESTED.column_names:
        for first in (0, 3):
            assert found[name].type == wanted[name].type
            assert found[name].slice(first, 3).to_pylist() == wanted[name].to_pylist()
    assert found["country"].to_pylist() == ["de"] * 3 + ["fr"] * 3
    assert found["score"].to_pylist() == [0, 2, 4] * 2


def test_a_night_whose_labels_and_slices_have_not_come_yet_is_scored(lake: Lake) -> None:
    """pandas writes a column of nulls without a type."""
    lake.write_model("def score(batch):\n    return {'score': batch['x'] * 2}\n")
    (lake.folder / "data").mkdir()
    table = pa.table({"id": [1, 2], "x": [0.25, 0.5], "late": pa.nulls(2), "promo": pa.nulls(2)})
    pq.write_table(table, lake.folder / "data" / "part.parquet")
    lake.write_job(carry=["id", "promo"], model__features=["x"], label="late", evaluation={"slices": ["promo"]})
    found = lake.run().verdict.metrics.evaluation
    assert found is not None
    assert (found.rows, found.excluded_null_labels) == (0, 2)


def test_the_model_gets_all_columns_but_the_label_where_all_are_carried(lake: Lake) -> None:
    """What is carried is no feature; but then there would be none left."""
    lake.write_model("def score(batch):\n    assert list(batch) == ['id', 'x']\n    return {'score': batch['x'] * 2}\n")
    (lake.folder / "data").mkdir()
    table = pa.table({"id": [1, 2], "x": [0.25, 0.5], "late": [0, 1]})
    pq.write_table(table, lake.folder / "data" / "part.parquet")
    lake.write_job(carry="all", model__features=None, label="late")
    lake.run()
    assert parts(lake).select(table.column_names) == table
    assert parts(lake)["score"].to_pylist() == [0.5, 1.0]


def test_a_preprocess_gets_the_columns_that_it_names(lake: Lake) -> None:
    """Carried ones and the label among them, and no other, in its order; what the model sees is what it returns."""
    lake.write_model(
        "def doubled(batch):\n"
        "    assert list(batch) == ['late', 'id']\n"
        "    return {'x': batch['id'] * 2 + batch['late']}\n"
        "def score(batch):\n"
        "    assert list(batch) == ['x']\n"
        "    return {'score': batch['x']}\n"
    )
    (lake.folder / "data").mkdir()
    table = pa.table({"id": [1, 2], "x": [0.25, 0.5], "late": [0, 1]})
    pq.write_table(table, lake.folder / "data" / "part.parquet")
    asked = {"uses": "model:doubled", "columns": ["late", "id"]}
    lake.write_job(carry="all", model__features=["x"], label="late", preprocess=asked)
    lake.run()
    assert parts(lake)["score"].to_pylist() == [2, 5]
    assert parts(lake).select(table.column_names) == table

    lake.write_job(model__features=["x"], preprocess={**asked, "columns": ["late", "idd"]})
    with pytest.raises(JobError, match=r"preprocess\.columns: 'idd' is not a column of the input; did you mean 'id'\?"):
        lake.run()


def test_patterns_carry_what_matches_in_the_order_of_the_job_then_of_the_input(lake: Lake) -> None:
    hive(lake).write_job(carry=["price", "geo_[!k]*", "i?", "price*"])
    lake.run()
    assert parts(lake).column_names == ["price", "geo_point", "geo_cells", "id", "score", "_file", "_row"]


def test_a_column_whose_name_looks_like_a_pattern_is_that_column(lake: Lake) -> None:
    lake.write_model()
    (lake.folder / "data").mkdir()
    pq.write_table(pa.table({"x": [1.0], "a*": [1], "ab": [2]}), lake.folder / "data" / "part.parquet")
    lake.write_job(carry=["a*"])
    lake.run()
    assert parts(lake).column_names == ["a*", "score", "_file", "_row"]


def test_a_new_column_of_the_input_is_carried_from_then_on(lake: Lake) -> None:
    """It changes every part, so it changes what scored them; and the run says so. A column that no pattern takes does
    not.
    """
    lake.write_model()
    lake.write_file("part-00.parquet", 0, 1000)
    lake.write_job(carry=["i*", "geo_*", "name"])
    add(lake, geo_place=["Berlin"])
    lake.run()
    first = fingerprint(lake)
    add(lake, other=["nobody's"])
    lake.run()
    assert fingerprint(lake) == first
    add(lake, geo_zone=["eu"])
    ran = lake.run()
    assert fingerprint(lake) != first
    assert ran.scored.again == ("the carried columns changed: 1 of 1 shards is scored",)
    found = parts(lake)
    assert found.column_names == ["id", "geo_place", "geo_zone", "name", "score", "_file", "_row"]
    assert found["geo_zone"].to_pylist() == ["eu"] * 1000


def add(lake: Lake, **columns: list[str]) -> None:
    """Give each file one column more, with the same value in every row."""
    for path in sorted((lake.folder / "data").glob("*.parquet")):
        table = pq.read_table(path)
        for name, (value,) in columns.items():
            table = table.append_column(name, pa.array([value] * len(table)))
        pq.write_table(table, path, row_group_size=1000)


def test_an_odd_file_does_not_change_what_is_carried(lake: Lake) -> None:
    """One file of four has a column more: no part has it, so that all parts have the same columns."""
    lake.ready(carry="all")
    path = lake.folder / "data" / "part-00.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("odd", pa.array(range(len(table)))), path, row_group_size=1000)
    lake.run()
    assert parts(lake).column_names == ["id", "x", "name", "score", "_file", "_row"]
    assert lake.published()["id"].tolist() == list(range(8000))


@pytest.mark.parametrize(
    ("carry", "outputs", "said"),
    [
        (
            "all",
            {"name": "float32"},
            "carry: 'name' is also an output of model; rename one of the two, or leave it out",
        ),
        (["id", "na*"], {"name": "float32"}, r"carry: 'name' is also an output of model"),
        ("all", {"Name": "float32"}, "carry: 'name' and 'Name' differ in case only"),
        (["i*"], {"ID": "float32"}, "carry: 'id' and 'ID' differ in case only, and DuckDB, Spark and Delta Lake would"),
        (["id", "geo_*"], {"score": "float32"}, r"carry: no column of the input matches 'geo_\*'; it has id, x, name"),
        (["i*", "nmae"], {"score": "float32"}, "carry: 'nmae' is not a column of the input; did you mean 'name'"),
    ],
)
def test_what_cannot_be_carried_is_said_with_the_key(
    lake: Lake, carry: object, outputs: dict[str, str], said: str
) -> None:
    lake.ready(carry=carry, model__outputs=outputs)
    with pytest.raises(JobError, match=said):
        lake.run()
    assert not lake.out.exists()


def test_lineage_columns_of_the_input_are_not_carried_as_such(lake: Lake) -> None:
    """The input may be what another job published; its `_file` and `_row` are not those of this output."""
    lake.ready(carry="all")
    add(lake, _file=["elsewhere"])
    with pytest.raises(JobError, match="carry: '_file' is also a lineage column"):
        lake.run()
    lake.write_job(carry=["[!_]*"])
    lake.run()
    assert lake.published()["_file"].iloc[0].endswith("part-00.parquet")


def test_a_check_on_a_column_needs_it_among_those_that_a_pattern_takes(lake: Lake) -> None:
    lake.ready(carry=["i*"], checks=[{"column": "idd", "min": 0}])
    with pytest.raises(JobError, match=r"checks\[0\]\.column: 'idd' is neither an output nor a carried column; did"):
        lake.run()
    lake.write_job(carry=["i*"], checks=[{"column": "id", "max": 7999}])
    lake.run()


def test_a_row_is_replayed_with_what_the_run_carried(lake: Lake) -> None:
    """The run's identity is found again from the columns of the row's file."""
    lake.ready(carry="all")
    lake.run()
    request = lake.request()
    shard = lake.planned().ids()[0]
    replayed = replay_row(request, shard, 5, None, pdb=True)
    assert replayed.scored
    assert "Note" not in replayed.text
    assert dict(replayed.outputs) == {"score": "10"}
