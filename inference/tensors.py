"""Tensor columns, in which each value is an array: Arrow's type for arrays of one shape, and one for several shapes.

Ray Data writes both kinds under types of its own: to Parquet as lists, with the shapes in the field's metadata. Here
they become these two types, whether or not Ray has registered its types in this process. How Ray stores them was seen
in ray 2.60, `ray/data/_internal/tensor_extensions/arrow.py`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_NAME, _SHAPE = b"ARROW:extension:name", b"ARROW:extension:metadata"
_FIXED = {"ray.data.arrow_tensor", "ray.data.arrow_tensor_v2"}
_VARIABLE = "ray.data.arrow_variable_shaped_tensor"


class VariableShapedTensor(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types
    """Arrays with the same number of dimensions, each of its own shape. Readers that do not know the type see structs
    of `data`, the values in C order, and `shape`.
    """

    def __init__(self, value_type: pa.DataType) -> None:
        stored = pa.struct([("data", pa.large_list(value_type)), ("shape", pa.list_(pa.int64()))])
        super().__init__(stored, "nightjar.variable_shaped_tensor")

    @property
    def value_type(self) -> pa.DataType:
        """The type of the arrays' values."""
        return self.storage_type.field("data").type.value_type

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> VariableShapedTensor:
        return cls(storage_type.field("data").type.value_type)

    def __hash__(self) -> int:
        return hash((self.extension_name, self.value_type))

    def __str__(self) -> str:
        return f"tensors of {self.value_type}, each of its own shape"


pa.register_extension_type(VariableShapedTensor(pa.float32()))


def of_variable_shape(values: npt.NDArray[Any]) -> pa.ExtensionArray:
    """One tensor as a column of tensors that may each have another shape."""
    flat = pa.array(values.reshape(-1))
    data = pa.LargeListArray.from_arrays([0, len(flat)], flat)
    stored = pa.StructArray.from_arrays([data, pa.array([values.shape], pa.list_(pa.int64()))], ["data", "shape"])
    return pa.ExtensionArray.from_storage(VariableShapedTensor(flat.type), stored)


def recognised(schema: pa.Schema) -> pa.Schema:
    """The schema in which Ray's tensor columns have the types of this module."""
    for index, field in enumerate(schema):
        if (kind := _tensor(field)) is not None:
            schema = schema.set(index, pa.field(field.name, kind, field.nullable))
    return schema


def shaped(table: pa.Table) -> pa.Table:
    """The table in which Ray's tensor columns have the types of this module; nothing else is copied or changed."""
    for index, field in enumerate(table.schema):
        if (kind := _tensor(field)) is not None:
            chunks = [_stored(chunk).cast(kind.storage_type) for chunk in table.column(index).chunks]
            typed = [pa.ExtensionArray.from_storage(kind, chunk) for chunk in chunks]
            table = table.set_column(index, pa.field(field.name, kind, field.nullable), pa.chunked_array(typed, kind))
    return table


def to_arrays(column: pa.ExtensionArray) -> npt.NDArray[Any]:
    """Convert n tensors to numpy: an array (n, …) if the type has one shape, else n arrays as objects, None for a null.

    Raises:
        ValueError: The type has one shape, and a row is null or has a null inside.
    """
    if isinstance(column.type, VariableShapedTensor):
        return _objects(column.storage)
    if column.null_count or column.storage.flatten().null_count:  # Arrow would put an arbitrary number in its place
        raise ValueError(f"a row of {column.type} is null or has a null inside")
    if pa.types.is_boolean(column.type.value_type):  # which Arrow refuses, because it packs them in bits
        flags: npt.NDArray[Any] = column.storage.flatten().to_numpy(zero_copy_only=False)
        return flags.reshape(len(column), *column.type.shape)
    values: npt.NDArray[Any] = column.to_numpy_ndarray()
    return values


def is_tensor_type(kind: pa.DataType) -> bool:
    """Whether `to_arrays` takes columns of this type."""
    return isinstance(kind, pa.FixedShapeTensorType | VariableShapedTensor)


def _objects(stored: pa.StructArray) -> npt.NDArray[Any]:
    found = np.empty(len(stored), dtype=object)
    data, shapes = stored.field("data"), stored.field("shape")
    for index, there in enumerate(stored.is_valid().to_pylist()):
        if there:
            found[index] = data[index].values.to_numpy(zero_copy_only=False).reshape(shapes[index].as_py())
    return found


def _tensor(field: pa.Field) -> pa.BaseExtensionType | None:
    """The type of this module for a tensor column as Ray writes it; None for any other column.

    Raises:
        ValueError: Nobody can tell the shape without unpickling what the file says. Where Ray's types are registered,
            Ray refuses such a file before.
    """
    if isinstance(field.type, pa.ExtensionType):
        name, shape, stored = field.type.extension_name, field.type.__arrow_ext_serialize__(), field.type.storage_type
    else:
        told = field.metadata or {}
        name, shape, stored = told.get(_NAME, b"").decode(errors="replace"), told.get(_SHAPE, b""), field.type
    if name in _FIXED:
        try:
            sizes = json.loads(shape)
        except ValueError:
            raise ValueError(
                f"the shape of the tensors in column {field.name!r} is a pickle, as Ray 2.49 to 2.54 wrote it, and "
                "pickles of files are not loaded; write the file again with Ray 2.55 or later"
            ) from None
        return pa.fixed_shape_tensor(stored.value_type, sizes)
    return VariableShapedTensor(stored.field("data").type.value_type) if name == _VARIABLE else None


def _stored(chunk: pa.Array) -> pa.Array:
    return chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
