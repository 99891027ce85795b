"""`input.where` compares numbers and times as mathematics has them, whichever type Arrow would compare them in."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.input.sources.reading import describe, read_piece
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.outputtypes import type_name
from nightjar.inference.job.where import condition, on_some
from nightjar.inference.records import Piece
from nightjar.inference.storage.lake import LakeStorage

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
LIMIT = 2**53  # from here on not every integer is a float
INTEGERS: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-128, 0, 127, None],
    pa.int32(): [-(2**31), -1, 2**24 + 1, 2**31 - 1, None],
    pa.uint32(): [0, 2**24 + 1, 2**32 - 1],
    pa.int64(): [-(2**63), -LIMIT - 1, -1, 0, 1, LIMIT, LIMIT + 1, 2**63 - 1, None],
    pa.uint64(): [0, 1, LIMIT + 1, 2**63 - 1, 2**63, 2**64 - 1, None],
}
FLOATS: dict[pa.DataType, list[Any]] = {
    pa.float32(): [-1.5, -0.0, 0.5, 2.0**24, 2.0**63, math.inf, math.nan, None],
    pa.float64(): [-math.inf, -1e300, -(2.0**63), -0.5, 5e-324, 1.0, 2.0**53, 2.0**63, 2.0**64, 1e300, math.nan, None],
}
TIMES: dict[pa.DataType, list[Any]] = {
    pa.timestamp("s"): [-(2**63) + 1, -(10**9), -1, 0, 1, 253402214400, 2**63 - 1, None],
    pa.timestamp("us"): [-(2**63) + 1, -(10**6), -1, 0, 10**6, 253402214400 * 10**6, 2**63 - 1, None],
    pa.timestamp("ns"): [-(2**63) + 1, -(10**9) + 1, -1, 0, 10**9, 10**9 + 1, 2**63 - 1, None],
}
INSTANTS = {
    pa.timestamp(kind.unit, zone): values
    for (kind, values), zone in zip(TIMES.items(), ("UTC", "Europe/Berlin", "-03:30"), strict=True)
}
PAIRS = [*permutations([*INTEGERS, *FLOATS], 2), *permutations(TIMES, 2), *permutations(INSTANTS, 2)]
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(values, kind)


def numbers(kind: pa.DataType, values: list[Any]) -> list[Any]:
    """The values as numbers that Python compares exactly."""
    if pa.types.is_timestamp(kind):
        return [None if value is None else value * NANOSECONDS[kind.unit] for value in values]
    return values


def rows(where: str, table: pa.Table) -> list[int]:
    return [int(row) for row in np.flatnonzero(condition(where, table.schema).mask(table))]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=str)
def test_two_columns_are_compared_exactly_whatever_their_types(one: pa.DataType, other: pa.DataType) -> None:
    """Also where a value of one is none of the other's type; of two columns of which one is null, nobody knows."""
    values = INTEGERS | FLOATS | TIMES | INSTANTS
    pairs = list(product(values[one], values[other]))
    left, right = (list(side) for side in zip(*pairs, strict=True))
    halves = pa.chunked_array([array(other, right[:5]), array(other, right[5:])])
    table = pa.table({"a": array(one, left), "b": halves})
    compared = list(enumerate(zip(numbers(one, left), numbers(other, right), strict=True)))
    for sign, holds in OPERATORS.items():
        known = {row: holds(a, b) for row, (a, b) in compared if a is not None and b is not None}
        assert rows(f"a {sign} b", table) == [row for row, true in known.items() if true], sign
        assert rows(f"NOT a {sign} b", table) == [row for row, true in known.items() if not true], sign


FRACTIONS = ["0.5", "-0.5", "1e-30", "127.5", "-128.5", "9007199254740992.5", "18446744073709551615.5", f"-{10**20}.1"]


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
@pytest.mark.parametrize("written", FRACTIONS)
def test_integers_are_compared_exactly_with_a_fraction(kind: pa.DataType, written: str) -> None:
    """Also with one that no float is, or that lies beyond all integers of the type."""
    values, fraction = INTEGERS[kind], Fraction(written)
    table = pa.table({"a": pa.array(values, kind)})
    for sign, holds in OPERATORS.items():
        known = {row: holds(value, fraction) for row, value in enumerate(values) if value is not None}
        assert rows(f"a {sign} {written}", table) == [row for row, true in known.items() if true], sign
        assert rows(f"NOT a {sign} {written}", table) == [row for row, true in known.items() if not true], sign


BIG = pa.table({"a": pa.array([LIMIT, LIMIT + 1, LIMIT + 2, 1, 2, None], pa.int64())})


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("a BETWEEN 1.5 AND 9007199254740992.5", [0, 4]),
        ("a NOT BETWEEN 1.5 AND 9007199254740992.5", [1, 2, 3]),
        ("a IN (9007199254740993, 2.5)", [1]),
        ("a NOT IN (9007199254740993, 2.5)", [0, 2, 3, 4]),
        ("a IN (2.5, 1.0, 9.007199254740993e15)", [1, 3]),
        ("a IN (2.5)", []),
        ("a NOT IN (2.5, 0.5)", [0, 1, 2, 3, 4]),
        ("NOT a IN (2.5) OR a IS NULL", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_list_or_a_range_for_integers_may_have_fractions(where: str, wanted: list[int]) -> None:
    """A fraction in a list equals no integer. A null is neither in a list nor not in it."""
    for kind in (pa.int64(), pa.uint64()):
        table = BIG.cast(pa.schema([("a", kind)]))
        assert rows(where, table) == wanted
        assert rows(where, pa.table({"a": table["a"].dictionary_encode()})) == wanted


def test_a_number_of_a_billion_digits_is_refused_at_once() -> None:
    with pytest.raises(JobError, match=r"^input\.where: .*'a' is int64, and 1e999999999 is no value of that type"):
        condition("a IN (1, 1e999999999)", BIG.schema)


def test_a_list_may_have_decimals_that_the_column_cannot_have() -> None:
    """They equal none of its values, and no one type has them all."""
    table = pa.table({"price": pa.array([Decimal("1.12"), Decimal("2.25"), None], pa.decimal128(9, 2))})
    assert rows("price IN (1.123, 1e60, 1e-60, 2.25)", table) == [1]
    assert rows("price NOT IN (1.123, 1e60, 1e-60, 2.25)", table) == [0]


@pytest.mark.parametrize("kind", [pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(9, 2), pa.decimal256(60, 2)])
def test_a_list_of_decimals_is_looked_for_in_decimals_of_any_size(kind: pa.DataType) -> None:
    table = pa.table({"price": pa.array([Decimal("1.12"), Decimal("2.25"), None], kind)})
    assert rows("price IN (2.25, 3)", table) == rows("price = 2.25", table) == rows("price > 1.12", table) == [1]
    assert rows("price NOT IN (2.25, 1e60)", table) == [0]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_a_fraction_is_the_nearest_value_of_the_column(kind: pa.DataType) -> None:
    values = pa.array([0.1, 0.5, None, 1.0], pa.float64()).cast(kind)
    for table in (pa.table({"f": values}), pa.table({"f": values.dictionary_encode()})):
        assert rows("f = 0.1", table) == rows("f IN (0.1, 7)", table) == rows("f BETWEEN 0.1 AND 0.1", table) == [0]
        assert rows("f > 0.1", table) == rows("f <> 0.1", table) == [1, 3]


STATISTICS = pa.table(
    {
        "a": pa.array([1, 2, LIMIT, LIMIT + 1, LIMIT + 2, LIMIT + 3, None, None, -3, None], pa.int64()),
        "f": pa.array([1.5, math.nan, math.nan, math.nan, -0.0, -0.0, 7.0, None, None, None], pa.float64()),
        "end": array(pa.timestamp("us"), [0, 1, 2, 253402214400 * 10**6, 5, 6, 7, 8, 9, None]),
        "made": array(pa.timestamp("ns"), [1000 * row for row in range(10)]),
    }
)
"""In row groups of two rows."""


@pytest.mark.parametrize(
    ("where", "read"),
    [
        ("a > 1.5", {0, 1, 2}),
        ("a < 9007199254740992.5", {0, 1, 4}),
        ("a = 1.5", set()),
        ("a = 1.5 OR a <= -2.5", {4}),
        ("a BETWEEN 1.5 AND 9007199254740993.5", {0, 1}),
        ("a IN (2.5, 9007199254740993)", {1}),
        ("a IN (2.5)", set()),
        ("a > -9223372036854775809.5", {0, 1, 2, 4}),
        ("f >= 1", {0, 1, 3}),
        ("f IN (0, 7)", {1, 2, 3}),
        ("f BETWEEN 1 AND 2", {0, 1}),
        ("f <> 1.5", {0, 1, 2, 3, 4}),
        ("a > f", {0, 1, 2, 3, 4}),
        ("end > made AND a < 0", {4}),
    ],
)
def test_row_groups_that_statistics_rule_out_have_no_row_that_matches(
    where: str, read: set[int], tmp_path: Path
) -> None:
    """NaN is in no statistics, so a group of nothing else is read. Columns of two types rule out nothing, and leave the
    other conditions what they rule out.
    """
    pq.write_table(STATISTICS, tmp_path / "x.parquet", row_group_size=2)
    file = ds.ParquetFileFormat().make_fragment(tmp_path / "x.parquet", filesystem=fs.LocalFileSystem())
    wanted = condition(where, STATISTICS.schema).expression(STATISTICS.column_names)
    kept = file.row_groups if wanted is None else file.subset(wanted, schema=STATISTICS.schema).row_groups
    assert {group.id for group in kept} == read
    assert {row // 2 for row in rows(where, STATISTICS)} <= read


def test_a_file_with_values_of_any_size_is_no_damaged_file(tmp_path: Path) -> None:
    pq.write_table(STATISTICS, tmp_path / "x.parquet", row_group_size=2)
    described = {
        "name": "t",
        "model": {"uses": "m:f", "outputs": {"y": "float64"}},
        "output": {"uri": "out"},
    }
    storage = LakeStorage()
    entry = storage.stat(str(tmp_path / "x.parquet"))
    for where, kept in {"end > made": [3, 4, 5, 6, 7, 8], "a > 0.5": [0, 1, 2, 3, 4, 5], "a > f": [4, 5]}.items():
        job = parse_job({**described, "input": {"uri": "x.parquet", "where": where}}, tmp_path / "job.yaml")
        units = describe(storage, job, entry).rows
        piece = Piece(entry.uri, entry.size, entry.version, 0, sum(units), (0, len(units)))
        found = read_piece(storage, job, piece, STATISTICS.schema)
        assert [found.index(row) for row in range(len(found.table))] == kept


@pytest.mark.parametrize(
    ("unit", "exact", "finer"),
    [("s", "", ".5"), ("ms", ".125", ".1255"), ("us", ".000125", ".0001255"), ("ns", ".000000125", ".0000001255")],
)
def test_a_time_finer_than_the_column_is_no_value_of_it(unit: str, exact: str, finer: str) -> None:
    """As a timestamp that is finer than its column. It took the rows of the time that it was cut off to."""
    ticks = [36_000 * 10**9 // NANOSECONDS[unit] + tick for tick in (0, 125, 126)]
    kind = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    table = pa.table({"t": pa.array(ticks, kind)})
    wanted = [1] if exact else [0]
    for written in (f"10:00:00{exact}", f"10:00:00{exact or '.'}000", f"T100000{exact}"):
        assert rows(f"t = '{written}'", table) == wanted
        assert rows(f"t IN ('{written}', '09:00')", table) == wanted
    for where in ("t = '{}'", "t >= '{}'", "t IN ('{}')", "t BETWEEN '09:00' AND '{}'"):
        with pytest.raises(JobError, match=rf"'t' is {re.escape(type_name(kind))}, and .* is no value of that type"):
            condition(where.format(f"10:00:00{finer}"), table.schema)


def test_what_arrow_cannot_compare_after_all_is_told_of_the_condition() -> None:
    """Its place and its key: the file can be read."""
    bound = condition("f > 0 AND a > 1", STATISTICS.schema)
    with pytest.raises(JobError, match=r"^input\.where: at character 11: 'a > 1' cannot be compared in these types: "):
        bound.mask(pa.table({"a": ["x"], "f": [1.5]}))


def test_a_file_is_left_out_by_a_time_that_python_cannot_write() -> None:
    bound = on_some("day < '2026-11-01'", pa.schema([("day", pa.timestamp("us"))]))
    assert bound is not None
    assert bound.excludes({"day": pa.scalar(2**60, pa.timestamp("us"))})
    assert not bound.excludes({"day": pa.scalar(-(2**60), pa.timestamp("us"))})
