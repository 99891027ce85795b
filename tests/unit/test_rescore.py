"""What counts as a difference between two scorings, and which shards are scored twice."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from nightjar.inference.validation.rescore import differences, sample

NAN, INF = math.nan, math.inf


def differing(kind: pa.DataType, before: list[Any], after: list[Any], tolerance: float = 0.0) -> list[int]:
    a, b = (pa.chunked_array([pa.array(values, kind)]) for values in (before, after))
    return [int(row) for row in differences(a, b, tolerance)[0].nonzero()[0]]


@pytest.mark.parametrize(
    ("kind", "before", "after", "rows"),
    [
        (pa.float32(), [1.0, NAN, INF, None, -INF], [1.0, NAN, INF, None, -INF], []),
        (pa.float32(), [1.0, NAN, INF, None, 0.0], [1.5, 1.0, -INF, 0.0, None], [0, 1, 2, 3, 4]),
        (pa.float16(), [1.0, 2.0], [1.0, 3.0], [1]),
        (pa.int64(), [2**60, 5, None], [2**60 + 1, 5, 0], [0, 2]),
        (pa.string(), ["a", "", None], ["a", None, ""], [1, 2]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b"], ["a", "c"], [1]),
        (pa.bool_(), [True, False], [True, True], [1]),
        (pa.timestamp("us", "UTC"), [1, 2], [1, 3], [1]),
        (pa.list_(pa.float32()), [[1.0, NAN], [], None, [2.0]], [[1.0, NAN], [], None, [2.5]], [3]),
        (pa.list_(pa.float32()), [[1.0], [1.0], [], None], [[1.0, 1.0], [1.0], None, []], [0, 2, 3]),
        (pa.list_(pa.float32(), 2), [[1.0, 2.0], None, [3.0, 4.0]], [[1.0, 2.0], None, [3.0, 5.0]], [2]),
        (pa.list_(pa.string()), [["a"], ["b"]], [["a"], ["c"]], [1]),
        (pa.struct([("x", pa.float32())]), [{"x": NAN}, {"x": 1.0}], [{"x": NAN}, {"x": 2.0}], [1]),
        (pa.string_view(), ["a", "b"], ["a", "c"], [1]),
        (pa.float32(), [], [], []),
    ],
    ids=str,
)
def test_every_type_is_compared_by_value(
    kind: pa.DataType, before: list[Any], after: list[Any], rows: list[int]
) -> None:
    assert differing(kind, before, after) == rows


def test_floats_may_differ_by_the_tolerance_and_no_more() -> None:
    """Relative to 1 + size: |a - b| ≤ 0.01 × (1 + |a|)."""
    before, after = [0.0, 0.0, 100.0, 100.0, INF], [0.0099, 0.0101, 101.0, 101.02, 1e30]
    assert differing(pa.float64(), before, after, 0.01) == [1, 3, 4]
    assert differing(pa.list_(pa.float64()), [[0.0, 0.0], [100.0]], [[0.0, 0.0101], [101.0]], 0.01) == [0]
    _, greatest = differences(pa.chunked_array([[1.0, NAN]]), pa.chunked_array([[1.5, NAN]]), 0.5)
    assert greatest == 0.25


def outcomes(shards: int) -> pa.Table:
    names = [f"shard-{index:03d}" for index in range(shards)]
    return pa.table({"shard": names, "rows_out": [0 if index % 10 == 0 else 5 for index in range(shards)]})


def test_the_share_is_of_all_shards_and_never_none() -> None:
    assert sample(outcomes(200), 0.05, "night").num_rows == 10
    assert sample(outcomes(200), 1e-9, "night").num_rows == 1
    assert sample(outcomes(200), 1.0, "night").num_rows == 180
    assert sample(outcomes(1), 1.0, "night").num_rows == 0


def test_each_night_has_a_sample_of_its_own_and_repeating_it_the_same() -> None:
    one, again, other = (sample(outcomes(200), 0.05, night)["shard"].to_pylist() for night in ("a", "a", "b"))
    assert one == again
    assert one != other
    assert one == sorted(one)
