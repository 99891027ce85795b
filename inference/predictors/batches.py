"""Arrow tables as batches for the user's code: arrays, DataFrames, Tables, tensors.

A batch is the same as in Ray Data's `map_batches`: a dict of numpy arrays (`numpy`), a DataFrame (`pandas`), a Table
(`pyarrow`) or a dict of tensors (`torch`). A batch may share memory with its table, and may be written to. So the
user's code gets batches of a copied table (`own_table`).
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import JobError, LengthInvalid, OutputInvalid
from nightjar.inference.job.options import choice
from nightjar.inference.messages import install, nearest
from nightjar.inference.predictors.arrays import (
    NUMERIC,
    Array,
    columns,
    exact,
    is_frame,
    is_series,
    is_tensor,
    joined,
    to_numpy,
)
from nightjar.inference.tensors import is_tensor_type

FORMATS = ("numpy", "default", "pandas", "pyarrow", "torch")
"""Values of `options.batch_format`, with Ray Data's names; `default` is numpy."""

BATCH_FORMAT = choice(
    "batch_format", FORMATS, "what `preprocess` gets: a dict of arrays, a DataFrame, a Table, or a dict of tensors"
)
"""The option that every adapter has."""


def to_batch(table: pa.Table, form: str) -> Any:
    """The table as a batch of format `form`, columns in the same order. Its arrays may be written to.

    Except in Tables integers beside nulls are floats, as in Ray Data, and objects with None if a float cannot hold one
    of them. Dictionaries are decoded, because each file has its own, and codes mean nothing without it.
    """
    for index, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(index, column.name, table.column(index).cast(column.type.value_type))
    if form == "pyarrow":
        return table
    kept = {name: values for name in table.column_names if (values := exact(table.column(name))) is not None}
    if form == "torch":
        try:
            import torch
        except ModuleNotFoundError as error:
            raise JobError(
                f"model.options.batch_format: torch is not installed; install it: {install('torch')}"
            ) from error
        plain = {name: kept.get(name, to_numpy(table.column(name))) for name in table.column_names}
        # A copy, because torch has no read-only tensor.
        return {
            name: torch.from_numpy(np.array(values)) if values.dtype.kind in NUMERIC else values
            for name, values in plain.items()
        }
    if form == "pandas":
        return framed(table).assign(**kept) if kept else framed(table)
    return {name: kept.get(name, _writable(to_numpy(table.column(name)))) for name in table.column_names}


def _writable(values: Array) -> Array:
    """Arrow marks each array as read-only that shares its memory."""
    return values if values.flags.writeable else values.copy()


def framed(table: pa.Table) -> Any:
    """The table as a DataFrame. Each value of a tensor column is an array of its shape; pandas would flatten it."""
    tensors = [name for name in table.column_names if is_tensor_type(table.schema.field(name).type)]
    frame = table.drop_columns(tensors).to_pandas(ignore_metadata=True)
    for name in tensors:
        frame.insert(table.column_names.index(name), name, list(to_numpy(table.column(name))))
    return frame


def select(batch: Any, names: Sequence[str]) -> Any:
    """Select the named columns, in this order, in the batch's own format."""
    held = batch.column_names if isinstance(batch, pa.Table) else list(batch)
    for name in names:
        if name not in held:
            raise OutputInvalid(
                f"model.features: {name!r} is not a column that preprocess returned"
                + (nearest(name, set(held)) or f"; it returned {', '.join(map(str, held))}")
            )
    if isinstance(batch, pa.Table):
        return batch.select(list(names))
    return batch[list(names)] if is_frame(batch) else {name: batch[name] for name in names}


def check_rows(batch: Any, rows: int) -> None:
    """Check that preprocess returned as many rows as it got."""
    held = columns(batch)
    if held is None:
        raise OutputInvalid(
            f"preprocess returned {type(batch).__name__}, not a batch: return a dict of arrays, a DataFrame or a Table"
        )
    for name, values in held.items():
        if not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0:
            kind = type(values).__name__
            raise OutputInvalid(f"{name!r}, which preprocess returned, is a {kind} and no column: return a value a row")
        if len(values) != rows:
            raise LengthInvalid(f"{name!r}, which preprocess returned,", len(values), rows)


# The kept rows are needed again: for carried columns and labels, for the quarantine, and for the second try of a batch
# that failed. A read-only flag does not protect them (`torch.from_numpy` ignores it). So the user's code gets a new
# copy for each call.
def own_table(table: pa.Table) -> pa.Table:
    """A copy of a table of any types, in new memory: of a slice the slice alone. `pa.concat_arrays` is no alternative:
    its result shares dictionaries.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def own_batch(batch: Any) -> Any:
    """A copy of a batch, or of a column of one, of the same kind. A value that cannot be copied is shared."""
    if isinstance(batch, pa.Table):
        return own_table(batch)
    if isinstance(batch, pa.Array | pa.ChunkedArray):
        column = own_table(pa.table({"": batch})).column(0)
        return column if isinstance(batch, pa.ChunkedArray) else joined(column)
    if is_frame(batch):
        import pandas as pd

        copied = batch.copy()
        for place, kind in enumerate(copied.dtypes):
            if isinstance(kind, np.dtype) and kind.hasobject:  # else its values cannot be written to
                own = own_batch(copied.iloc[:, place].to_numpy())
                copied.isetitem(place, pd.Series(own, copied.index, kind))  # else a type would be inferred
        return copied
    if is_series(batch) and hasattr(batch, "iloc"):  # an index cannot be written to
        return own_batch(batch.to_frame()).iloc[:, 0]
    if is_tensor(batch):
        return batch.clone()
    if type(batch) is dict:
        return {name: own_batch(values) for name, values in batch.items()}
    if isinstance(batch, UserDict):  # as a tokenizer's, whose other attributes may be slow to copy
        copied = copy.copy(batch)
        copied.data = own_batch(batch.data)
        return copied
    try:
        return copy.deepcopy(batch)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 (an object of the user's own, which may raise anything)
        if type(batch) in {list, tuple}:
            return type(batch)(map(own_batch, batch))
        if isinstance(batch, np.ndarray):
            own = batch.copy()
            for place, value in enumerate(batch.flat):
                own.flat[place] = own_batch(value)
            return own
        return batch
