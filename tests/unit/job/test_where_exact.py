"""`input.where` compares numbers and times exactly, or refuses them; it never rounds."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import Decimal
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
from nightjar.inference.job.where import condition, on_some

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
INSTANTS = {pa.timestamp(kind.unit, "Europe/Berlin"): values for kind, values in TIMES.items()}
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
def test_two_columns_are_compared_exactly_or_refused(one: pa.DataType, other: pa.DataType) -> None:
    """A value that the common type lacks is an error, and never rounded. Small values of all types compare."""
    values = INTEGERS | FLOATS | TIMES | INSTANTS
    pairs = list(product(values[one], values[other]))
    try:
        check_exact(one, other, pairs)
    except JobError as error:
        assert "cannot be compared in these types" in str(error)
        small = [(a, b) for a, b in pairs if is_small(a) and is_small(b)]
        assert small
        check_exact(one, other, small)


def is_small(value: Any) -> bool:
    return value is None or 0 <= value < 2**20


def check_exact(one: pa.DataType, other: pa.DataType, pairs: list[tuple[Any, Any]]) -> None:
    left, right = (list(side) for side in zip(*pairs, strict=True))
    table = pa.table({"a": array(one, left), "b": pa.chunked_array([array(other, right[:2]), array(other, right[2:])])})
    compared = list(enumerate(zip(numbers(one, left), numbers(other, right), strict=True)))
    for sign, holds in OPERATORS.items():
        known = {row: holds(a, b) for row, (a, b) in compared if a is not None and b is not None}
        assert rows(f"a {sign} b", table) == [row for row, true in known.items() if true], sign
        assert rows(f"NOT a {sign} b", table) == [row for row, true in known.items() if not true], sign


BIG = pa.table({"a": pa.array([LIMIT, LIMIT + 1, LIMIT + 2, 1, 2, None], pa.int64())})


@pytest.mark.parametrize("where", ["a > 1.5", "a BETWEEN 1 AND 2.5", "a IN (1, 2.5)"])
def test_a_fraction_is_no_value_of_a_column_of_integers(where: str) -> None:
    with pytest.raises(JobError, match=r"^input\.where: .*'a' is int64, and \d\.5 is no value of that type"):
        condition(where, BIG.schema)


def test_large_integers_in_a_list_are_not_rounded() -> None:
    for kind in (pa.int64(), pa.uint64()):
        table = BIG.cast(pa.schema([("a", kind)]))
        for one in (table, pa.table({"a": table["a"].dictionary_encode()})):
            assert rows("a IN (9007199254740993, 1)", one) == [1, 3]
            assert rows("a NOT IN (9007199254740993)", one) == [0, 2, 3, 4]


def test_a_number_of_a_billion_digits_is_refused_at_once() -> None:
    with pytest.raises(JobError, match=r"^input\.where: .*'a' is int64, and 1e999999999 is no value of that type"):
        condition("a IN (1, 1e999999999)", BIG.schema)


@pytest.mark.parametrize("where", ["price > 1.123", "price IN (2.25, 1e60)"])
def test_a_decimal_with_more_digits_is_no_value_of_the_column(where: str) -> None:
    with pytest.raises(JobError, match=r"'price' is decimal128\(9, 2\), and .* is no value of that type"):
        condition(where, pa.schema([("price", pa.decimal128(9, 2))]))


@pytest.mark.parametrize("kind", [pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(9, 2), pa.decimal256(60, 2)])
def test_a_list_of_decimals_is_looked_for_in_decimals_of_any_size(kind: pa.DataType) -> None:
    table = pa.table({"price": pa.array([Decimal("1.12"), Decimal("2.25"), None], kind)})
    assert rows("price IN (2.25, 3)", table) == rows("price = 2.25", table) == rows("price > 1.12", table) == [1]
    assert rows("price NOT IN (2.25, 1e1)", table) == [0]


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
        "i": pa.array(range(10), pa.int32()),
    }
)
"""In row groups of two rows."""


@pytest.mark.parametrize(
    ("where", "read"),
    [
        ("a > 1", {0, 1, 2}),
        ("a < 9007199254740993", {0, 1, 4}),
        ("a = 5", set()),
        ("a = 5 OR a <= -3", {4}),
        ("a BETWEEN 2 AND 9007199254740993", {0, 1}),
        ("a IN (5, 9007199254740993)", {1}),
        ("f >= 1", {0, 1, 3}),
        ("f IN (0, 7)", {1, 2, 3}),
        ("f BETWEEN 1 AND 2", {0, 1}),
        ("f <> 1.5", {0, 1, 2, 3, 4}),
        ("i > f", {0, 1, 2, 3, 4}),
        ("i > f AND a < 0", {4}),
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


def test_what_arrow_cannot_compare_after_all_is_told_of_the_condition() -> None:
    """With its key: the file can be read."""
    bound = condition("f > 0 AND a > 1", STATISTICS.schema)
    with pytest.raises(JobError, match=r"^input\.where: 'a > 1' cannot be compared in these types: "):
        bound.mask(pa.table({"a": ["x"], "f": [1.5]}))


def test_a_file_is_left_out_by_a_time_that_python_cannot_write() -> None:
    bound = on_some("day < '2026-11-01'", pa.schema([("day", pa.timestamp("us"))]))
    assert bound is not None
    assert bound.excludes({"day": pa.scalar(2**60, pa.timestamp("us"))})
    assert not bound.excludes({"day": pa.scalar(-(2**60), pa.timestamp("us"))})
