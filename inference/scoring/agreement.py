"""Whether two columns of outputs agree, value by value."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_list


def differences(
    before: pa.ChunkedArray, after: pa.ChunkedArray, tolerance: float, noise: float = 0.0
) -> tuple[np.ndarray, float]:
    """Which rows differ (a bool array of shape (rows,)), and the greatest relative difference of two finite numbers.

    Two numbers agree if |a - b| ≤ tolerance × (1 + |a|). Null agrees with null, and NaN with NaN. Values other than
    floats must be equal; those in lists, tensors and structs are compared in the same way.

    noise: above 0, floats also agree if |a - b| ≤ noise × the largest |a| of the column, integers if most of them are
    equal, and texts, structs and lists of several lengths always: rounding makes another label of one at a tie.
    """
    a, b = before.combine_chunks(), after.combine_chunks()
    if len(a) != len(b):
        raise AssertionError(f"{len(a)} values and {len(b)} values are compared")
    return _differences(a, b, tolerance, noise)


def _differences(a: pa.Array, b: pa.Array, tolerance: float, noise: float) -> tuple[np.ndarray, float]:
    a, b = _plain(a), _plain(b)
    if a.type == b.type:
        if pa.types.is_floating(a.type):
            return _float_differences(a, b, tolerance, noise)
        if is_list(a.type) and (not noise or pa.types.is_fixed_size_list(a.type)):
            return _list_differences(a, b, tolerance, noise)
        if pa.types.is_struct(a.type) and not noise:
            return _struct_differences(a, b, tolerance)
    if noise and not pa.types.is_integer(a.type):
        return np.zeros(len(a), dtype=bool), 0.0
    try:
        unequal = pc.fill_null(pc.not_equal(a, b), False)
    except pa.ArrowNotImplementedError:
        pairs = zip(a.to_pylist(), b.to_pylist(), strict=True)
        return np.array([repr(x) != repr(y) for x, y in pairs], dtype=bool), 0.0
    differs = np.asarray(pc.or_(unequal, pc.not_equal(pc.is_null(a), pc.is_null(b))))
    return differs & (not noise or differs.sum() * 2 > len(a)), 0.0


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _struct_differences(a: pa.Array, b: pa.Array, tolerance: float) -> tuple[np.ndarray, float]:
    differs = np.asarray(pc.is_null(a)) != np.asarray(pc.is_null(b))
    greatest = 0.0
    for one, other in zip(a.flatten(), b.flatten(), strict=True):
        within, most = _differences(one, other, tolerance, 0.0)
        differs, greatest = differs | within, max(greatest, most)
    return differs, greatest


def _float_differences(a: pa.Array, b: pa.Array, tolerance: float, noise: float) -> tuple[np.ndarray, float]:
    nulls = np.asarray(pc.is_null(a)), np.asarray(pc.is_null(b))
    # A null comes as NaN, so that no distance is measured from it.
    x, y = (values.cast(pa.float64()).to_numpy(zero_copy_only=False) for values in (a, b))
    with np.errstate(invalid="ignore"):
        apart = np.abs(x - y)
        distance = apart / (1 + np.abs(x))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    finite = np.isfinite(distance)
    near = distance <= tolerance
    if noise:
        near |= apart <= noise * np.abs(x[np.isfinite(x)]).max(initial=0.0)
    differs = (~same & ~(finite & near)) | (nulls[0] != nulls[1])
    greatest = float(distance[finite].max(initial=0.0))
    return differs, greatest


def _list_differences(a: pa.Array, b: pa.Array, tolerance: float, noise: float) -> tuple[np.ndarray, float]:
    lengths = [np.asarray(pc.fill_null(pc.list_value_length(values), -1)) for values in (a, b)]
    differs = lengths[0] != lengths[1]
    alike = pa.array(~differs)
    kept = np.flatnonzero(~differs)
    x, y = (pc.list_flatten(values.filter(alike)) for values in (a, b))
    values, greatest = _differences(x, y, tolerance, noise)
    rows = np.repeat(kept, np.maximum(lengths[0][kept], 0))
    differs[rows[values]] = True
    return differs, greatest
