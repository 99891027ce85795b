"""Aligns the pandas objects that the user's code returns for a batch with its rows, by the labels of their index.

A batch in pandas has the labels 0 to n - 1, and so has each Series that is made without an index. So an index that is a
permutation of these labels says which value belongs to which row. No other index says this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nightjar.inference.errors import IndexInvalid
from nightjar.inference.predictors.arrays import is_frame, is_series


def aligned(batch: Any, who: str, rows: int | None = None, first: int = 0) -> Any:
    """A DataFrame, or a mapping of columns, in the order of the rows. Columns without an index are in it already.

    who: returned it, for the message. rows: how many; columns of another length stay as they are, for the check of
    lengths. first: the number of the batch's rows in earlier pieces of a generator; the labels of the rows of this
    piece begin there, or at 0.

    Raises:
        IndexInvalid: An index is not a permutation of the labels. Or it has a name: then the labels are the values of a
            column, and may equal the labels of other rows by accident. Or columns without an index stand beside a
            permuted one, and may be in its order.
    """
    if not isinstance(batch, Mapping):
        return _aligned(batch, f"the DataFrame, which {who} returned,", rows, first)
    columns = {
        name: _aligned(values, f"{name!r}, which {who} returned,", rows, first) for name, values in batch.items()
    }
    moved = [name for name in columns if columns[name] is not batch[name]]
    if moved and (bare := [name for name in columns if not _has_index(columns[name])]):
        raise IndexInvalid(
            f"{moved[0]!r}, which {who} returned, has the labels of the batch in another order, and {bare[0]!r} has no "
            "index, so that its order is not known",
            "return both as Series, or both as arrays in the order of the rows",
        )
    return columns if moved else batch


def _has_index(values: Any) -> bool:
    return is_frame(values) or (is_series(values) and hasattr(values, "index"))


def _aligned(values: Any, what: str, rows: int | None, first: int) -> Any:
    if not _has_index(values) or not len(values) or rows not in {None, len(values)}:
        return values
    index = values.index
    labels = np.asarray(index)
    order = np.argsort(labels, kind="stable") if labels.dtype.kind in "iu" and list(index.names) == [None] else None
    if order is None or not any(np.array_equal(labels[order], np.arange(len(labels)) + start) for start in (0, first)):
        named = f" {index.name!r}" if index.name is not None else ""
        some = ", ".join(map(repr, labels[:3].tolist())) + (", …" if len(labels) > 3 else "")
        raise IndexInvalid(
            f"{what} has the index{named} [{some}], which does not say which row of the batch a value belongs to",
            f"keep the labels of the batch, 0 to {len(labels) - 1}, in any order; or return the values in the order of "
            "the rows, without this index: .reset_index(drop=True), or .to_numpy()",
        )
    return values if (order[1:] > order[:-1]).all() else values.iloc[order].reset_index(drop=True)
