"""Columns from paths: of `…/country=de/year=2026/x.parquet` the columns `country` and `year`, as Hive and Spark write.

Only the keys of `input.partitions` become columns, with the types that it declares: a type that is inferred from the
folders of tonight may be wrong tomorrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

import pyarrow as pa

from nightjar.inference.arrow_types import type_name
from nightjar.inference.errors import SchemaMismatch
from nightjar.inference.messages import nearest

_NULL = "__HIVE_DEFAULT_PARTITION__"
"""How Hive and Spark write that the value is missing."""

_BLOCK_ROWS = 1 << 16
"""A column has at most this many values in memory, and repeats them: the text of a folder takes no space per row."""


def folders(uri: str) -> dict[str, list[str]]:
    """The `key=value` folders in a path: key → its values, the outermost first, as they are written."""
    found: dict[str, list[str]] = {}
    for part in uri.split("/")[:-1]:
        key, equals, value = part.partition("=")
        if key and equals:
            found.setdefault(unquote(key), []).append(value)
    return found


def values_of(uri: str, declared: Mapping[str, pa.DataType]) -> dict[str, pa.Scalar]:
    """The values that a file's path gives to the declared columns.

    Raises:
        SchemaMismatch: A key is not in the path, is there with two values, or its value is not of its type.
    """
    if not declared:
        return {}
    there = folders(uri)
    return {key: _value(uri, key, there, kind) for key, kind in declared.items()}


def _value(uri: str, key: str, there: Mapping[str, list[str]], kind: pa.DataType) -> pa.Scalar:
    written = sorted({*there.get(key, ())})
    if not written:
        raise SchemaMismatch(
            f"{uri}: the path has no folder {f'{key}=…'!r}, and input.partitions declares {key}{nearest(key, there)}"
        )
    if len(written) > 1:
        both = " and ".join(f"{key}={value}" for value in written[:2])
        raise SchemaMismatch(f"{uri}: the path has {both}; only one of them can be the column {key!r}")
    (value,) = written
    if value == _NULL:
        return pa.scalar(None, kind)
    try:
        return pa.scalar(unquote(value, errors="strict"), pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
        raise SchemaMismatch(
            f"{uri}: the folder {f'{key}={value}'!r} has no value of the type {type_name(kind)}, which "
            f"input.partitions declares for {key}"
        ) from None


def constant(value: pa.Scalar, rows: int) -> pa.ChunkedArray:
    """A column that has the same value in each row."""
    block = pa.repeat(value, min(rows, _BLOCK_ROWS))
    whole, rest = divmod(rows, _BLOCK_ROWS)
    return pa.chunked_array([block] * whole + ([block.slice(0, rest)] if rest else []), value.type)
