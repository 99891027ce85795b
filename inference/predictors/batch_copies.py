"""Copies of batches, so that two steps of the user's code share no memory that either of them may write to.

What a preprocess returns may be memory that it fills anew for each batch, and a model may write into what it gets. Both
are kept meanwhile: for the batch after, for another process, or for another try. So each is copied, as outputs are.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import uuid
from collections import UserDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.input.sources.normalisation import PLAIN
from nightjar.inference.predictors.arrays import Array, is_frame, is_series, is_tensor, joined


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
        self._views: list[int] = []
        self._whole = True

    def __call__(self, table: pa.Table) -> OwnCopy:
        """Copy the rows, of any types, into new memory.

        It takes 0.1 ms for 16,384 rows of 20 float32. Serialised, all columns are one block of memory, which takes two
        thirds of the time of copying each column. `pa.concat_arrays` is no alternative: its result shares dictionaries,
        and the text of views.
        """
        schema = table.schema
        if not schema.equals(self._schema):
            self._look_at(schema)
        for index in self._views:
            # A view would be serialised with all the text of its buffer, also that of other rows.
            field = schema.field(index)
            table = table.set_column(index, field, table.column(index).cast(PLAIN[field.type]).cast(field.type))
        if self._whole:
            memory = tuple(batch.serialize() for batch in table.to_batches())
            copies = [pa.ipc.read_record_batch(buffer, schema) for buffer in memory]
            return OwnCopy(pa.Table.from_batches(copies, schema), memory)
        stream = _stream(table)
        return OwnCopy(pa.ipc.open_stream(stream).read_all(), (stream,))

    def _look_at(self, schema: pa.Schema) -> None:
        self._schema, kinds = schema, schema.types
        self._views = [index for index, kind in enumerate(kinds) if kind in PLAIN]
        # A serialised batch has no dictionaries; only a stream has them.
        self._whole = not any(map(_holds_dictionary, kinds))


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
    if isinstance(batch, np.ndarray):
        return _array(batch)
    if is_frame(batch):
        return _frame(batch)
    if is_tensor(batch):
        return batch.clone()
    if is_series(batch) and hasattr(batch, "iloc"):  # an index cannot be written to
        return _frame(batch.to_frame()).iloc[:, 0]
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


def _array(values: Array) -> Array:
    if not values.dtype.hasobject:
        return values.copy(order="K")
    if values.dtype != object or type(values) is not np.ndarray:
        return copy.deepcopy(values)
    copied = values.copy()
    if not _only_values(plain := copied.ravel().tolist()):
        flat = np.empty(len(plain), object)
        for index, value in enumerate(plain):
            flat[index] = own_batch(value)
        copied[...] = flat.reshape(copied.shape)
    return copied


def _frame(frame: Any) -> Any:
    copied = frame.copy()
    for place, kind in enumerate(copied.dtypes):
        if (
            isinstance(kind, np.dtype)
            and kind.hasobject
            and not _only_values(values := copied.iloc[:, place].to_numpy())
        ):
            copied.isetitem(place, _array(values))
    return copied


def _only_values(values: Iterable[Any]) -> bool:
    return set(map(type, values)) <= _VALUES
