"""Keys of objects inside a record of JSON lines that the type of their column lacks."""

from __future__ import annotations

import pyarrow as pa

from nightjar.inference.arrow_types import is_list


class KeyUnknown(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow has no types
    """An object inside a record has a key that its column's type lacks. key: as `meta.size`."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"no record of those that told the type has the key {key!r}: declare the column's type in input.schema, "
            "where keys that it does not name are left out"
        )


def has_struct(kind: pa.DataType) -> bool:
    """Whether values of this type are objects, or lists of them."""
    return pa.types.is_struct(kind) or (is_list(kind) and has_struct(kind.value_type))


def unknown_key(value: object, kind: pa.DataType, name: str) -> str:
    """The first key with a value that the type lacks; '' if it lacks none. name: of the value itself."""
    if isinstance(value, list) and is_list(kind):
        return next(filter(None, (unknown_key(each, kind.value_type, name) for each in value)), "")
    if not isinstance(value, dict) or not pa.types.is_struct(kind):
        return ""
    for key, held in value.items():
        if kind.get_field_index(key) >= 0:
            if found := unknown_key(held, kind.field(key).type, f"{name}.{key}"):
                return found
        elif held is not None:
            return f"{name}.{key}"
    return ""
