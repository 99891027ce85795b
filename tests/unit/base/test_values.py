"""Values of rows as people read them: short, exact where that is short, and never an error of their own."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from nightjar.inference.arrow_types import row_values, shown

MOST = 40


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.1, pa.float32(), "0.1"),
        (float("nan"), pa.float64(), "nan"),
        (None, pa.string(), "null"),
        ("", pa.string(), ""),
        ("a\x1b[31m", pa.large_string(), "a\x1b[31m"),
        ("x" * 1000, pa.string_view(), "x" * 39 + "…"),
        (b"\xff" * 1000, pa.binary(), "b'" + "\\xff" * 9 + "\\…"),
        ([0.1] * 3, pa.list_(pa.float32(), 3), "[0.1, 0.1, 0.1]"),
        (list(range(1000)), pa.list_(pa.int64()), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …"),
        ([["a"], None], pa.list_(pa.list_(pa.string())), "[['a'], null]"),
        ({"a": 1}, pa.struct([("a", pa.int8())]), "{'a': 1}"),
        ("a", pa.dictionary(pa.int32(), pa.string()), "a"),
        (dt.datetime(2026, 11, 21, 3), pa.timestamp("us", "UTC"), "2026-11-21 03:00:00+00:00"),
    ],
)
def test_a_value_is_shown_briefly(value: Any, kind: pa.DataType, text: str) -> None:
    assert shown(pa.array([value], kind)[0], MOST) == text


@pytest.mark.parametrize(
    ("bits", "kind"),
    [
        (pa.array([2**31 - 1], pa.int32()), pa.date32()),
        (pa.array([10**18]), pa.timestamp("s")),
        (pa.array([0]), pa.timestamp("us", "Nowhere/City")),
    ],
    ids=str,
)
def test_what_python_has_no_value_for_is_named_by_its_type(bits: pa.Array, kind: pa.DataType) -> None:
    """A date of the year 5881580 is none of Python's; the other values are shown all the same."""
    assert shown(bits.cast(kind)[0], 60) == f"({kind} that cannot be shown)"


def test_a_row_is_its_columns_by_name_texts_in_quotes() -> None:
    table = pa.table({"id": [1, 2], "name": ["a", "1"], "none": pa.nulls(2)})
    assert row_values(table, 1, MOST) == (("id", "2"), ("name", "'1'"), ("none", "null"))
