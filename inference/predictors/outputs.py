"""Converts what a predictor returns to exactly the declared outputs: the right names, the right types, one value a row.

Floats may lose precision. Integers must fit. A float becomes an integer only if it is a whole number. Numbers and text
are never converted into each other. None and values that numpy masks become null; NaN stays NaN in a float output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_list, is_number, is_text
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.predictors.arrays import (
    Array,
    columns,
    is_series,
    is_tensor,
    joined,
)


def normalise(raw: Any, types: Mapping[str, pa.DataType], rows: int) -> dict[str, pa.Array]:
    """Take the declared outputs from `raw`: a batch, a bare array, or a generator of either.

    Raises:
        OutputInvalid: An output is missing, does not have `rows` values, or does not fit its type.
    """
    if isinstance(raw, GeneratorType):
        # A generator may use the same memory again for its next piece, so each piece is converted at once.
        pieces = [
            {name: pa.concat_arrays([values]) for name, values in _outputs(piece, types, None).items()} for piece in raw
        ]
        if not pieces and rows:
            raise OutputInvalid(f"output {next(iter(types))!r} is missing: the predictor yielded nothing")
        outputs = {
            name: joined(pa.chunked_array([piece[name] for piece in pieces], type=declared))
            for name, declared in types.items()
        }
    else:
        outputs = _outputs(raw, types, rows)
    for name, values in outputs.items():
        if len(values) != rows:
            raise OutputInvalid(
                f"output {name!r} has {len(values)} values for {rows} rows: return one for each input row, in "
                "the same order, and None or NaN for a row without a result"
            )
    return outputs


def empty(types: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    """The outputs of no rows."""
    return {name: pa.array([], kind) for name, kind in types.items()}


def is_positive(classes: Sequence[Any] | None, types: Mapping[str, pa.DataType]) -> bool:
    """Whether the only declared output is the probability of the second of two classes.

    Raises:
        JobError: The outputs are not this, nor one for each class, nor one list.
    """
    if classes is None or len(classes) == len(types):
        return False
    first, *others = types.values()
    if not others and is_list(first):
        return False
    if not others and len(classes) == 2:
        return True
    named = ", ".join(map(str, classes))
    raise JobError(
        f"model.outputs: {len(types)} for {len(classes)} classes ({named}); declare one for each, in this order, or "
        f"one list, as float32[{len(classes)}]" + (", or one for the second class" if len(classes) == 2 else "")
    )


def by_column(raw: Array, types: Mapping[str, pa.DataType], called: str) -> dict[str, Array]:
    """The declared outputs from an array of shape (n,) or (n, k): all of it as the only one, or a column for each.

    called: what returned the array, for the message.

    Raises:
        OutputInvalid: The array has another number of columns than there are outputs.
    """
    first, *others = types
    if not others and (raw.ndim == 1 or is_list(types[first])):
        return {first: raw}
    if raw.ndim == 2 and raw.shape[1] == len(types):
        return dict(zip(types, raw.T, strict=True))
    raise OutputInvalid(
        f"{called} returned an array of shape {raw.shape} for {len(raw)} rows, and model.outputs declares "
        f"{len(types)}: {', '.join(types)}"
    )


def in_order(raw: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    """The outputs of a torch model by name: as it names them itself, or one tensor or several in their order.

    what: what returned them, for the message.

    Raises:
        OutputInvalid: It returned another number of tensors than there are outputs.
    """
    if isinstance(raw, Mapping):
        return dict(raw)
    found = (raw,) if is_tensor(raw) or not isinstance(raw, Sequence) else raw
    if len(found) != len(names):
        raise OutputInvalid(
            f"the {what} returned {len(found)} outputs, but model.outputs declares {len(names)}: "
            f"output {names[min(len(found), len(names) - 1)]!r} has no counterpart"
        )
    return dict(zip(names, found, strict=True))


def _outputs(raw: Any, types: Mapping[str, pa.DataType], rows: int | None) -> dict[str, pa.Array]:
    held = columns(raw)
    if held is None:
        held = {_only(raw, types): raw}
    for name in types:
        if name not in held:
            returned = ", ".join(map(str, held)) or "nothing"
            raise OutputInvalid(f"output {name!r} is missing; the predictor returned {returned}")
    return {name: to_arrow(name, held[name], declared, rows) for name, declared in types.items()}


def _only(raw: Any, types: Mapping[str, pa.DataType]) -> str:
    """The output that a bare result is: the job must declare exactly one."""
    name, *others = types
    if raw is None:
        raise OutputInvalid(f"output {name!r} is missing: the predictor returned None")
    if others:
        raise OutputInvalid(
            f"the predictor returned a bare {type(raw).__name__}, but model.outputs declares "
            f"{', '.join(map(repr, types))}: return a dict with one array for each"
        )
    return name


def to_arrow(name: str, value: Any, declared: pa.DataType, rows: int | None = None) -> pa.Array:
    """Convert one output's values to an array of exactly the declared type. rows: the expected number of values.

    Raises:
        OutputInvalid: The values do not fit the type.
    """
    try:
        array = _array(value, declared, rows)
        fits = _fits(array.type, declared)
        cast = _cast(array, declared) if fits else None
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise OutputInvalid(f"output {name!r} does not fit {declared}: {error}") from error
    if cast is None:
        raise OutputInvalid(f"output {name!r} is declared {declared}, but the predictor returned {array.type}")
    return cast


def _array(value: Any, declared: pa.DataType, rows: int | None) -> pa.Array:
    """The values as an Arrow array of their own type."""
    if isinstance(value, pa.ChunkedArray):
        return joined(value)
    if isinstance(value, pa.Array):
        return value.storage if isinstance(value, pa.ExtensionArray) else value
    if is_series(value):
        # In a numpy-backed float Series NaN stays NaN, as in an array; pandas' own types have nulls.
        numpy_backed = isinstance(value.dtype, np.dtype)
        return _array(value.to_numpy() if numpy_backed else pa.array(value), declared, rows)
    if is_tensor(value):
        return _from_numpy(_from_tensor(value), declared, rows)
    if isinstance(value, list | tuple):
        return _from_list(list(value), declared, rows)
    return _from_numpy(value if isinstance(value, np.ma.MaskedArray) else np.asarray(value), declared, rows)


def _from_tensor(value: Any) -> Array:
    value = value.detach().cpu().resolve_conj().resolve_neg()
    if str(value.dtype).startswith(("torch.bfloat16", "torch.float8")):  # numpy has no such type
        value = value.float()
    values: Array = value.numpy()
    return values


def _from_list(values: list[Any], declared: pa.DataType, rows: int | None) -> pa.Array:
    values = [_from_tensor(item) if is_tensor(item) else None if item is np.ma.masked else item for item in values]
    if any(isinstance(item, np.ma.MaskedArray) and np.ma.is_masked(item) for item in values):
        return _from_numpy(np.ma.stack(values), declared, rows)  # np.stack and Arrow would lose the masks
    if values and all(isinstance(item, np.ndarray) for item in values) and not is_list(declared):
        return _from_numpy(np.stack(values), declared, rows)
    return pa.array(values, from_pandas=_nan_is_null(declared))


def _from_numpy(values: Array, declared: pa.DataType, rows: int | None) -> pa.Array:
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if values.ndim == 0:
        values = values.reshape(1)  # `squeeze` on a batch of one row: a common mistake
    elif rows == 1 and is_list(declared) and values.ndim == 1 and values.dtype != object:
        values = values.reshape(1, -1)  # the same for an output of lists
    if values.ndim > 1 and not is_list(declared):
        if values.size != len(values):
            raise ValueError(f"it has shape {values.shape}, and {declared} holds one value a row")
        values = values.reshape(len(values))
    if values.ndim > 1 and np.ma.is_masked(values):
        raise ValueError("it masks some of the numbers of a row; return lists with None in their place")
    return _flat_or_lists(values, declared)


def _flat_or_lists(values: Array, declared: pa.DataType) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values, from_pandas=_nan_is_null(declared))
    if values.shape[1] == 0:
        return pa.array(values.tolist())
    inner = _flat_or_lists(values.reshape(-1, *values.shape[2:]), declared)
    return pa.FixedSizeListArray.from_arrays(inner, values.shape[1])


def _nan_is_null(declared: pa.DataType) -> bool:
    """Whether NaN means null: among texts or dates pandas writes missing values as NaN; among numbers NaN is a
    value.
    """
    return not is_list(declared) and not is_number(declared)


def _fits(source: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values of one type may be converted to the other at all. The cast then checks each value."""
    if source == declared or pa.types.is_null(source):
        return True
    if pa.types.is_dictionary(source):
        return _fits(source.value_type, declared)
    if is_list(source) and is_list(declared):
        return _fits(source.value_type, declared.value_type)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    kinds = (is_number, is_text, pa.types.is_temporal, lambda type_: any(is_kind(type_) for is_kind in binary))
    return any(kind(source) and kind(declared) for kind in kinds)


def _cast(array: pa.Array, declared: pa.DataType) -> pa.Array:
    if array.type == declared:
        return array
    cast = array.cast(declared)
    # Arrow converts any number but 0 to true; here only 1 is true.
    if pa.types.is_boolean(declared) and not pa.types.is_null(array.type):
        back = cast.cast(array.type)
        if pc.all(pc.equal(back, array), min_count=0).as_py() is False:
            raise ValueError("it holds numbers other than 0 and 1")
    return cast
