"""JSON lines: an object for each row, with every column; lists and structs as JSON's own.

NaN and the infinite numbers are null, because JSON has no form for them. Decimals, dates and times are texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_list, is_text

LARGE = pa.large_string()
"""The type of all columns of text here. Its offsets have 64 bits, because many rows may take over 2 GiB."""

_ROWS = 1 << 16
"""The rows that are turned into text at once."""

_CONTROL = r"[\x00-\x1f\x7f]"


def holds(kind: pa.DataType) -> bool:
    """Whether JSON has a form for values of this type."""
    if is_list(kind):
        return holds(kind.value_type)
    if pa.types.is_struct(kind):
        return all(holds(field.type) for field in kind)
    return is_scalar(kind)


def is_scalar(kind: pa.DataType) -> bool:
    """Whether a value of this type is one text, from which a reader gets the same value again."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return is_scalar(kind.value_type)
    plain = (is_.is_null, is_.is_boolean, is_.is_integer, is_.is_floating, is_.is_decimal, is_text)
    return any(test(kind) for test in (*plain, is_.is_date, is_.is_time, is_.is_timestamp))


def write(table: pa.Table, sink: pa.NativeFile) -> None:
    """Write a line for each row."""
    for batch in table.to_batches(max_chunksize=_ROWS):
        if batch.num_rows:
            sink.write(_concatenated(_joined(_object(batch.schema.names, batch.columns), "\n")))


def _object(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Array:
    """An object for each row; it has at least one key."""
    keys = [f"{json.dumps(name, ensure_ascii=False)}:" for name in names]
    values = [pc.fill_null(_value(column), pa.scalar("null", LARGE)) for column in columns]
    pairs = [each for key, value in zip(keys, values, strict=True) for each in (",", key, value)][1:]
    return _joined("{", *pairs, "}")


def _value(array: pa.Array) -> pa.Array:
    """Each value as JSON; a null stays null."""
    is_, kind = pa.types, array.type
    if is_list(kind):
        return _list(array)
    if is_.is_struct(kind):
        if not kind.num_fields:
            return pc.if_else(array.is_valid(), pa.scalar("{}", LARGE), pa.scalar(None, LARGE))
        return pc.if_else(array.is_valid(), _object([field.name for field in kind], array.flatten()), None)
    if is_.is_dictionary(kind):
        return _value(array.dictionary_decode())
    texts = _text_of(array)
    if is_.is_floating(kind):
        number = pc.is_finite(array.cast(pa.float32()) if is_.is_float16(kind) else array)
        return pc.if_else(number, texts, pa.scalar(None, LARGE))
    return texts if is_.is_integer(kind) or is_.is_boolean(kind) or is_.is_null(kind) else _quoted(texts)


def _list(array: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_pylist()
    items = pc.fill_null(_value(pc.list_flatten(array)), pa.scalar("null", LARGE))
    offsets = pa.array(accumulate(lengths, initial=0), pa.int64())
    within = pc.binary_join(pa.LargeListArray.from_arrays(offsets, items), pa.scalar(",", LARGE))
    return pc.if_else(array.is_valid(), _joined("[", within, "]"), pa.scalar(None, LARGE))


def _quoted(texts: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(texts, _CONTROL)).as_py():
        each = (None if text is None else json.dumps(text, ensure_ascii=False) for text in texts.to_pylist())
        return pa.array(each, LARGE)
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return _joined('"', escaped, '"')


def _text_of(array: pa.Array) -> pa.Array:
    """Each value of a scalar type as text; a null stays null."""
    is_, kind = pa.types, array.type
    if is_.is_null(kind):
        return pa.nulls(len(array), LARGE)
    if is_.is_float16(kind):
        return array.cast(pa.float32()).cast(LARGE)
    if is_.is_date64(kind):
        return array.cast(pa.date32()).cast(LARGE)
    if is_.is_timestamp(kind) and kind.tz is not None:
        return array.cast(pa.timestamp(kind.unit, "UTC")).cast(LARGE)
    return array.cast(LARGE)


def _joined(*texts: pa.Array | str) -> pa.Array:
    """The texts of each row one after the other; a row with a null is null."""
    columns = [pa.scalar(each, LARGE) if isinstance(each, str) else each for each in texts]
    return pc.binary_join_element_wise(*columns, pa.scalar("", LARGE))


def _concatenated(lines: pa.Array) -> pa.Buffer:
    """The texts of all rows, of which none is null, in one piece of memory."""
    _, offsets, texts = lines.buffers()
    ends = memoryview(offsets).cast("q")
    first, last = ends[lines.offset], ends[lines.offset + len(lines)]
    return texts.slice(first, last - first)
