"""`output.exports`: what is published is there once more as CSV and JSON lines, in the same instant."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steps
from lazily import lazily
from nightjar.inference.errors import AuditFailed, JobError
from nightjar.inference.job.sections import EXPORTS
from nightjar.inference.output import exports, latest_view, nights, outcomes, visibility
from nightjar.inference.validation.audit import audit_block
from support import Lake

pl = lazily("polars")

SCALARS = pa.table(
    {
        "id": pa.array([1, -2, None, 9_007_199_254_740_993], pa.int64()),
        "late": pa.array([True, None, False, True]),
        "x": pa.array([1.0, 0.1, None, -3e38], pa.float32()),
        "delay": pa.array([1e300, 1e-300, None, 2.0], pa.float64()),
        "name": pa.array(['a, "b"\r\nc', "", None, " ü\t\\ ☃ "]),
        "kind": pa.array(["x", "y", None, "x"]).dictionary_encode(),
        "day": pa.array([dt.date(2026, 1, 2), None, dt.date(1969, 7, 20), dt.date(2026, 1, 2)]),
        "at": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, 678901), None] * 2, pa.timestamp("us")),
        "zoned": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5), None] * 2, pa.timestamp("ms", "Europe/Berlin")),
        "price": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-0.25"), None], pa.decimal128(9, 2)),
    }
)
"""A column of each kind that CSV has a form for, with the values that readers stumble over."""

TYPES = {
    "id": "BIGINT",
    "late": "BOOLEAN",
    "x": "FLOAT",
    "delay": "DOUBLE",
    "name": "VARCHAR",
    "kind": "VARCHAR",
    "day": "DATE",
    "at": "TIMESTAMP",
    "zoned": "TIMESTAMPTZ",
    "price": "DECIMAL(9, 2)",
}


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as Python values, whatever types carry them; moments in UTC."""

    def plain(value: Any) -> Any:
        return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value

    return [{name: plain(value) for name, value in row.items()} for row in table.to_pylist()]


@pytest.mark.parametrize("form", EXPORTS)
def test_duckdb_reads_the_same_values(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"part.{form}"
    file.write_bytes(exports.encode(form, SCALARS, SCALARS.schema))
    if form.startswith("csv"):
        how = f"read_csv('{file}', columns = {TYPES}, header = true, allow_quoted_nulls = false)"
    else:
        how = f"read_json('{file}', columns = {TYPES}, format = 'newline_delimited')"
    duck = duckdb.connect()
    duck.execute("set timezone = 'UTC'")
    assert rows(duck.sql(f"select * from {how}").to_arrow_table()) == rows(SCALARS)


@pytest.mark.parametrize("form", EXPORTS)
def test_polars_reads_the_same_values(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"part.{form}"
    file.write_bytes(exports.encode(form, SCALARS, SCALARS.schema))
    known = {"id": pl.Int64, "late": pl.Boolean, "x": pl.Float32, "delay": pl.Float64}
    schema = {**dict.fromkeys(SCALARS.column_names, pl.String), **known}
    frame = pl.read_csv(file, schema=schema) if form.startswith("csv") else pl.read_ndjson(file, schema=schema)
    frame = frame.with_columns(
        pl.col("day").str.to_date(),
        pl.col("at").str.to_datetime(),
        pl.col("zoned").str.to_datetime(time_zone="UTC"),
        pl.col("price").cast(pl.Decimal(9, 2)),
    )
    assert rows(frame.to_arrow()) == rows(SCALARS)


@pytest.mark.parametrize("form", EXPORTS)
def test_pandas_reads_the_same_values(tmp_path: Path, form: str) -> None:
    """Without declared types: of numbers, bools and texts. To pandas an empty text in CSV is a missing one."""
    wanted = SCALARS.select(["id", "late", "delay", "name"]).slice(0, 2)
    file = tmp_path / f"part.{form}"
    file.write_bytes(exports.encode(form, wanted, wanted.schema))
    frame = pd.read_csv(file) if form.startswith("csv") else pd.read_json(file, lines=True, precise_float=True)
    assert frame["id"].tolist() == [1, -2]
    assert frame["late"].tolist()[0]
    assert frame["delay"].tolist() == [1e300, 1e-300]
    assert frame["name"].fillna("").tolist() == ['a, "b"\r\nc', ""]


def test_lists_structs_and_what_json_has_no_number_for(tmp_path: Path) -> None:
    nested = pa.table(
        {
            "cells": pa.array([[1, None], [], None], pa.list_(pa.uint8())),
            "vector": pa.array([[1.0, 2.5], None, [float("nan"), float("-inf")]], pa.list_(pa.float32(), 2)),
            "place": pa.array(
                [{'a"b': [{"day": dt.date(2026, 1, 2)}], "t": "x\x00\n"}, None, {'a"b': None, "t": None}],
                pa.struct([('a"b', pa.list_(pa.struct([("day", pa.date32())]))), ("t", pa.string())]),
            ),
        }
    )
    text = bytes(exports.encode("jsonl", nested, nested.schema)).decode()
    assert [json.loads(line) for line in text.splitlines()] == [
        {"cells": [1, None], "vector": [1.0, 2.5], "place": {'a"b': [{"day": "2026-01-02"}], "t": "x\x00\n"}},
        {"cells": [], "vector": None, "place": None},
        {"cells": None, "vector": [None, None], "place": {'a"b': None, "t": None}},
    ]
    middle = bytes(exports.encode("jsonl", nested.slice(1, 1), nested.schema)).decode()
    assert middle == text.splitlines(keepends=True)[1]


def test_a_single_column_has_the_texts_that_it_has_beside_others() -> None:
    found = exports.encode("csv", (alone := SCALARS.select(["zoned"])), alone.schema).to_pybytes()
    assert found == b'"zoned"\n"2026-01-02 03:04:05.000Z"\n""\n' + b'"2026-01-02 03:04:05.000Z"\n""\n'


def test_a_null_in_a_single_column_is_a_line_that_no_reader_takes_for_blank() -> None:
    one = pa.table({"score": pa.array([1.5, None], pa.float32())})
    assert bytes(exports.encode("csv", one, one.schema)) == b'"score"\n"1.5"\n""\n'


@pytest.mark.parametrize(
    ("form", "kind", "said"),
    [
        (
            "csv",
            "list<float32>",
            r"output\.exports: csv cannot hold the column 'vec', which is list<float32>; write jsonl",
        ),
        (
            "csv.gz",
            "struct<a: string>",
            r"csv\.gz cannot hold the column 'vec', which is struct<a: string>; write jsonl",
        ),
        ("csv", "binary", "csv cannot hold the column 'vec', which is binary; leave it out of carry or model.outputs"),
        ("jsonl", "binary", "jsonl cannot hold the column 'vec', which is binary; leave it out"),
        ("jsonl", "list<binary>", "jsonl cannot hold the column 'vec', which is list<binary>; leave it out"),
        ("jsonl", "float32[2, 2]", r"jsonl cannot hold the column 'vec', which is float32\[2, 2\]; leave it out"),
    ],
)
def test_a_column_that_a_form_cannot_hold_is_refused_before_anything_is_scored(
    lake: Lake, form: str, kind: str, said: str
) -> None:
    lake.ready(output__exports=[form], model__outputs={"score": "float32", "vec": kind})
    with pytest.raises(JobError, match=said):
        lake.run()
    assert not lake.out.exists()


def exported(lake: Lake, form: str) -> pd.DataFrame:
    """What a reader of an export sees, in the order of the files."""
    request = lake.request()
    found = nights.published(request.storage, request.output, None).exports[form]
    read = pd.read_csv if form.startswith("csv") else lambda uri: pd.read_json(uri, lines=True)
    return pd.concat([read(uri) for uri in found], ignore_index=True)


def test_exports_are_published_with_the_parts_and_taken_back_with_them(lake: Lake) -> None:
    lake.ready(output__exports=["csv", "jsonl.gz"])
    lake.run()
    wanted = lake.published()
    for form in ("csv", "jsonl.gz"):
        pd.testing.assert_frame_equal(exported(lake, form), wanted, check_dtype=False)
    latest = lake.out / "latest"
    listed = json.loads((latest / "files.json").read_text())
    assert [Path(uri).name for uri in listed["exports"]["csv"]] == [
        f"{Path(file['uri']).stem}.csv" for file in listed["files"]
    ]
    for form in ("csv", "jsonl.gz"):
        assert sorted(map(str, (latest / form).resolve().iterdir())) == sorted(listed["exports"][form])
    assert not (latest / "jsonl").is_symlink()
    request = lake.request()
    visibility.unpublish(request.storage, request.output, request.run_id)
    latest_view.refresh(request.storage, request.output, "lake")
    assert "exports" not in json.loads((latest / "files.json").read_text())
    assert not (latest / "csv").is_symlink()


def test_nothing_but_what_is_published_is_left_beside_the_parts(lake: Lake) -> None:
    """Exports without a committed part are swept with such parts; a continued run keeps and copies the others."""
    lake.ready(output__exports=["csv.gz"])
    lake.run()
    (name,) = {path.name for path in (lake.revision() / "exports").iterdir()}
    stray = lake.revision(2) / "exports" / name / f"{'0' * 20}-000001-00000000.csv.gz"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"of an attempt that died before its part was there")
    (lake.folder / "data" / "part-03.parquet").unlink()
    ran = lake.run()
    assert ran.scored.progress.reused_shards == 6
    assert not stray.exists()
    parts = {path.stem for path in (lake.revision(2) / "data").iterdir()}
    assert {path.name.partition(".")[0] for path in stray.parent.iterdir()} == parts
    assert exported(lake, name)["id"].tolist() == list(range(6000))


@pytest.mark.parametrize("harm", ["changed", "gone"])
def test_a_damaged_export_is_found_by_the_audit_and_its_shard_scored_again(lake: Lake, harm: str) -> None:
    lake.ready(output__exports=["csv"])
    request = lake.request()
    found = steps.discover(request)
    scored = steps.score(request, found)
    first = min((lake.revision() / "exports" / "csv").iterdir())
    if harm == "gone":
        first.unlink()
    else:
        first.write_bytes(first.read_bytes()[:-2] + b"x\n")
    with pytest.raises(AuditFailed, match=r"exports/csv/.*Repeat the command: it scores this shard again"):
        steps.validate(request, scored, found)
    assert not (lake.out / "publications").exists()
    lake.run()
    assert exported(lake, "csv")["name"].tolist() == [f"row {index}" for index in range(8000)]


def test_exports_that_are_asked_for_later_are_made_of_every_shard(lake: Lake) -> None:
    """No result is reused that lacks them."""
    lake.ready()
    lake.run()
    lake.write_job(output__exports=["csv"])
    assert lake.run().scored.again == ("output.exports changed in the job: 8 of 8 shards are scored again",)
    assert len(exported(lake, "csv")) == 8000
    footer = pq.read_metadata(min((lake.revision(2) / "data").iterdir())).metadata
    assert list(exports.named_in(footer)) == ["csv"]


def test_a_part_that_lacks_an_export_of_the_job_is_found(lake: Lake) -> None:
    lake.ready(output__exports=["csv"])
    lake.run()
    request = lake.request()
    lines = list(outcomes.lines(outcomes.read(next(lake.revision().glob("shards-*.parquet")).read_bytes())))
    assert not audit_block(request.storage, str(lake.revision()), request.job, lines).problems
    more = lake.ready(output__exports=["csv", "jsonl"]).request().job
    found = audit_block(request.storage, str(lake.revision()), more, lines)
    assert found.problems == 8
    assert all("found ['csv'], the receipt says ['csv', 'jsonl']" in why for why in found.damaged.values())
