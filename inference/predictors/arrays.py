"""Arrow columns as numpy arrays, and what kind of thing somebody else's code returned."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_list

NUMERIC = "biuf"
"""Kinds of numpy dtypes that hold plain numbers."""

Array = npt.NDArray[Any]


def to_numpy(column: pa.Array | pa.ChunkedArray) -> Array:
    """n values as an array of n rows, without copying where the types allow.

    Integers with nulls become floats with NaN; text and other objects object arrays with None; lists of
    numbers (n, k) arrays where all lengths agree, else an object array of arrays; timestamps datetime64.
    """
    array = joined(column) if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_primitive(array.type):  # most columns: none of the questions below is asked of them
        numbers: Array = array.to_numpy(zero_copy_only=False)
        return numbers
    if isinstance(array.type, pa.FixedShapeTensorType):
        if array.storage.flatten().null_count:  # Arrow would give any number for it
            raise ValueError(f"a row of {array.type} has a null inside")
        shaped: Array = array.to_numpy_ndarray()
        return shaped
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    stacked = _stacked(array)
    plain: Array = array.to_numpy(zero_copy_only=False) if stacked is None else stacked
    return plain


def joined(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece; one that is so already is not copied."""
    if column.num_chunks == 1:
        return column.chunk(0)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # pyarrow before 22 kept the chunks of some types
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    return array


def _stacked(array: pa.Array) -> Array | None:
    """Lists of numbers as one array, or None when they are not that or differ in length."""
    if array.null_count:
        return None
    if pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
    elif is_list(array.type):
        lengths = pc.list_value_length(array).to_numpy()
        if not len(lengths) or (lengths != lengths[0]).any():
            return None
        width = int(lengths[0])
    else:
        return None
    values = to_numpy(array.flatten())
    return values.reshape(len(array), width, *values.shape[1:]) if values.dtype.kind in NUMERIC else None


def is_tensor(value: Any) -> bool:
    """Is this a torch tensor? Never imports torch: no tensor exists before somebody has."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_frame(value: Any) -> bool:
    """Is this a DataFrame? Never imports pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def is_series(value: Any) -> bool:
    """Is this a pandas Series or Index? Never imports pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.Series | pandas.Index)


def columns(batch: Any) -> dict[str, Any] | None:
    """The columns of any batch by name, or None when this is no batch."""
    if isinstance(batch, pa.RecordBatch | pa.Table):
        return dict(zip(batch.column_names, batch.columns, strict=True))
    if is_frame(batch):
        return {str(name): batch[name] for name in batch.columns}
    return dict(batch) if isinstance(batch, Mapping) else None
