"""The keys by which labels find their rows: the values of one or several columns, whatever types hold them.

A key is compared by its text, so that 7 is the same key as int16, as uint64, as decimal(9, 0) and as the text `7`. A
row with a null in its key has no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_text, type_name
from nightjar.inference.errors import JobError
from nightjar.inference.messages import nearest
from nightjar.inference.metrics.columns import plain, plain_type

_ALIKE = {"whole number", "text"}
"""The kinds that join with each other."""

_BYTES = (is_.is_binary, is_.is_large_binary, is_.is_fixed_size_binary)
"""Whether a type is one of bytes; UUIDs are, too."""

_DECLARED = {"text": "string", "date": "date32", "bool": "bool"}


def kind_of(type_: pa.DataType) -> str:
    """The kind of a key's column; empty for types that are no key: floats, lists, structs and the like."""
    type_ = plain_type(type_)
    if is_.is_integer(type_) or (is_.is_decimal(type_) and type_.scale == 0):
        return "whole number"
    if is_text(type_):
        return "text"
    if is_.is_timestamp(type_):
        return "time in UTC" if type_.tz else "time without a zone"
    kinds = ((is_.is_boolean, "bool"), (is_.is_date, "date"), *((test, "bytes") for test in _BYTES))
    return next((kind for test, kind in kinds if test(type_)), "")


def declared(type_: pa.DataType) -> str:
    """The type, as a job file writes it, in which to read a key from files that only let one guess its type; empty if
    the guess is good enough.
    """
    kind = kind_of(type_)
    if kind == "whole number":
        return "uint64" if is_.is_uint64(type_) else "int64"
    return type_name(type_) if is_.is_timestamp(type_) else _DECLARED.get(kind, "")


NOT_CARRIED = "; or carry it, and score the night again"
"""What helps if a published night lacks a column."""


def check_columns(key: str, wanted: Iterable[str], known: Sequence[str], of: str, remedy: str = "") -> None:
    """Check that columns are there. key: of the job or the command, for the message. remedy: what else helps, if no
    column has a name like this.

    Raises:
        JobError: One is not there.
    """
    for name in wanted:
        if name not in known:
            more = nearest(name, known) or f"; there are {', '.join(known[:30])}{remedy}"
            raise JobError(f"{key}: {name!r} is not a column of {of}{more}")


def check_kinds(
    key: Sequence[str],
    rows: pa.Schema,
    others: pa.Schema,
    called: tuple[str, str] = ("the published rows", "the labels"),
) -> None:
    """Check that the key's columns can be compared. called: rows and others, for people.

    Raises:
        JobError: One is of a type that is no key, or not of the same kind in both.
    """
    for name in key:
        types = list(zip(called, (rows.field(name).type, others.field(name).type), strict=True))
        for where, type_ in types:
            if not kind_of(type_):
                more = ", because floats are not exact" if is_.is_floating(type_) else ""
                raise JobError(
                    f"key: {name!r} is {type_name(type_)} in {where}, which is no key{more}; whole numbers, text, "
                    "dates, times, bools and bytes are"
                )
        one, other = (kind_of(type_) for _, type_ in types)
        if one != other and {one, other} != _ALIKE:
            shown = " and ".join(f"{type_name(type_)} in {where}" for where, type_ in types)
            raise JobError(f"key: {name!r} is {shown}; these are never equal")


def keys_of(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """The key of each row as bytes; null where one of its columns is null.

    Raises:
        JobError: A time is finer than a microsecond.
    """
    texts = [_text(plain(column)) for column in columns]
    if len(texts) == 1:
        return texts[0]
    # The length before each value tells ("a", "bc") from ("ab", "c").
    parts = []
    for text in texts:
        parts += [pc.binary_length(text).cast(pa.large_string()).cast(pa.large_binary()), text]
    return pc.binary_join_element_wise(*parts, pa.scalar(b" ", pa.large_binary()))


def values_of(key: bytes, columns: int) -> list[str]:
    """The values of a key's columns, as texts. key: as of `keys_of`. columns: how many it has."""
    values = []
    if columns == 1:
        values, key = [key], b""
    while key:
        length, _, key = key.partition(b" ")
        values.append(key[: int(length)])
        key = key[int(length) + 1 :]
    return [value.decode(errors="backslashreplace") for value in values]


def shown(key: bytes, names: Sequence[str]) -> str:
    """A key for people."""
    return ", ".join(f"{name} = {value}" for name, value in zip(names, values_of(key, len(names)), strict=True))


def _text(column: pa.ChunkedArray) -> pa.Array:
    type_ = column.type
    if any(test(type_) for test in _BYTES):
        return column.cast(pa.large_binary()).combine_chunks()
    if is_.is_date(type_):
        column = column.cast(pa.date32())
    elif is_.is_timestamp(type_):
        try:
            column = column.cast(pa.timestamp("us", "UTC" if type_.tz else None))
        except pa.ArrowInvalid as error:
            raise JobError(f"key: a time is finer than a microsecond: {error}") from None
    return column.cast(pa.large_string()).cast(pa.large_binary()).combine_chunks()
