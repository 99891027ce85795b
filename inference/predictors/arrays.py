"""Arrow columns as numpy arrays, and tests for the kind of object that a predictor returned."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_list
from nightjar.inference.tensors import is_tensor_type, to_arrays

NUMERIC = "biuf"
"""Kinds of numpy dtypes that hold plain numbers."""

Array = npt.NDArray[Any]

_EXACT = 2**53
"""float64 holds each integer up to this one."""


def to_numpy(column: pa.Array | pa.ChunkedArray) -> Array:
    """Convert n values to a numpy array of n rows, without a copy if the type allows.

    Integers with nulls become floats with NaN. Text and other objects become object arrays with None. Lists of numbers
    become an array (n, k) if all lengths agree, else an object array of arrays. Tensors of one shape become an array
    (n, …), those of several an object array of arrays. Timestamps become datetime64.
    """
    array = joined(column) if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_primitive(array.type):  # the fast path for most columns
        numbers: Array = array.to_numpy(zero_copy_only=False)
        return numbers
    if is_tensor_type(array.type):
        return to_arrays(array)
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    stacked = _stacked(array)
    plain: Array = array.to_numpy(zero_copy_only=False) if stacked is None else stacked
    return plain


def exact(column: pa.Array | pa.ChunkedArray) -> Array | None:
    """Values as objects with None, if they hold integers beside nulls that a float cannot hold; else None.

    As floats they would be other numbers, and which ones would depend on whether a null is in the same batch. A list is
    an array of objects.
    """
    if not _rounded(column):
        return None
    found = np.empty(len(column), dtype=object)
    for row, value in enumerate(column.to_pylist()):
        found[row] = np.array(value, dtype=object) if isinstance(value, list) else value
    return found


def _rounded(column: pa.Array | pa.ChunkedArray) -> bool:
    """Whether there are integers beside nulls, also in lists and structs, that a float cannot hold."""
    if is_list(column.type):
        return _rounded(pc.list_flatten(column))
    if pa.types.is_struct(column.type):
        return any(_rounded(pc.struct_field(column, [index])) for index in range(column.type.num_fields))
    if not (pa.types.is_integer(column.type) and column.null_count):
        return False
    ends = pc.min_max(column).as_py()
    return ends["min"] is not None and (ends["min"] < -_EXACT or ends["max"] > _EXACT)


def to_array(column: Any) -> Array:
    """A column of any kind of batch as an array; masked values become NaN, or None beside objects. A list becomes an
    array of objects, but for numbers and times, in one shape: numpy would make texts of what is beside a text.
    """
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return to_numpy(column)
    if isinstance(column, np.ma.MaskedArray) and np.ma.is_masked(column):
        numbers = column.dtype.kind in NUMERIC
        masked: Any = column.astype(float if numbers else object)
        filled: Array = masked.filled(np.nan if numbers else None)
        return filled
    return _of_list(column) if isinstance(column, list | tuple) else np.asarray(column)


def _of_list(values: Sequence[Any]) -> Array:
    with suppress(ValueError):  # of several shapes
        plain: Array = np.asarray(values)
        if plain.dtype.kind in NUMERIC + "mM":
            return plain
    found = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        found[row] = value
    return found


def joined(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; a column of one chunk is not copied."""
    if column.num_chunks == 1:
        return column.chunk(0)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # pyarrow before 22 kept the chunks of some types
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    return array


def _stacked(array: pa.Array) -> Array | None:
    """Lists of numbers as one array (n, k); None if they are not lists of numbers, or differ in length."""
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
    """Whether this is a torch tensor. Does not import torch: without torch there are no tensors."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def from_tensor(value: Any) -> Array:
    """A torch tensor of any device as an array."""
    value = value.detach().cpu().resolve_conj().resolve_neg()
    if str(value.dtype).startswith(("torch.bfloat16", "torch.float8")):  # numpy has no such type
        value = value.float()
    values: Array = value.numpy()
    return values


def is_missing(value: Any) -> bool:
    """Whether an object stands for no value: None, NaN, NaT, or NA of pandas. Does not import pandas."""
    if value is None:
        return True
    if isinstance(value, float | np.floating | np.datetime64 | np.timedelta64):
        return bool(value != value)
    pandas = sys.modules.get("pandas")
    return pandas is not None and (value is pandas.NA or value is pandas.NaT)


def is_empty(column: Any) -> bool:
    """Whether a column of any kind of batch is of objects, all of them missing values, as texts that are null are."""
    values = to_array(column)
    return values.dtype == object and values.ndim == 1 and all(map(is_missing, values))


def is_frame(value: Any) -> bool:
    """Whether this is a pandas DataFrame. Does not import pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def is_series(value: Any) -> bool:
    """Whether this is a pandas Series or Index. Does not import pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.Series | pandas.Index)


def columns(batch: Any) -> dict[str, Any] | None:
    """The columns of any kind of batch by name; None if this is not a batch."""
    if isinstance(batch, pa.RecordBatch | pa.Table):
        return dict(zip(batch.column_names, batch.columns, strict=True))
    if is_frame(batch):
        return {str(name): batch[name] for name in batch.columns}
    return dict(batch) if isinstance(batch, Mapping) else None


def exceptions(column: Any) -> Iterator[tuple[int, BaseException]]:
    """The exceptions among a column's values, by row. Only lists and columns of objects can hold one."""
    objects = getattr(column, "dtype", None) == np.dtype(object) and column.ndim > 0
    if isinstance(column, list | tuple) or objects:
        yield from ((row, value) for row, value in enumerate(column) if isinstance(value, BaseException))


def without(column: Any, rows: Container[int]) -> Any:
    """A column of any kind of batch, without these rows."""
    kept = [row for row in range(len(column)) if row not in rows]
    if isinstance(column, list | tuple):
        return [column[row] for row in kept]
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column.take(pa.array(kept, pa.int64()))
    return column.iloc[kept] if is_series(column) else column[kept]
