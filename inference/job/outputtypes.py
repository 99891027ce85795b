"""The types of columns that a job declares: how a job file writes an Arrow type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

from nightjar.inference.arrow_types import alike, not_told_apart


def arrow_type(text: str) -> pa.DataType:
    """An Arrow type from its text.

    `float32`, `string`, `timestamp[us, UTC]`, `list<float32>`, `float32[384]` for lists of this length,
    `uint8[32, 32, 3]` for tensors of this shape, `struct<label: string, score: float32>`.

    Raises:
        ValueError: The text names no type.
    """
    text = text.strip()
    if match := re.fullmatch(r"list<(.+)>", text):
        return pa.list_(arrow_type(match[1]))
    if match := re.fullmatch(r"struct<(.+)>", text):
        if two := alike(fields := [*_fields(match[1])]):
            raise ValueError(f"of the fields of a struct {not_told_apart(*two)}")
        return pa.struct(fields)
    if match := re.fullmatch(r"timestamp\[(s|ms|us|ns),\s*(.+)\]", text):
        return pa.timestamp(match[1], tz=match[2])
    if match := re.fullmatch(r"(\w+)\[(\d+)\]", text):
        return pa.list_(arrow_type(match[1]), int(match[2]))
    if match := re.fullmatch(r"(\w+)\[(\d+(?:\s*,\s*\d+)+)\]", text):
        return _tensor(arrow_type(match[1]), [int(length) for length in match[2].split(",")])
    with suppress(ValueError):
        if not text.endswith("_view"):  # of which Arrow can take no values
            return pa.type_for_alias(text)
    raise ValueError(
        f"{text!r} is not an Arrow type; write float32, int64, string, bool, timestamp[us], list<float32>, "
        "float32[384], uint8[32, 32, 3] or struct<label: string, score: float32>"
    )


def _fields(text: str) -> Iterator[pa.Field]:
    for part in _parts(text):
        name, colon, kind = part.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"{part.strip()!r} is no field of a struct; write a name and a type, as score: float32")
        yield pa.field(name.strip(), arrow_type(kind))


def _parts(text: str) -> Iterator[str]:
    """The text between those commas that are within no brackets."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character in "<[") - (character in ">]")
        if character == "," and not depth:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _tensor(kind: pa.DataType, shape: list[int]) -> pa.DataType:
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ValueError(f"a tensor holds integers or floats, not {type_name(kind)}")
    if 0 in shape:
        raise ValueError("a tensor's lengths are at least 1")
    return pa.fixed_shape_tensor(kind, shape)


_AS_WRITTEN = {"halffloat": "float16", "float": "float32", "double": "float64", "date32[day]": "date32"}


def type_name(kind: pa.DataType) -> str:
    """The name of an Arrow type in a job file; Arrow's own name for float32 is `float`."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return f"{type_name(kind.value_type)}{list(kind.shape)}"
    if isinstance(kind, pa.FixedSizeListType):
        return f"{type_name(kind.value_type)}[{kind.list_size}]"
    if isinstance(kind, pa.ListType):
        return f"list<{type_name(kind.value_type)}>"
    if isinstance(kind, pa.StructType):
        return f"struct<{', '.join(f'{field.name}: {type_name(field.type)}' for field in kind)}>"
    if isinstance(kind, pa.TimestampType) and kind.tz is not None:
        return f"timestamp[{kind.unit}, {kind.tz}]"
    return _AS_WRITTEN.get(str(kind), str(kind))
