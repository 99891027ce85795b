"""The types of columns that a job declares: how a job file writes an Arrow type."""

from __future__ import annotations

import re

import pyarrow as pa


def arrow_type(text: str) -> pa.DataType:
    """`float32`, `string`, `timestamp[us, UTC]`, `list<float32>`, `float32[384]` … as an Arrow type.

    Raises:
        ValueError: the text names no type.
    """
    text = text.strip()
    if match := re.fullmatch(r"list<(.+)>", text):
        return pa.list_(arrow_type(match[1]))
    if match := re.fullmatch(r"timestamp\[(s|ms|us|ns),\s*(.+)\]", text):
        return pa.timestamp(match[1], tz=match[2])
    if match := re.fullmatch(r"(\w+)\[(\d+)\]", text):
        return pa.list_(arrow_type(match[1]), int(match[2]))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not an Arrow type; write float32, int64, string, bool, timestamp[us], "
            "list<float32> or float32[384]"
        ) from None


_AS_WRITTEN = {"halffloat": "float16", "float": "float32", "double": "float64"}


def type_name(kind: pa.DataType) -> str:
    """The name of an Arrow type in a job file; Arrow's own name for float32 is `float`."""
    return _AS_WRITTEN.get(str(kind), str(kind))
