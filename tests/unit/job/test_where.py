"""`input.where`: what a condition means, compared with DuckDB, and what is said about one that is not understood."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.where import columns_of, condition, on_some

DAYS = [dt.date(2026, 11, day) for day in (1, 2, 3)]
TABLE = pa.table(
    {
        "id": pa.array(range(12), pa.int64()),
        "x": pa.array([1.5, None, -2.0, 0.0] * 3, pa.float64()),
        "small": pa.array([1, 2, None, 4] * 3, pa.int8()),
        "country": pa.array(["de", "fr", None, "d_%"] * 3),
        "coded": pa.array(["a", "b", None] * 4).dictionary_encode(),
        "flag": pa.array([True, False, None] * 4),
        "other": pa.array([False, None, True, True] * 3),
        "day": pa.array([*DAYS, None] * 3, pa.date32()),
        "moment": pa.array(
            [dt.datetime(2026, 11, 1, hour) if hour % 5 else None for hour in range(12)], pa.timestamp("us")
        ),
        "zero": pa.array([0.0, -0.0, 7.0, None] * 3),
        "half": pa.array([0.5, None, 2.0] * 4, pa.float16()),
        "view": pa.array(["k1", "k2", None] * 4, pa.string_view()),
        "time": pa.array([dt.time(1, 2, 3), dt.time(0), None] * 4, pa.time64("us")),
        "price": pa.array([Decimal("1.10"), Decimal("2.25"), None] * 4, pa.decimal128(9, 2)),
        "a name": pa.array([1, None, 3] * 4),
    }
)

CONDITIONS = [
    "country = 'de'",
    "country <> 'de'",
    "NOT country = 'de'",
    "country IN ('de', 'fr')",
    "country NOT IN ('de')",
    "NOT (country IN ('de') OR x > 0)",
    "country LIKE 'd%'",
    "country NOT LIKE 'd%'",
    "country ILIKE 'D_'",
    "country IS NULL OR x IS NOT NULL",
    "x > -2 AND x <= 1.5",
    "0 < x",
    "x BETWEEN -2 AND 0",
    "x NOT BETWEEN -2 AND 0",
    "small >= 2",
    "small IN (1, 4)",
    "small > id",
    "flag",
    "NOT flag",
    "flag AND other",
    "flag OR other",
    "NOT (flag AND other)",
    "flag IS TRUE",
    "flag IS NOT TRUE",
    "flag = false",
    "coded = 'a'",
    "coded IN ('b') OR coded IS NULL",
    "day >= '2026-11-02'",
    "day = DATE '2026-11-03'",
    "moment < TIMESTAMP '2026-11-01 06:00:00'",
    "zero IN (0, 7)",
    "zero NOT IN (-0.0, 1)",
    "zero = 0",
    "half > 0.5 OR half IN (0.5)",
    "view = 'k1' OR view IN ('k2', 'x')",
    "view LIKE 'k%'",
    "price > 1.1",
    "price IN (2.25, 3)",
    '"a name" = 3',
    "(country = 'de') AND ((x > 1) OR (id = 8))",
]


def rows(where: str) -> list[int]:
    return [int(row) for row in np.flatnonzero(condition(where, TABLE.schema).mask(TABLE))]


@pytest.mark.parametrize("where", CONDITIONS)
def test_a_condition_means_what_it_means_to_a_database(where: str) -> None:
    table = TABLE.set_column(4, "coded", TABLE["coded"].cast(pa.string()))
    half = table.column_names.index("half")
    table = table.set_column(half, "half", TABLE["half"].cast(pa.float32()))  # DuckDB has no half floats
    wanted = [row for (row,) in duckdb.from_arrow(table).filter(where).project("id").order("id").fetchall()]
    assert rows(where) == wanted
    assert 0 < len(wanted) < 12, "it takes some rows and leaves out some, so that the test can fail"


PATHS = pa.table({"path": ["C:\\temp\\x", "C:\\TEMP", "C:%", "C:\\", "\\", "a.b\\\n", "a_b\\é", "\\%\\_", "", None]})


@pytest.mark.parametrize(
    "pattern",
    [
        "C:\\%",
        "C:\\temp%",
        "C:\\temp\\_",
        "%\\temp%",
        "%\\",
        "\\",
        "\\%",
        "\\_",
        "\\%\\_",
        "C:\\\\%",
        "a.b\\%",
        "a_b\\_",
        "[\\",
    ],
)
def test_a_backslash_in_a_pattern_is_a_letter(pattern: str) -> None:
    """As in any database. Arrow's own LIKE takes it for an escape in some patterns."""
    for operator in ("LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"):
        where = f"path {operator} '{pattern}'"
        wanted = [path for (path,) in duckdb.from_arrow(PATHS).filter(where).fetchall()]
        for kind in (pa.string(), pa.large_string(), pa.string_view()):
            table = pa.table({"path": PATHS["path"].cast(kind)})
            mask = condition(where, table.schema).mask(table)
            assert PATHS.filter(pa.array(mask))["path"].to_pylist() == wanted, where


def test_its_columns_are_named_once_in_their_order() -> None:
    assert columns_of("b = 1 AND (a = 2 OR b = 3)") == ("b", "a")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("", "this is not one condition"),
        ("country = ", "a value or a condition is missing; write column = value"),
        ("country = 'de' adn x = 1", "at 'x': Unexpected token"),
        ("(id = 1", "Expecting )"),
        ("country = 'de", "is a quote or a bracket left open"),
        ("id = 1; id = 2", "this is not one condition"),
        ("SELECT 1", "'SELECT 1' cannot be part of a condition here"),
        ("lower(country) = 'de'", "compares no column"),
        ("id + 1 = 2", "compares no column"),
        ("id = id + 1", "'id + 1' is no value"),
        ("1 = 1", "compares no column"),
        ("x = NULL", "a comparison of 'x' with NULL is never true; write x IS NULL"),
        ("id IN (SELECT 1)", "cannot be part of a condition here"),
        ("place.of = 1", "'place.of': only whole columns can be compared"),
        ("country LIKE x", "write column LIKE 'text%'"),
        ("x BETWEEN SYMMETRIC 2 AND 1", "cannot be part of a condition here"),
        ("country LIKE 'a' ESCAPE 'b'", "cannot be part of a condition here"),
        ("id IN UNNEST(tags)", "cannot be part of a condition here"),
        ("x IS DISTINCT FROM 1", "cannot be part of a condition here"),
        ("id = 1 XOR id = 2", "Unexpected token"),
        ("EXISTS (SELECT 1)", "cannot be part of a condition here"),
        (f"{'(' * 500}id = 1{')' * 500}", "nested too deeply"),
        (f"{'NOT ' * 1000}flag", "nested too deeply"),
    ],
)
def test_what_is_no_condition_is_told_when_the_job_is_read(tmp_path: Path, where: str, said: str) -> None:
    job = {
        "name": "t",
        "input": {"uri": "data/", "where": where},
        "model": {"uses": "m:f", "outputs": {"y": "float64"}},
        "output": {"uri": "out"},
    }
    with pytest.raises(JobError, match=rf"job\.yaml: input\.where: .*{re.escape(said)}"):
        parse_job(job, tmp_path / "job.yaml")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("id = 1 AND contry = 'de'", "'contry' is not a column of the input; did you mean 'country'?"),
        ("country = 1", "'country' is string, and 1 is no value of that type"),
        ("id = 'x'", "'id' is int64, and 'x' is no value of that type"),
        ("small = 300", "'small' is int8, and 300 is no value of that type"),
        ("day > 'yesterday'", "'day' is date32, and 'yesterday' is no value of that type"),
        ("flag = 1", "'flag' is bool, and 1 is no value of that type"),
        ("x", "'x' is float64, so it is no condition by itself; compare it"),
        ("x LIKE '1%'", "LIKE compares a column of text"),
        ("x = country", "'x' is float64 and 'country' is string; they do not compare"),
        ("small >= 2.5", "'small' is int8, and 2.5 is no value of that type"),
        ("time > '01:00:00'", "'time' is time64[us], which input.where cannot compare"),
        ("wide = 1111111111111111111111111111111", "is no value of that type"),
        (
            "there = here",
            "'there' is timestamp[us, UTC] and 'here' is timestamp[us, Europe/Berlin]; they do not compare",
        ),
        ("tags = 1", "'tags' is list<int64>, which input.where cannot compare"),
    ],
)
def test_columns_and_types_that_do_not_fit_are_told(where: str, said: str) -> None:
    times = [pa.field(name, pa.timestamp("us", zone)) for name, zone in (("there", "UTC"), ("here", "Europe/Berlin"))]
    more = [*times, pa.field("tags", pa.list_(pa.int64())), pa.field("wide", pa.decimal128(38, 10))]
    schema = pa.schema([*TABLE.schema, *more])
    with pytest.raises(JobError, match=rf"^input\.where: .*{re.escape(said)}"):
        condition(where, schema)


@pytest.mark.parametrize("each", ["id = {}", "(id = {} AND country = 'de')", "NOT (id <> {} OR flag IS NULL)"])
def test_a_condition_may_be_as_long_as_a_list_of_ids(each: str) -> None:
    wanted = [row for row in rows(each.format(4)) + rows(each.format(9)) if row in (4, 9)]
    assert (
        rows(" OR ".join(each.format(4 if at == 600 else 9 if at == 1199 else -at - 1) for at in range(1200))) == wanted
    )
    assert rows(f"NOT ({' AND '.join(f'NOT ({each.format(at)})' for at in range(1100))})") == rows(
        " OR ".join(each.format(at) for at in range(12))
    )


def test_what_a_path_says_decides_alone_only_where_and_joins_it_with_the_rest() -> None:
    paths = pa.schema([("country", pa.string())])
    fr = {"country": pa.scalar("fr")}
    for where, excluded in (("country = 'de' AND id > 5", True), ("country = 'de' OR id > 5", False)):
        found = on_some(where, paths)
        assert (found is not None and found.excludes(fr)) == excluded
    assert on_some("country = 'de'", paths).excludes({"country": pa.scalar(None, pa.string())})  # type: ignore[union-attr]
    assert on_some("id > 5", paths) is None
