"""Arrow tables as the batches that users write for: arrays, DataFrames, Tables, tensors.

A batch is what Ray Data's `map_batches` hands over: a dict of numpy arrays (`numpy`), a DataFrame
(`pandas`), a Table (`pyarrow`) or a dict of tensors (`torch`). As there, numpy batches may share memory
with the table they are made of and be read-only; tensors are copies, because torch has no read-only tensor.
So the user's code is given batches of a copy (`private.Copier`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.messages import nearest
from nightjar.inference.predictors.arrays import columns, is_frame, to_numpy

FORMATS = {"numpy", "default", "pandas", "pyarrow", "torch"}
"""Names of `options.batch_format`, as Ray Data has them; `default` is numpy."""


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
    from nightjar.inference.predictors.exported import to_tensor  # paid only by those who ask for tensors

    return {name: to_tensor(values) for name, values in arrays.items()}


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
