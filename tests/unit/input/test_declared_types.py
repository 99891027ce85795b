"""`input.schema`: types that the job declares, in place of those that a file has or from which they were inferred."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.arrow_types import arrow_type
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, ShardsFailed
from nightjar.inference.input.plan import discover
from nightjar.inference.input.sources.fitting import cast_exactly
from nightjar.inference.run.request import identity_of
from support import Lake

NAN = float("nan")
NULL = pa.null()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Files of CSV, in which nothing tells what tomorrow's will hold."""
    found = Lake(tmp_path, LOCAL)
    found.write_model('def score(batch):\n    return {"score": batch["amount"]}\n')
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("zip,amount,when\n01234,1,2026-11-19\n99999,2,\n")
    (tmp_path / "data" / "b.csv").write_text("zip,amount,when\n1234,3,\n5,4,\n")
    declare(found)
    return found


def declare(lake: Lake, **declared: str) -> None:
    lake.write_job(
        input={"uri": "data/", "schema": declared},
        model__features=["amount"],
        model__outputs={"score": "float64"},
        carry=["zip", "amount"],
    )


def fingerprint(lake: Lake) -> str:
    request = lake.request()
    return identity_of(request, discover(request.storage, request.job).schema).fingerprint


def carried(lake: Lake) -> dict[str, list[Any]]:
    found = pa.Table.from_pandas(lake.published()[["zip", "amount"]], preserve_index=False)
    return {name: found[name].to_pylist() for name in found.column_names}


def test_text_that_looks_like_a_number_stays_text(lake: Lake) -> None:
    """Also in the file where nothing shows that it is one, and whole numbers are floats before the first 1.5."""
    declare(lake, zip="string", amount="float64")
    lake.run()
    assert carried(lake) == {"zip": ["01234", "99999", "1234", "5"], "amount": [1.0, 2.0, 3.0, 4.0]}
    before = fingerprint(lake)
    (lake.folder / "data" / "c.csv").write_text("zip,amount,when\n7,1.5,\n")
    assert fingerprint(lake) == before, "no type changes with a new file, so no result becomes old by it"
    lake.run()
    assert lake.published()["score"].tolist() == [1.0, 2.0, 3.0, 4.0, 1.5]


def test_a_value_that_is_not_of_the_declared_type_names_line_and_both_types(lake: Lake) -> None:
    declare(lake, amount="int64", zip="string")
    (lake.folder / "data" / "c.csv").write_text("zip,amount,when\n1,1,\n2,1.5,\n")
    with pytest.raises(
        ShardsFailed, match=r"c\.csv: line 3: column 'amount' holds '1\.5' \(float64\), input\.schema declares int64"
    ):
        lake.run()


def test_a_declared_type_is_part_of_the_identity(lake: Lake) -> None:
    declare(lake, amount="float64")
    lake.run()
    assert lake.run().scored.progress.scored_rows == 0
    declare(lake, amount="float32")
    assert lake.run().scored.progress.scored_rows == 4


def test_a_declared_column_that_no_file_has_is_named_with_the_nearest(lake: Lake) -> None:
    declare(lake, zpi="string")
    with pytest.raises(JobError, match=r"^input\.schema: 'zpi' is not a column of the input; did you mean 'zip'\?$"):
        lake.run()


def test_a_file_without_a_declared_column_fails_as_any_file_without_a_column(lake: Lake) -> None:
    declare(lake, zip="string")
    (lake.folder / "data" / "c.csv").write_text("amount\n1\n")
    with pytest.raises(ShardsFailed, match=r"c\.csv: column 'zip' is missing"):
        lake.run()
    assert sum(record["rows_in"] for record in lake.records() if record["t"] == "receipt") == 4


def test_records_of_json_are_read_with_declared_types(lake: Lake) -> None:
    for path in (lake.folder / "data").iterdir():
        path.unlink()
    (lake.folder / "data" / "a.jsonl").write_text('{"zip": "1", "amount": 1}\n{"zip": "2", "amount": 2}\n')
    declare(lake, amount="float64")
    lake.run()
    assert lake.published()["amount"].tolist() == [1.0, 2.0]
    (lake.folder / "data" / "b.jsonl").write_text('{"amount": 1}\n{"zip": 2, "amount": 2}\n')
    declare(lake, amount="float64", zip="string")
    with pytest.raises(
        ShardsFailed, match=r"b\.jsonl: line 2: column 'zip' holds 2 \(int64\), input\.schema declares string"
    ):
        lake.run()


def test_tensors_are_cast_as_their_numbers_are_and_keep_their_shape(tmp_path: Path) -> None:
    """Whatever Arrow says to a cast between two tensor types; one of another shape fails its file, with both types."""
    lake = Lake(tmp_path, LOCAL)
    lake.write_model('def score(batch):\n    return {"score": batch["t"].sum(axis=(1, 2))}\n')
    (tmp_path / "data").mkdir()
    stored = pa.FixedSizeListArray.from_arrays(pa.array(range(12), pa.float32()), 6)
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2, 3]), stored)
    assert cast_exactly(pa.chunked_array([stored]), tensors.type) == pa.chunked_array([tensors])
    pq.write_table(pa.table({"t": tensors}), tmp_path / "data" / "a.parquet")
    job: dict[str, Any] = {"model__features": ["t"], "carry": ["t"]}
    lake.write_job(input__schema={"t": "float64[2, 3]"}, **job)
    lake.run()
    assert lake.published()["score"].tolist() == [15.0, 51.0]
    part = pq.read_table(next((lake.revision() / "data").iterdir()))
    assert part.schema.field("t").type == arrow_type("float64[2, 3]")
    lake.write_job(input__schema={"t": "float32[3, 2]"}, **job)
    said = "column 't' is float32[2, 3] here, and cannot be read without loss as float32[3, 2], which input.schema"
    with pytest.raises(ShardsFailed, match=re.escape(f"a.parquet: {said} declares: tensors of another shape")):
        lake.run()


def test_files_whose_types_differ_are_read_as_the_job_says(tmp_path: Path) -> None:
    """Parquet of several writers; a file with a value that is lost by it fails alone, and names both types."""
    lake = Lake(tmp_path, LOCAL)
    lake.write_model()
    (tmp_path / "data").mkdir()
    for name, values in {"a": pa.array([1, 2]), "b": pa.array([1.5, None]), "c": pa.array([2], pa.float32())}.items():
        ids = pa.array(range(len(values)), pa.int64())
        pq.write_table(pa.table({"x": values, "id": ids}), tmp_path / "data" / f"{name}.parquet")
    lake.write_job(carry=["id"], input__schema={"x": "float32"})
    lake.run()
    assert [None if score != score else score for score in lake.published()["score"]] == [2.0, 4.0, 3.0, None, 4.0]
    pq.write_table(pa.table({"x": [0.1], "id": [0]}), tmp_path / "data" / "d.parquet")
    with pytest.raises(ShardsFailed, match=r"column 'x' is float64 here, and cannot be read without loss as float32"):
        lake.run()
    assert {record["cause"] for record in lake.records(2) if record["t"] == "failed"} == {"SchemaMismatch"}


LABELS = {
    "numbers": pa.array([10, 20]).dictionary_encode(),
    "flags": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([True, False])),
    "text": pa.array(["1", "0"]).dictionary_encode(),
}


@pytest.mark.parametrize(
    ("name", "kind", "values"),
    [
        ("numbers", "int64", [10, 20]),
        ("numbers", "float32", [10.0, 20.0]),
        ("numbers", "string", ["10", "20"]),
        ("flags", "bool", [True, False]),
        ("flags", "int8", [1, 0]),
        ("text", "string", ["1", "0"]),
        ("text", "int16", [1, 0]),
    ],
)
def test_a_category_is_cast_as_its_values_are(name: str, kind: str, values: list[Any]) -> None:
    """Arrow makes no dictionary of numbers or bools, so that nothing could be compared with one. In a list, too."""
    column = pa.chunked_array([LABELS[name]])
    assert cast_exactly(column, arrow_type(kind)) == pa.chunked_array([pa.array(values, arrow_type(kind))])
    listed = pa.chunked_array([pa.ListArray.from_arrays([0, 2], LABELS[name])])
    wanted = pa.struct({"a": arrow_type(kind), "l": pa.list_(arrow_type(kind))})
    within = pa.StructArray.from_arrays([LABELS[name].slice(0, 1), listed.chunk(0)], ["a", "l"])
    assert cast_exactly(pa.chunked_array([within]), wanted).to_pylist() == [{"a": values[0], "l": values}]


@pytest.mark.parametrize("kind", ["int8", "bool"])
def test_a_category_whose_values_would_change_is_refused(kind: str) -> None:
    column = pa.chunked_array([pa.array([300, 2]).dictionary_encode()])
    with pytest.raises(pa.ArrowInvalid):
        cast_exactly(column, arrow_type(kind))


@pytest.mark.parametrize("kind", ["string", "int64", "timestamp[us, UTC]", "list<float32>", "float32[2, 3]"])
def test_a_column_without_values_has_the_declared_type(kind: str) -> None:
    """So pandas stores it. Also in a struct or list."""
    wanted = arrow_type(kind)
    assert cast_exactly(pa.chunked_array([pa.nulls(2)]), wanted) == pa.chunked_array([pa.nulls(2, wanted)])
    if isinstance(wanted, pa.FixedShapeTensorType):
        return
    column = pa.chunked_array([pa.array([{"a": None, "b": [None]}, None], pa.struct({"a": NULL, "b": pa.list_(NULL)}))])
    found = cast_exactly(column, pa.struct({"a": wanted, "b": pa.list_(wanted)}))
    assert found.to_pylist() == [{"a": None, "b": [None]}, None]


def test_a_file_without_a_value_in_a_declared_column_is_scored(tmp_path: Path) -> None:
    lake = Lake(tmp_path, LOCAL)
    lake.write_model()
    (tmp_path / "data").mkdir()
    for name, note in {"a": pa.nulls(1), "b": pa.array(["hello"]), "c": pa.nulls(1)}.items():
        pq.write_table(pa.table({"x": [1.0], "note": note}), tmp_path / "data" / f"{name}.parquet")
    for declared in ({"note": "string"}, {}):
        lake.write_job(carry=["note"], input__schema=declared)
        lake.run()
        assert lake.published()["note"].fillna("").tolist() == ["", "hello", ""]


def test_dates_and_vectors_of_json_are_read_as_declared(lake: Lake) -> None:
    """A number is no date, though Arrow would take it for days since 1970."""
    for path in (lake.folder / "data").iterdir():
        path.unlink()
    line = '{"zip": "1", "amount": 1, "when": "2026-11-19", "at": "2026-11-19T10:00:00Z", "v": [1, 2.5]}\n'
    (lake.folder / "data" / "a.jsonl").write_text(line + '{"zip": "2", "amount": 2, "v": null}\n')
    declared = {"when": "date32", "at": "timestamp[us, UTC]", "v": "float32[2]"}
    lake.write_job(input={"uri": "data/", "schema": declared}, model__features=["amount"], carry=list(declared))
    lake.run()
    part = next((lake.revision() / "data").iterdir())
    found = pq.read_table(part, columns=list(declared))
    assert [found.schema.field(name).type for name in declared] == [arrow_type(kind) for kind in declared.values()]
    assert found["when"].to_pylist() == [dt.date(2026, 11, 19), None]
    assert found["at"].to_pylist() == [dt.datetime(2026, 11, 19, 10, tzinfo=dt.UTC), None]
    assert found["v"].to_pylist() == [[1.0, 2.5], None]
    for bad, said in (
        ({"when": 5}, "line 1: column 'when' holds 5 (int64), input.schema declares date32"),
        ({"when": "soon"}, "line 1: column 'when' holds \"soon\" (string), input.schema declares date32"),
        ({"v": [1, 2, 3]}, "line 1: column 'v' holds [1, 2, 3] (list<int64>), input.schema declares "),
    ):
        line = json.dumps({"zip": "1", "amount": 1, "when": None, "at": None, "v": None, **bad})
        (lake.folder / "data" / "b.jsonl").write_text(f"{line}\n")
        with pytest.raises(ShardsFailed, match=re.escape(said)):
            lake.run()


@pytest.mark.parametrize(
    ("values", "own", "kind"),
    [
        ([1, None, 2**53], "int64", "float64"),
        ([0.5, NAN, None, float("inf")], "float64", "float32"),
        ([1.0, 2.0], "float64", "int8"),
        ([0, 1, None], "int64", "bool"),
        (["1", "02", None], "string", "int32"),
        (["inf", "-Infinity", "1e38", "nan", None], "string", "float32"),
        ([[1.0, NAN], [], None], "list<float64>", "list<float32>"),
        ([[1.0, 2.0]], "list<float64>", "float32[2]"),
        ([1, 2], "int64", "string"),
        ([b"a"], "binary", "string"),
    ],
)
def test_a_cast_keeps_every_value(values: list[Any], own: str, kind: str) -> None:
    column = pa.chunked_array([pa.array(values, arrow_type(own))])
    assert cast_exactly(column, arrow_type(kind)).type == arrow_type(kind)
    assert len(cast_exactly(column, arrow_type(kind))) == len(values)


@pytest.mark.parametrize(
    ("values", "own", "kind"),
    [
        ([2**53 + 1], "int64", "float64"),
        ([0.1], "float64", "float32"),
        ([1e300], "float64", "float32"),
        (["inf", "1e39"], "string", "float32"),
        (["1e400"], "string", "float64"),
        ([1.5], "float64", "int64"),
        ([300], "int64", "int8"),
        ([2], "int64", "bool"),
        (["a"], "string", "int32"),
        ([[0.1]], "list<float64>", "list<float32>"),
        ([[1.0]], "list<float64>", "float32[2]"),
        ([1], "timestamp[us]", "date32"),
        ([1], "timestamp[us]", "timestamp[ms]"),
        ([b"\xff"], "binary", "string"),
        ([[1]], "list<int64>", "int64"),
    ],
)
def test_a_cast_that_changes_a_value_is_refused(values: list[Any], own: str, kind: str) -> None:
    with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
        cast_exactly(pa.chunked_array([pa.array(values, arrow_type(own))]), arrow_type(kind))
