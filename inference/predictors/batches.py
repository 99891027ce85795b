"""Arrow tables as batches for the user's code: arrays, DataFrames, Tables, tensors.

A batch is the same as in Ray Data's `map_batches`: a dict of numpy arrays (`numpy`), a DataFrame (`pandas`), a Table
(`pyarrow`) or a dict of tensors (`torch`). A batch may share memory with its table, and may be written to. So the
user's code gets batches of a copied table (`private.Copier`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError, LengthInvalid, OutputInvalid
from nightjar.inference.job.options import choice
from nightjar.inference.messages import nearest
from nightjar.inference.predictors.arrays import columns, exact, is_frame, to_numpy, writable
from nightjar.inference.tensors import is_tensor_type

FORMATS = ("numpy", "default", "pandas", "pyarrow", "torch")
"""Values of `options.batch_format`, with Ray Data's names; `default` is numpy."""

BATCH_FORMAT = choice(
    "batch_format", FORMATS, "what `preprocess` gets: a dict of arrays, a DataFrame, a Table, or a dict of tensors"
)
"""The option that every adapter has."""


def batch_format(options: Mapping[str, Any]) -> str:
    """The batch format that the job names.

    Raises:
        JobError: There is no such format.
    """
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
                "model.options.batch_format: torch is not installed; install it: pip install 'nightjar-batch[torch]'"
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
    """Select the named columns, in this order, in the batch's own format.

    Raises:
        OutputInvalid: The preprocess left out a feature.
    """
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


def part(batch: Any, low: int, high: int) -> Any:
    """Rows [low, high) of a batch that `check_rows` accepts, or of a column."""
    if isinstance(batch, pa.Table):
        return batch.slice(low, high - low)
    if isinstance(batch, Mapping):
        return {name: part(values, low, high) for name, values in batch.items()}
    if hasattr(batch, "iloc"):  # of pandas: its labels are those of the smaller batch
        return batch.iloc[low:high].reset_index(drop=True)
    return batch[low:high]


def weight(batch: Any) -> int:
    """The bytes of a batch that `check_rows` accepts, about."""
    if isinstance(batch, pa.Table):
        return int(batch.nbytes)
    held = columns(batch)
    assert held is not None, "check_rows accepted it"
    return sum(map(_bytes, held.values()))


def _bytes(value: Any) -> int:
    """The bytes of a column, or of a value in one, without what Python adds to each object."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return _bytes([*value.values()])
    if isinstance(value, list | tuple):
        # A list of numbers, of which there may be millions, is not looked through.
        held = next((each for each in value if each is not None), None)
        return 8 * len(value) + (0 if held is None or isinstance(held, int | float) else sum(map(_bytes, value)))
    if str(getattr(value, "dtype", "")) == "object":
        return 8 * len(value) + sum(map(_bytes, value))
    if hasattr(value, "memory_usage"):  # a column of a DataFrame, perhaps of texts or categories
        return int(value.memory_usage(index=False, deep=True))
    return int(getattr(value, "nbytes", 0))


def check_rows(batch: Any, rows: int) -> None:
    """Check that preprocess returned as many rows as it got.

    Raises:
        LengthInvalid: It returned another number of rows.
        OutputInvalid: It returned something that is not a batch.
    """
    held = columns(batch)
    if held is None:
        raise OutputInvalid(
            f"preprocess returned {type(batch).__name__}, not a batch: return a dict of arrays, a DataFrame or a Table"
        )
    for name, values in held.items():
        if len(values) != rows:
            raise LengthInvalid(f"{name!r}, which preprocess returned,", len(values), rows)
