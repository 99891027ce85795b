"""The values of a prompt, behind a preprocess as without one."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from nightjar.inference.predictors.language.requests import _values

NEW_YEAR = dt.datetime(2023, 1, 1, 12)
KINDS = [pa.timestamp("ns"), pa.timestamp("us"), pa.date32(), pa.list_(pa.timestamp("ns"))]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_times_are_times_in_numpy_and_pandas_too(kind: pa.DataType) -> None:
    value = [NEW_YEAR, NEW_YEAR] if pa.types.is_list(kind) else NEW_YEAR.date() if pa.types.is_date(kind) else NEW_YEAR
    column = pa.chunked_array([pa.array([value, value], kind)])
    for other in (column.to_numpy(), column.to_pandas()):
        assert list(map(str, _values(other))) == list(map(str, _values(column)))


@pytest.mark.parametrize("kind", [pa.float32(), pa.list_(pa.float32()), pa.struct([("price", pa.float32())])], ids=str)
def test_a_float_of_32_bits_is_written_with_the_digits_that_it_has(kind: pa.DataType) -> None:
    value = {"list": [0.1, 19.99], "struct": {"price": 19.99}}.get(str(kind).partition("<")[0], 0.1)
    column = pa.chunked_array([pa.array([value, None, value], kind)])
    assert _values(column) == [value, None, value]
    if not pa.types.is_struct(kind):  # whose floats are Python's own in numpy, with all digits
        (first, *_) = _values(column.to_numpy())
        assert first == value
