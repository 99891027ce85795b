"""Values as text, for whole columns at once: numbers with all their digits, dates and times as in ISO 8601."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_text

LARGE = pa.large_string()
"""The type of all columns of texts here. Its offsets have 64 bits, because many rows may take over 2 GiB."""


def is_scalar(kind: pa.DataType) -> bool:
    """Whether a value of this type is one text, from which a reader gets the same value again."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return is_scalar(kind.value_type)
    plain = (is_.is_null, is_.is_boolean, is_.is_integer, is_.is_floating, is_.is_decimal, is_text)
    return any(test(kind) for test in (*plain, is_.is_date, is_.is_time, is_.is_timestamp))


def text_of(array: pa.Array) -> pa.Array:
    """Each value of a scalar type as text; a null stays null. NaN is `nan`, and the infinite numbers `inf`, `-inf`."""
    is_, kind = pa.types, array.type
    if is_.is_dictionary(kind):
        return text_of(array.dictionary_decode())
    if is_.is_null(kind):
        return pa.nulls(len(array), LARGE)
    if is_.is_float16(kind):
        return text_of(array.cast(pa.float32()))
    if is_.is_floating(kind):
        return _with_point(array.cast(LARGE))
    if is_.is_date64(kind):
        return array.cast(pa.date32()).cast(LARGE)
    if is_.is_timestamp(kind) and kind.tz is not None:
        return array.cast(pa.timestamp(kind.unit, "UTC")).cast(LARGE)
    return array.cast(LARGE)


def joined(*texts: pa.Array | str) -> pa.Array:
    """The texts of each row one after the other; a row with a null is null."""
    columns = [pa.scalar(each, LARGE) if isinstance(each, str) else each for each in texts]
    return pc.binary_join_element_wise(*columns, pa.scalar("", LARGE))


def concatenated(lines: pa.Array) -> pa.Buffer:
    """The texts of all rows, of which none is null, in one piece of memory."""
    _, offsets, texts = lines.buffers()
    ends = memoryview(offsets).cast("q")
    first, last = ends[lines.offset], ends[lines.offset + len(lines)]
    return texts.slice(first, last - first)


def _with_point(numbers: pa.Array) -> pa.Array:
    """Floats that are whole numbers with a point, so that a reader does not take the column for one of integers."""
    return pc.if_else(pc.match_substring_regex(numbers, r"^-?\d+$"), joined(numbers, ".0"), numbers)
