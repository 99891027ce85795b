"""Hashes of keys: equal keys have equal ones however they are stored, and different keys have different ones."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar.inference.metrics import keyhash

KEYS: dict[str, list[Any]] = {
    "int32": [1, 2, -3, None],
    "uint64": [1, 2**64 - 1, 2**63, None],
    "bool": [True, False, None],
    "float32": [0.5, 1.5, math.inf, None, math.nan],
    "float16": [0.5, 1.5],
    "string": ["", "a", "b", "a\0", "eight by", "eight byt", "nine byte", None, "é" * 40, "é" * 41],
    "large_binary": [b"", b"\0", b"\0\0", b"12345678", b"123456780", b"123456789", None],
    "date32[day]": [1, 2, None],
    "timestamp[ns]": [1, 10**18, None],
}

_64 = 2**64 - 1
FACTOR, NULL = 0xD6E8FEB86659FD93, 0x9E3779B97F4A7C15


def column(values: Sequence[Any], kind: str) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.type_for_alias(kind))])


def hashed(*columns: pa.ChunkedArray) -> list[int]:
    found = [keyhash.comparable(each) for each in columns]
    return keyhash.hashes(found, len(columns[0])).tolist()


def mixed(word: int) -> int:
    """The finaliser of splitmix64 as it is published, of one word."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _64
    return word ^ (word >> 31)


def of_bytes(value: bytes) -> int:
    """A text's hash, of one value."""
    return int(keyhash.mixed(np.array([value], object))[0])


def of_row(*values: int) -> int:
    """A row's hash, by those of its values."""
    found = len(values)
    for value in values:
        found = mixed((found * FACTOR + value) & _64)
    return found


def test_the_finaliser_is_the_published_one() -> None:
    """The first numbers of splitmix64 with the seed 0."""
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [mixed((index + 1) * NULL & _64) for index in range(3)] == first
    # A whole number is one word.
    whole = pa.chunked_array([pa.array([NULL, 2 * NULL & _64, 3 * NULL & _64], pa.uint64())])
    assert hashed(whole) == [of_row(each) for each in first]


@pytest.mark.parametrize("kind", KEYS)
def test_different_keys_have_different_hashes(kind: str) -> None:
    found = hashed(column(KEYS[kind], kind))
    assert len(set(found)) == len(found)
    assert hashed(column(KEYS[kind][::-1], kind)) == found[::-1]


@settings(max_examples=60)
@given(st.lists(st.text(max_size=20) | st.none(), max_size=40))
def test_the_hash_of_a_text_is_that_of_its_bytes(values: list[str | None]) -> None:
    """In whole columns as in one value, for all lengths, and for a null."""
    expected = [of_row(NULL if value is None else of_bytes(value.encode())) for value in values]
    assert hashed(column(values, "string")) == expected
    part = keyhash.comparable(column(["before", *values, "after"], "string")).slice(1, len(values))
    assert keyhash.hashes([part], len(values)).tolist() == expected


def test_the_hash_of_a_text_is_the_same_in_each_release_of_pandas() -> None:
    """The profiles of two nights are compared by it."""
    assert [of_bytes(each) for each in (b"a", b"")] == [13950350942979735504, 1760245841805064774]


def test_the_hash_of_a_number_is_that_of_its_64_bits() -> None:
    assert hashed(column([5, -1, None], "int8")) == [of_row(mixed(5)), of_row(mixed(_64)), of_row(NULL)]
    bits = int(np.float64(1.5).view(np.uint64))
    assert hashed(column([1.5, None], "float")) == [of_row(mixed(bits)), of_row(NULL)]
    assert hashed(pa.chunked_array([pa.nulls(2)])) == [of_row(NULL)] * 2


def test_a_column_that_was_hashed_is_as_before() -> None:
    """The hash is computed in place, but not in the place of the values."""
    values = keyhash.comparable(column([1, 2, 3], "int64"))
    keyhash.hashes([values], 3)
    assert values.to_pylist() == [1, 2, 3]


def test_equal_keys_have_equal_hashes_however_they_are_stored() -> None:
    texts = ["a", None, "longer than eight", ""]
    plain = hashed(column(texts, "string"))
    assert hashed(pa.chunked_array([pa.array(texts).dictionary_encode()])) == plain
    assert hashed(pa.chunked_array([pa.array(texts[:1]), pa.array(texts[1:], pa.string())])) == plain
    assert hashed(pa.chunked_array([pa.array(["x", *texts]).slice(1)])) == plain
    assert hashed(column([0.0], "double")) == hashed(column([-0.0], "double"))
    assert hashed(column([math.nan], "double")) == hashed(pa.chunked_array([pa.array([-math.nan])]))
    assert hashed(pa.chunked_array([], pa.int64())) == []
    lists = pa.chunked_array([pa.array([[1, 2], [1], None])])
    assert len(set(hashed(lists))) == 3


def test_bytes_of_one_length_are_keys_as_other_bytes_are() -> None:
    """As those of UUIDs."""
    values = [bytes([each] * 16) for each in (0, 1, 255)]
    found = hashed(pa.chunked_array([pa.array([*values, values[0], None], pa.binary(16))]))
    assert len(set(found)) == 4
    assert found[0] == found[3]
    assert found[:3] == hashed(column(values, "binary"))


def test_a_key_of_several_columns_is_their_values_in_order() -> None:
    one, other = column([1, 2, 1], "int64"), column([2, 1, 2], "int64")
    found = hashed(one, other)
    assert found[0] == found[2] != found[1]
    assert found == [of_row(mixed(a), mixed(b)) for a, b in ((1, 2), (2, 1), (1, 2))]


MOMENT = dt.datetime(1970, 1, 2, tzinfo=dt.UTC)


FORMS: list[tuple[list[Any], pa.DataType, pa.DataType, list[Any]]] = [
    ([2**64 - 1, None], pa.uint64(), pa.uint64(), [2**64 - 1, None]),
    ([True, None], pa.bool_(), pa.int64(), [1, None]),
    ([-7, None], pa.int8(), pa.int64(), [-7, None]),
    ([0.5, None, -0.0], pa.float16(), pa.float64(), [0.5, None, 0.0]),
    ([0.5, None], pa.float64(), pa.float64(), [0.5, None]),
    ([3, None], pa.date32(), pa.int64(), [3, None]),
    ([MOMENT, None], pa.date64(), pa.int64(), [86_400_000, None]),
    ([4, None], pa.time32("s"), pa.int64(), [4, None]),
    ([5, None], pa.time64("us"), pa.int64(), [5, None]),
    ([MOMENT, None], pa.timestamp("s", "Europe/Berlin"), pa.int64(), [86_400, None]),
    ([7, None], pa.duration("ms"), pa.int64(), [7, None]),
    (["é", None], pa.string(), pa.binary(), ["é".encode(), None]),
    (["é", None], pa.large_string(), pa.large_binary(), ["é".encode(), None]),
    (["é", None], pa.string_view(), pa.large_binary(), ["é".encode(), None]),
    ([b"\xff", None], pa.binary(), pa.binary(), [b"\xff", None]),
    ([b"b", None], pa.large_binary(), pa.large_binary(), [b"b", None]),
    ([None, None], pa.null(), pa.null(), [None, None]),
    ([Decimal("1.50"), None], pa.decimal128(5, 2), pa.large_binary(), [b"Decimal('1.50')", None]),
    ([b"a\0", None], pa.binary(2), pa.binary(), [b"a\0", None]),
    ([[1, 2], None], pa.list_(pa.int8()), pa.large_binary(), [b"[1, 2]", None]),
    (
        [(1, 2, 3), None],
        pa.month_day_nano_interval(),
        pa.large_binary(),
        [b"MonthDayNano(months=1, days=2, nanoseconds=3)", None],
    ),
]
"""Values, their type, and the type and values by which they are compared."""


@pytest.mark.parametrize(("values", "kind", "as_compared", "compared"), FORMS, ids=[str(each[1]) for each in FORMS])
def test_values_are_compared_in_one_form(
    values: list[Any], kind: pa.DataType, as_compared: pa.DataType, compared: list[Any]
) -> None:
    """Of one chunk, of several, and of none."""
    whole = pa.array(values, kind)
    for chunks in ([whole], [whole.slice(0, 1), whole.slice(1)]):
        found = keyhash.comparable(pa.chunked_array(chunks))
        assert (found.type, found.to_pylist()) == (as_compared, compared)
        assert math.copysign(1, found[-1].as_py() or 0.0) == 1, "there is no negative zero"
    empty = keyhash.comparable(pa.chunked_array([], kind))
    assert (empty.type, len(empty)) == (as_compared, 0)


def test_the_keys_of_some_rows_are_equal_where_their_values_are() -> None:
    numbers = keyhash.comparable(column([1.0, math.nan, -0.0, 0.0, -math.nan, None], "double"))
    texts = keyhash.comparable(column(["a", "b", "c", "c", "b", None], "string"))
    found = list(keyhash.keys([numbers, texts], np.array([1, 4, 2, 3, 5])))
    assert found == [("nan", b"b"), ("nan", b"b"), ("0.0", b"c"), ("0.0", b"c"), (None, None)]


@settings(max_examples=60)
@given(st.lists(st.text(max_size=20) | st.none(), max_size=40))
def test_the_keys_of_rows_are_as_many_as_their_hashes(values: list[str | None]) -> None:
    given = keyhash.comparable(column(values, "string"))
    keys = list(keyhash.keys([given], np.arange(len(values))))
    assert len(set(keys)) == len(set(values)) == len(set(keyhash.hashes([given], len(values)).tolist()))


def test_hashes_are_spread_over_all_ranges() -> None:
    found = keyhash.hashes([keyhash.comparable(column(range(20_000), "int64"))], 20_000)
    high = np.bincount((found >> np.uint64(56)).astype(np.int64), minlength=256)
    assert high.min() > 20_000 / 256 / 2
    assert len(set(found.tolist())) == 20_000


@pytest.mark.parametrize("kind", ["binary", "large_binary"])
def test_bytes_that_are_no_text_are_keys_too(kind: str) -> None:
    values = [b"\xff\x00", b"a", None, b""]
    assert hashed(column(values, kind)) == [
        *(of_row(of_bytes(each)) for each in values[:2]),
        of_row(NULL),
        of_row(of_bytes(b"")),
    ]


@pytest.mark.parametrize("kind", [*KEYS, "binary"])
def test_no_value_has_no_hash(kind: str) -> None:
    assert hashed(column([], kind)) == []
    assert keyhash.hashes_of(keyhash.comparable(column([], kind))).tolist() == []
