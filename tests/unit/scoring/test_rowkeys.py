"""A row's key is a function of the row's values and the secret alone, and no two rows of a million share one."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nightjar.inference.scoring import rowkeys
from nightjar.inference.scoring.rowkeys import has_key, row_keys

SECRET = b"sixteen bytes !!"

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False, None]),
    "int8": (pa.int8(), [-1, 0, 1, 127, None]),
    "uint64": (pa.uint64(), [0, 1, 2**63, 2**64 - 1, None]),
    "int64": (pa.int64(), [-(2**63), -1, 0, 1, 2**32, None]),
    "float16": (pa.float16(), [0.5, -0.5, None]),
    "float32": (pa.float32(), [0.0, -0.0, 1.5, float("inf"), None]),
    "float64": (pa.float64(), [0.0, -0.0, 0.1, 0.1 + 1e-17 * 8, float("nan"), None]),
    "date": (pa.date32(), [dt.date(2026, 1, 1), dt.date(2026, 1, 2), None]),
    "timestamp": (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None]),
    "decimal": (pa.decimal128(20, 2), [decimal.Decimal("1.00"), decimal.Decimal("1.01"), None]),
    "string": (pa.string(), ["", "a", "b", "ab", "\0", None]),
    "binary": (pa.binary(), [b"", b"\xff", b"\0", None]),
    "fixed binary": (pa.binary(2), [b"ab", b"ba", b"\0\0", None]),
    "view": (pa.string_view(), ["", "a view of more than twelve bytes", None]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["x", "y", None]),
    "list": (pa.list_(pa.float32()), [[], [0.0], [None], [0.0, 0.0], [1.0, None], [None, 1.0], None]),
    "vector": (pa.list_(pa.float32(), 2), [[0.0, 1.0], [1.0, 0.0], [None, 1.0], [0.0, None], None]),
    "texts": (pa.list_(pa.string()), [[], ["a", "b"], ["ab"], [None], None]),
    "lists": (pa.list_(pa.list_(pa.float32())), [[], [[]], [[1.0], [2.0]], [[1.0, 2.0]], [None], None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", None)], [("a", 1), ("b", 1)], None]),
    "nanoseconds inside": (pa.struct([("at", pa.time64("ns"))]), [{"at": 1000}, {"at": 1001}, {"at": None}, None]),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": "x"}, {"a": None, "b": "x"}, None]),
}


def column(name: str) -> pa.Array:
    kind, values = VALUES[name]
    return pa.array(values, pa.string()).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(values, kind)


def distinct(keys: np.ndarray) -> int:
    return len(np.unique(keys, axis=0))


@pytest.mark.parametrize("name", VALUES)
def test_each_value_of_a_type_has_a_key_of_its_own(name: str) -> None:
    table = pa.table({"x": column(name)})
    assert distinct(row_keys(table, SECRET)) == table.num_rows


@pytest.mark.parametrize("name", VALUES)
def test_a_key_depends_on_its_row_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the rows beside it, on chunks, on offsets, nor on blocks."""
    one = pa.table({"n": pa.array(range(len(column(name)))), "x": column(name)})
    expected = row_keys(one, SECRET)
    for low in range(one.num_rows):
        assert (row_keys(one.slice(low, 1), SECRET) == expected[low]).all()
        assert (row_keys(one.slice(low), SECRET) == expected[low:]).all()
    monkeypatch.setattr(rowkeys, "_BLOCK", 2)
    chunks = pa.concat_tables([one.slice(0, 1), one.slice(1)])
    assert (row_keys(chunks, SECRET) == expected).all()


def test_the_place_of_a_value_counts() -> None:
    """As does which of many columns is null, and the secret."""
    rows = pa.table({"a": [1, 2, None, None], "b": [2, 1, 1, None]})
    assert distinct(row_keys(rows, SECRET)) == 4
    wide = pa.table({f"c{at}": [None if row == at else 1 for row in range(70)] for at in range(70)})
    assert distinct(row_keys(wide, SECRET)) == 70
    assert not (row_keys(rows, SECRET) == row_keys(rows, b"another secret !")).any()


def test_a_million_rows_have_a_million_keys() -> None:
    """Each half of the keys alone has no collision either: it is of 64 bits."""
    numbers = np.arange(1_000_000)
    table = pa.table({"n": numbers % 1000, "m": (numbers // 1000).astype(np.float32), "t": numbers.astype(str)})
    keys = row_keys(table, SECRET)
    assert all(len(np.unique(keys[:, half])) == len(keys) for half in (0, 1))
    bits = np.unpackbits(keys.view(np.uint8), axis=1).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 0.005, "each bit is set in half of the keys"


def test_no_rows_and_no_columns_have_keys_too() -> None:
    assert row_keys(pa.table({"x": pa.array([], pa.int64())}), SECRET).shape == (0, 2)


@pytest.mark.parametrize("name", VALUES)
def test_a_type_whose_values_have_keys_says_so(name: str) -> None:
    assert has_key(column(name).type)


@pytest.mark.parametrize(
    "kind",
    [
        pa.month_day_nano_interval(),
        pa.list_view(pa.int32()),
        pa.list_(pa.list_view(pa.int32())),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.struct([("a", pa.run_end_encoded(pa.int32(), pa.string()))]),
        pa.dense_union([pa.field("a", pa.int32())]),
    ],
    ids=str,
)
def test_a_type_whose_values_have_none_says_so(kind: pa.DataType) -> None:
    assert not has_key(kind)


@pytest.mark.long
def test_values_that_one_array_cannot_hold_have_keys() -> None:
    """2,200 values of 1 MiB, in chunks of 100: together more than offsets of 32 bits address."""
    values = [number.to_bytes(2, "big") + bytes((1 << 20) - 2) for number in range(100)]
    chunks = [pa.array(values, pa.binary())] * 22
    keys = row_keys(pa.table({"x": pa.chunked_array(chunks)}), SECRET)
    assert distinct(keys) == 100 and (keys[:100] == keys[-100:]).all()
