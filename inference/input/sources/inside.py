"""What is inside of Arrow types: nulls without a type, dictionaries, and the place where two types differ.

pandas and others store a column in which a file has no value with the type null. It fits every type.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_list, list_of
from nightjar.inference.input.sources import normalisation


def is_empty(kind: pa.DataType) -> bool:
    """Whether a column of this type holds nulls alone."""
    return bool(is_.is_null(normalisation.values(kind)))


def holds_empty(kind: pa.DataType) -> bool:
    """Whether the type, or one in it, has no value but null."""
    inner = (holds_empty(kind.field(index).type) for index in range(kind.num_fields)) if is_.is_nested(kind) else ()
    return is_empty(kind) or any(inner)


def filled(kind: pa.DataType, like: pa.DataType) -> pa.DataType:
    """The type with what is at the same place in `like` in place of null."""
    if is_empty(kind):
        return like
    if is_list(kind) and is_list(like):
        return list_of(kind, kind.value_field.with_type(filled(kind.value_type, like.value_type)))
    if is_.is_map(kind) and is_.is_map(like):
        item = kind.item_field.with_type(filled(kind.item_type, like.item_type))
        return pa.map_(kind.key_field, item, kind.keys_sorted)
    if is_.is_struct(kind) and is_.is_struct(like):
        theirs = {field.name: field.type for field in like}
        return pa.struct([each.with_type(filled(each.type, theirs.get(each.name, each.type))) for each in kind])
    return kind


def decoded(kind: pa.DataType) -> pa.DataType:
    """The type with values in place of dictionaries, which stand for them by number."""
    if is_.is_dictionary(kind):
        return kind.value_type
    if is_list(kind):
        return list_of(kind, kind.value_field.with_type(decoded(kind.value_type)))
    if is_.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(decoded(kind.item_type)), kind.keys_sorted)
    if is_.is_struct(kind):
        return pa.struct([each.with_type(decoded(each.type)) for each in kind])
    return kind


def fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column has values of the wanted type, however they are stored, or none where it has the type null."""
    mine, theirs = normalisation.values(found), normalisation.values(wanted)
    return bool(mine == theirs or filled(mine, theirs) == theirs)


def difference(
    path: str, found: pa.DataType, wanted: pa.DataType
) -> tuple[str, pa.DataType | None, pa.DataType | None]:
    """The first place at which two types of the column `path` differ, and what each has there; None for nothing."""
    if is_.is_struct(found) and is_.is_struct(wanted):
        mine, theirs = ({field.name: field.type for field in kind} for kind in (found, wanted))
        for name in theirs | mine:
            here, there = mine.get(name), theirs.get(name)
            if here is None or there is None:
                return f"{path}.{name}", here, there
            if not fits(here, there):
                return difference(f"{path}.{name}", here, there)
    if is_list(found) and is_list(wanted) and not fits(found.value_type, wanted.value_type):
        return difference(f"{path}[]", found.value_type, wanted.value_type)
    return path, found, wanted
