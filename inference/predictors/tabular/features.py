"""The features of a batch as tabular models take them: by the model's own names, or as one array of shape (n, F); and
the arrays that such models return, as the declared outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_list, is_native_number, is_text
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.messages import counted, nearest
from nightjar.inference.predictors.arrays import NUMERIC, Array, columns, is_series, is_tensor, joined, to_array
from nightjar.inference.tensors import is_tensor_type

Categories = Mapping[str, pa.Array]
"""The categories of a model's features, by the feature's name: a category's index is its code."""


def named(batch: Any) -> dict[str, Any]:
    """The columns by name, of their own kinds, of a batch that `check_rows` accepts."""
    held = columns(batch)
    assert held is not None
    return held


def few(batch: Any, uses: str, takes: str, most: int = 1) -> dict[str, Any]:
    """The columns of a batch for a model that reads one, or at most so many. Raises as `check_few`."""
    held = named(batch)
    check_few(list(held), uses, takes, most)
    return held


def check_few(names: Sequence[str], uses: str, takes: str, most: int) -> None:
    """Check that there is a column, and that there are at most so many. takes: what they hold, as "text".

    Raises:
        JobError: There is none, or there are more.
    """
    if not 1 <= len(names) <= most:
        columns = f"one column of {takes}" if most == 1 else f"{most} columns of {takes} at most"
        raise JobError(f"model.features: the {uses} adapter takes {columns}; say which of {', '.join(names)}")


def made_of(names: Iterable[str], columns: int) -> str:
    """How many columns the features are, as the beginning of a sentence."""
    given = list(names)
    return f"model.features: {', '.join(given)} make{'s' if len(given) == 1 else ''} {counted(columns, 'column')}"


def in_order(held: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The columns in the order of the names with which the model was fitted."""
    for name in names:
        if name not in held:
            raise JobError(
                f"model.features: the model was fitted with {name!r}, which is not among the columns it gets"
                + (nearest(name, held) or f": {', '.join(held)}")
            )
    if other := [name for name in held if name not in names]:
        raise JobError(
            f"model.features: {other[0]!r} is unknown to the model, which was fitted with {', '.join(names)}"
        )
    return {name: held[name] for name in names}


def matrix(values: Mapping[str, Array], width: int | None, dtype: npt.DTypeLike | None = None) -> Array:
    """All columns as one array (n, F), in their order; a column of shape (n, k) takes k places.

    width: how many the model takes, if it says so. dtype: what the array must be able to hold besides the columns.

    Raises:
        JobError: The columns are never as many as the model takes.
        ValueError: The lists of these rows do not have the length that the model takes.
    """
    if any(column.dtype.kind not in NUMERIC for column in values.values()):
        # Without this numpy would convert numbers beside text to text.
        values = {name: column.astype(object) for name, column in values.items()}
    stacked = np.column_stack(list(values.values()))
    if width not in {None, stacked.shape[1]}:
        said = f"{made_of(values, stacked.shape[1])}, and the model was fitted with {width}"
        # Values with several numbers per row may differ in shape, so the fault may be that of single rows.
        plain = all(column.ndim == 1 and column.dtype != object for column in values.values())
        raise JobError(said) if plain else ValueError(said)
    return stacked if dtype is None else stacked.astype(np.result_type(stacked, dtype), copy=False)


def check_types(job: ModelJob, schema: pa.Schema, taken: Callable[[pa.DataType], bool], takes: str) -> None:
    """Check that each column has a type that the adapter takes. takes: these types, in words."""
    for name in job.model.features or schema.names:
        if not taken(kind := schema.field(name).type):
            raise JobError(
                f"model.features: {name!r} is {kind}, and the {job.model.uses} adapter takes {takes}; list the columns "
                "that the model takes, or convert this one in a preprocess"
            )


def check_numbers(job: ModelJob, schema: pa.Schema) -> None:
    """Check that each column is of numbers, or of lists of numbers."""
    check_types(job, schema, is_number_or_list, "numbers only")


# ---- for models of numbers and categories ---------------------------------------------------------------------


def is_number_or_text(kind: pa.DataType) -> bool:
    """Whether a type is a number, a list of numbers of any depth, text, or a dictionary of texts."""
    return is_number_or_list(kind) or is_text_or_categories(kind)


def is_number_or_list(kind: pa.DataType) -> bool:
    """Whether a type is a number, or a list of numbers of any depth."""
    while (inner := getattr(kind, "storage_type", None) or getattr(kind, "value_type", None)) is not None:
        kind = inner
    return is_native_number(kind)


def is_text_or_categories(kind: pa.DataType) -> bool:
    """Whether a type is text, or a dictionary of texts."""
    return is_text(kind.value_type if pa.types.is_dictionary(kind) else kind)


def numbers(name: str, column: Any) -> Array:
    """A column of any kind of batch as numbers, nulls as NaN.

    Raises:
        JobError: It is a column of text or categories.
        ValueError: It holds anything else, or lists of several lengths.
    """
    if is_series(column) and str(column.dtype) in {"boolean", "bool[pyarrow]"}:
        column = pa.array(column)
    if isinstance(column, pa.Array | pa.ChunkedArray) and pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())  # numpy's bool has no NaN for a null
    values = to_array(column)
    if values.dtype.kind in NUMERIC:
        return values
    if values.dtype.kind in "mMc":  # numpy would take their ticks for numbers, and a missing one for a number, too
        raise ValueError(f"feature {name!r} holds {values.dtype}; make it a number of known units in the preprocess")
    if is_category(column):
        raise JobError(
            f"model.features: {name!r} holds text or categories, and the model has none for it; list the columns that "
            "the model takes, or convert this one to numbers in a preprocess"
        )
    try:
        return values.astype(np.float64)  # objects that are numbers, or None
    except (TypeError, ValueError):
        raise ValueError(f"feature {name!r} holds no numbers, or rows that differ in length") from None


def codes(name: str, column: Any, categories: pa.Array, refuse_others: bool) -> Array:
    """A column of categories as their codes in float64; nulls are NaN.

    refuse_others: whether a value that is no category is an error; else it is NaN, too.

    Raises:
        JobError: The column holds text and the categories numbers, or the other way round.
        ValueError: A value is no category, and `refuse_others`.
    """
    values = _as_arrow(column)
    common = _common(values.type, categories.type)
    if common is None:
        raise JobError(
            f"model.features: {name!r} is {values.type}, and the model's categories of it are {categories.type}: "
            f"{_some(categories)}"
        )
    values = values.cast(common)
    found = pc.index_in(values, value_set=categories.cast(common), skip_nulls=True)
    if refuse_others and found.null_count > values.null_count:
        other = values.filter(pc.and_(pc.is_null(found), pc.is_valid(values)))[0].as_py()
        raise ValueError(
            f"feature {name!r} holds {other!r}, which is none of the model's categories: {_some(categories)}"
        )
    return np.asarray(found.cast(pa.float64()).to_numpy(zero_copy_only=False))


def _as_arrow(column: Any) -> pa.Array:
    """A column of any kind of batch as an array without a dictionary, NaN as null."""
    if isinstance(column, pa.ChunkedArray):
        column = joined(column)
    elif not isinstance(column, pa.Array):
        column = pa.array(column if is_series(column) else to_array(column), from_pandas=True)
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    return pc.if_else(pc.is_nan(column), None, column) if pa.types.is_floating(column.type) else column


def is_category(column: Any) -> bool:
    """Whether a column of any kind of batch holds text, or categories of anything."""
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return is_text(column.type) or pa.types.is_dictionary(column.type)
    if is_series(column) and str(column.dtype).partition("[")[0] in {"category", "str", "string", "large_string"}:
        return True
    values = to_array(column)
    return values.dtype.kind == "U" or (values.dtype == object and any(isinstance(value, str) for value in values))


def _common(kind: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type in which values of both can be compared; None if there is none."""
    if is_text(kind) and is_text(other):
        return pa.large_string()
    if pa.types.is_null(kind):
        return other
    if is_native_number(kind) and is_native_number(other):
        floats = pa.types.is_floating(kind) or pa.types.is_floating(other)
        return pa.float64() if floats else pa.int64()
    return None


def _some(categories: pa.Array) -> str:
    """A few of the categories, for a message."""
    shown = ", ".join(map(repr, categories[:8].to_pylist()))
    return shown if len(categories) <= 8 else f"{shown} … ({len(categories)} in all)"


# ---- what models return, as the declared outputs ---------------------------------------------------------------


def ordered(raw: Array, classes: Sequence[Any] | None, types: Mapping[str, pa.DataType]) -> Array:
    """A classifier's result in the order of the outputs, if it has a column for each class. Raises as `of_classes`."""
    if classes is None or raw.ndim != 2 or raw.shape[1] != len(classes):
        return raw
    columns = of_classes(classes, types)
    return raw if columns is None else raw[:, columns]


def of_classes(classes: Sequence[Any] | None, types: Mapping[str, pa.DataType]) -> list[int] | None:
    """The columns of a classifier's figures that the outputs are; None for all columns in their order.

    Outputs with the names of classes are the figures of these, in any order. A lone output with another name is that of
    the second of two classes.

    Raises:
        JobError: The outputs are not this, nor one for each class, nor one list.
    """
    if classes is None or (len(types) == 1 and _holds_several(next(iter(types.values())))):
        return None
    names = [str(each) for each in classes]
    if found := [name for name in types if name in names]:
        if other := next((name for name in types if name not in names), None):
            raise JobError(
                f"model.outputs: {found[0]!r} is a class of the model, and {other!r} is none; name each output as its "
                f"class ({', '.join(names)}), or none"
            )
        return [names.index(name) for name in types]
    if len(names) == len(types):
        return None
    if len(types) == 1 and len(names) == 2:
        return [1]
    raise JobError(
        f"model.outputs: {len(types)} for {len(names)} classes ({', '.join(names)}); declare one for each, in this "
        f"order, or one list, as float32[{len(names)}]" + (", or one for the second class" if len(names) == 2 else "")
    )


def by_column(raw: Array, types: Mapping[str, pa.DataType], called: str) -> dict[str, Array]:
    """The declared outputs from an array of shape (n,) or (n, k): all of it as the only one, or a column for each.

    called: what returned the array, for the message.

    Raises:
        OutputInvalid: The array has another number of columns than there are outputs.
    """
    first, *others = types
    if not others and (raw.ndim == 1 or _holds_several(types[first])):
        return {first: raw}
    if raw.ndim == 2 and raw.shape[1] == len(types):
        return dict(zip(types, raw.T, strict=True))
    raise OutputInvalid(
        f"{called} returned an array of shape {raw.shape} for {len(raw)} rows, and model.outputs declares "
        f"{len(types)}: {', '.join(types)}"
    )


def by_name(raw: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    """The outputs of a torch model by name: as it names them itself, or one tensor or several in their order, or the
    columns of one tensor.

    what: what returned them, for the message.

    Raises:
        OutputInvalid: It returned another number of tensors than there are outputs.
    """
    if isinstance(raw, Mapping):
        return dict(raw)
    if len(names) > 1 and is_tensor(raw) and raw.ndim == 2 and raw.shape[1] == len(names):
        raw = tuple(raw.T)
    found = (raw,) if is_tensor(raw) or not isinstance(raw, Sequence) else raw
    if len(found) != len(names):
        raise OutputInvalid(
            f"the {what} returned {len(found)} outputs, but model.outputs declares {len(names)}: "
            f"output {names[min(len(found), len(names) - 1)]!r} has no counterpart"
        )
    return dict(zip(names, found, strict=True))


def _holds_several(kind: pa.DataType) -> bool:
    """Whether a value of the type is several numbers."""
    return is_list(kind) or is_tensor_type(kind)
