"""Arrow tables as batches for the user's code: arrays, DataFrames, Tables, tensors.

A batch is the same as in Ray Data's `map_batches`: a dict of numpy arrays (`numpy`), a DataFrame (`pandas`), a Table
(`pyarrow`) or a dict of tensors (`torch`). A batch may share memory with its table, and may be written to. So the
user's code gets batches of a copied table (`Copier`).
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import uuid
from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import JobError, LengthInvalid, OutputInvalid
from nightjar.inference.job.options import choice
from nightjar.inference.messages import install, nearest
from nightjar.inference.predictors.arrays import (
    Array,
    columns,
    exact,
    is_frame,
    is_series,
    is_tensor,
    joined,
    to_numpy,
    writable,
)
from nightjar.inference.tensors import is_tensor_type

FORMATS = ("numpy", "default", "pandas", "pyarrow", "torch")
"""Values of `options.batch_format`, with Ray Data's names; `default` is numpy."""

BATCH_FORMAT = choice(
    "batch_format", FORMATS, "what `preprocess` gets: a dict of arrays, a DataFrame, a Table, or a dict of tensors"
)
"""The option that every adapter has."""


def batch_format(options: Mapping[str, Any]) -> str:
    """The batch format that the job names."""
    name = options.get("batch_format", "numpy")
    if not isinstance(name, str) or name not in FORMATS:
        raise JobError(
            f"model.options.batch_format: {name!r} is not one of numpy, pandas, pyarrow, torch"
            + nearest(str(name), FORMATS)
        )
    return name


def to_batch(table: pa.Table, form: str, memory: Sequence[pa.Buffer] = ()) -> Any:
    """The table as a batch of format `form`, columns in the same order. memory: buffers of the table, for arrays that
    may be written to without a copy.

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
            from nightjar.inference.predictors.tabular.placing import to_tensor
        except ModuleNotFoundError as error:
            raise JobError(
                f"model.options.batch_format: torch is not installed; install it: {install('torch')}"
            ) from error
        return {name: kept.get(name, to_tensor(to_numpy(table.column(name)))) for name in table.column_names}
    if form == "pandas":
        return framed(table).assign(**kept) if kept else framed(table)
    return {name: kept.get(name, writable(to_numpy(table.column(name)), memory)) for name in table.column_names}


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
        if len(values) != rows:
            raise LengthInvalid(f"{name!r}, which preprocess returned,", len(values), rows)


# The kept rows are needed again: for carried columns and labels, for the quarantine, and for the second try of a batch
# that failed. A read-only flag does not protect them (`torch.from_numpy` ignores it). So the user's code gets a new
# copy for each call.
@dataclass(frozen=True, slots=True)
class OwnCopy:
    """A copy of a table. memory: all buffers of the copy; nothing else refers to them."""

    table: pa.Table
    memory: tuple[pa.Buffer, ...]


class Copier:
    """Copies tables. Most have the same schema, which is inspected once."""

    def __init__(self) -> None:
        self._schema = pa.schema([])
        self._whole = True

    def __call__(self, table: pa.Table) -> OwnCopy:
        """Copy the rows, of any types, into new memory.

        It takes 0.1 ms for 16,384 rows of 20 float32. Serialised, all columns are one block of memory, which takes two
        thirds of the time of copying each column. `pa.concat_arrays` is no alternative: its result shares dictionaries.
        """
        schema = table.schema
        if not schema.equals(self._schema):
            self._look_at(schema)
        if self._whole:
            memory = tuple(batch.serialize() for batch in table.to_batches())
            copies = [pa.ipc.read_record_batch(buffer, schema) for buffer in memory]
            return OwnCopy(pa.Table.from_batches(copies, schema), memory)
        stream = _stream(table)
        return OwnCopy(pa.ipc.open_stream(stream).read_all(), (stream,))

    def _look_at(self, schema: pa.Schema) -> None:
        self._schema = schema
        # A serialised batch has no dictionaries; only a stream has them.
        self._whole = not any(map(_holds_dictionary, schema.types))


def _holds_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_dictionary(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    return any(_holds_dictionary(kind.field(index).type) for index in range(kind.num_fields))


def _stream(table: pa.Table) -> pa.Buffer:
    """Serialise a table with its dictionaries."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


_VALUES = {type(None), bool, int, float, complex, str, bytes, dt.date, dt.datetime, dt.timedelta, decimal.Decimal}
_VALUES |= {uuid.UUID}
"""Types of values that nobody can write to."""


def own_batch(batch: Any) -> Any:
    """A copy of a batch, or of anything in one, of the same kind. What cannot be copied is shared."""
    if isinstance(batch, pa.Table):
        return Copier()(batch).table
    if isinstance(batch, np.ndarray) and not batch.dtype.hasobject:
        return batch.copy(order="K")
    if type(batch) is np.ndarray and batch.dtype == object:
        return _own_objects(batch)
    if is_frame(batch):
        copied = batch.copy()
        for place, kind in enumerate(copied.dtypes):
            # Columns of other types hold only values, and pandas would infer another type for an array of them.
            if not isinstance(kind, np.dtype) or not kind.hasobject:
                continue
            if not _only_values((values := copied.iloc[:, place].to_numpy()).tolist()):
                copied.isetitem(place, _own_objects(values))
        return copied
    if is_tensor(batch):
        return batch.clone()
    if is_series(batch) and hasattr(batch, "iloc"):  # an index cannot be written to
        return own_batch(batch.to_frame()).iloc[:, 0]
    if isinstance(batch, pa.Array | pa.ChunkedArray):
        column = Copier()(pa.table({"": batch})).table.column(0)
        return column if isinstance(batch, pa.ChunkedArray) else joined(column)
    if type(batch) is dict:
        return {name: own_batch(values) for name, values in batch.items()}
    if isinstance(batch, UserDict):  # as a tokenizer's, whose other attributes may be slow to copy
        copied = copy.copy(batch)
        copied.data = own_batch(batch.data)
        return copied
    if type(batch) in {list, tuple}:
        return type(batch)(batch if _only_values(batch) else map(own_batch, batch))
    if type(batch) in _VALUES or isinstance(batch, np.generic):
        return batch
    try:
        return copy.deepcopy(batch)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 (an object of the user's own, which may raise anything)
        return batch


def _own_objects(values: Array) -> Array:
    """A copy of an array of objects. Each is copied by itself, so that one that cannot be copied is shared alone."""
    copied = values.copy(order="K")
    if not _only_values(plain := values.ravel().tolist()):
        flat = np.empty(len(plain), object)
        for index, value in enumerate(plain):
            flat[index] = own_batch(value)
        copied[...] = flat.reshape(copied.shape)
    return copied


def _only_values(values: Iterable[Any]) -> bool:
    return set(map(type, values)) <= _VALUES
