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
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.predictors.arrays import Array, is_frame, is_series, is_tensor, joined
from nightjar.inference.predictors.table_copies import Copier

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
