"""Arrow tables as the batches that users write for: arrays, DataFrames, Tables, tensors.

A batch is what Ray Data's `map_batches` hands over: a dict of numpy arrays (`numpy`), a DataFrame
(`pandas`), a Table (`pyarrow`) or a dict of tensors (`torch`). As there, numpy batches may share memory
with the table they are made of and be read-only; tensors are copies, because torch has no read-only tensor.
So the user's code is given batches of a copy (`private.Copier`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.messages import nearest

FORMATS = {"numpy", "default", "pandas", "pyarrow", "torch"}
"""Names of `options.batch_format`, as Ray Data has them; `default` is numpy."""

NUMERIC = "biuf"
"""Kinds of numpy dtypes that hold plain numbers."""

Array = npt.NDArray[Any]


def batch_format(options: Mapping[str, Any]) -> str:
    """The format the user's code asks for.

    Raises:
        JobError: there is no such format.
    """
    name = options.get("batch_format", "numpy")
    if not isinstance(name, str) or name not in FORMATS:
        raise JobError(
            f"model.options.batch_format: {name!r} is not one of numpy, pandas, pyarrow, torch"
            + nearest(str(name), FORMATS)
        )
    return name


def to_batch(table: pa.Table, form: str) -> Any:
    """The table as a batch of format `form`, columns in the same order."""
    if form == "pyarrow":
        return table
    if form == "pandas":
        return table.to_pandas(ignore_metadata=True)
    arrays = {name: to_numpy(table.column(name)) for name in table.column_names}
    if form != "torch":
        return arrays
    from nightjar.inference.predictors.torch import to_tensor  # paid only by those who ask for tensors

    return {name: to_tensor(values) for name, values in arrays.items()}


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


def is_list(type_: pa.DataType) -> bool:
    """Is this any of Arrow's types of lists?"""
    types = pa.types
    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return any(is_kind(type_) for is_kind in kinds)


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


def select(batch: Any, names: Sequence[str]) -> Any:
    """The named columns, in this order, in the batch's own format.

    Raises:
        JobError: preprocess left a feature out.
    """
    held = batch.column_names if isinstance(batch, pa.Table) else list(batch)
    for name in names:
        if name not in held:
            raise JobError(
                f"model.features: {name!r} is not a column that preprocess returned"
                + (nearest(name, set(held)) or f"; it returned {', '.join(map(str, held))}")
            )
    if isinstance(batch, pa.Table):
        return batch.select(list(names))
    return batch[list(names)] if is_frame(batch) else {name: batch[name] for name in names}


def check_rows(batch: Any, rows: int) -> None:
    """Account for every row: preprocess returns as many as it was given.

    Raises:
        OutputInvalid: it did not, or what it returned is no batch.
    """
    held = columns(batch)
    if held is None:
        raise OutputInvalid(
            f"preprocess returned {type(batch).__name__}, not a batch: return a dict of arrays, a DataFrame or a Table"
        )
    for name, values in held.items():
        if len(values) != rows:
            raise OutputInvalid(f"preprocess returned {len(values)} values of {name!r} for {rows} rows")
