"""The key of a row: 128 bits of the values that a model sees, under a secret, computed for whole columns at a time.

Values of a fixed width are words of 32 bits. A key is four sums over the words, each multiplied by a secret number of
64 bits, modulo 2^64; the upper 32 bits of a sum count: the family Multilinear (Lemire and Kaser, "Strongly universal
string hashing is fast", 2014). Two rows that were chosen without knowing the secret have the same sum with a
probability of 2^-32, and so the same key with 2^-128. Values of a variable length become four words by SipHash-2-4
(Aumasson and Bernstein, 2012) under two secret keys.

Values are equal if their bits are: 0.0 is not -0.0. A null is unlike every value.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from nightjar.inference.arrow_types import holds_list_view, is_list, is_text
from nightjar.inference.metrics.columns import plain, plain_type
from nightjar.inference.predictors.arrays import joined

Words = npt.NDArray[np.uint64]

Keys = npt.NDArray[np.uint64]
"""One key per row, of shape (rows, 2)."""

_BLOCK = 1 << 14
"""The most rows that are hashed at a time, so that the sums stay in the processor's cache."""

_BLOCK_BYTES = 1 << 30
"""The most bytes of one column that are hashed at a time: Arrow's offsets of 32 bits address twice as many."""

_LANES = 4
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def row_keys(table: pa.Table, secret: bytes) -> Keys:
    """A key per row. table: the columns that a model sees, in its order. secret: as of all nights that are compared."""
    columns = [joined(plain(each)) if _is_number(each.type) else each for each in table.columns]
    keys = np.empty((table.num_rows, 2), np.uint64)
    room = np.empty((2, _LANES, min(_BLOCK, table.num_rows)), np.uint64)
    for low, high in _blocks(columns, table.num_rows):
        words = _all_words([_alone(column.slice(low, high - low)) for column in columns], secret)
        upper = _sums(words, secret, *room[:, :, : high - low]) >> _32
        np.bitwise_or(upper[::2] << _32, upper[1::2], out=keys[low:high].T)
    return keys


def has_key(kind: pa.DataType) -> bool:
    """Whether values of a type have a key."""
    kind = plain_type(kind)
    if is_.is_struct(kind) or is_.is_map(kind) or (is_list(kind) and not holds_list_view(kind)):
        return all(has_key(kind.field(at).type) for at in range(kind.num_fields))
    simple = is_.is_null(kind) or is_.is_boolean(kind) or is_.is_decimal(kind)
    return bool(simple or _is_number(kind) or is_text(kind) or _is_binary(kind))


def _blocks(columns: list[pa.Array | pa.ChunkedArray], rows: int) -> Iterator[tuple[int, int]]:
    """The rows of each block, (first, last + 1): so few that their values have room in one array."""
    chunked = [column for column in columns if isinstance(column, pa.ChunkedArray)]
    low = 0
    while low < rows:
        size = min(_BLOCK, rows - low)
        while size > 1 and any(column.slice(low, size).nbytes > _BLOCK_BYTES for column in chunked):
            size //= 2
        yield low, low + size
        low += size


def _alone(block: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A block of a column. It is copied if its type has no fixed width: a slice of lists knows all items after it."""
    return block if isinstance(block, pa.Array) else plain(block).combine_chunks()


def _sums(words: Iterator[Words], secret: bytes, sums: Words, product: Words) -> Words:
    """The sums over the words, one per lane and row; of the room that is given for them and for products."""
    sums[:] = _numbers(secret, b"offset")
    for at, word in enumerate(words):
        np.multiply(word, _numbers(secret, at.to_bytes(4, "big")), out=product)
        np.add(sums, product, out=sums)
    return sums


def _all_words(columns: list[pa.Array], secret: bytes) -> Iterator[Words]:
    """The words of a row's values, and of which of them are null."""
    absent = np.zeros(len(columns[0]) if columns else 0, np.uint64)
    for index, column in enumerate(columns):
        if index and index % 32 == 0:
            yield absent
            absent = np.zeros_like(absent)
        if column.null_count:
            absent |= np.asarray(column.is_null()).astype(np.uint64) << np.uint64(index % 32)
        yield from _words(column, secret)
    yield absent


@cache
def _numbers(secret: bytes, label: bytes) -> npt.NDArray[np.uint64]:
    """A secret number per lane, by what they are for."""
    digest = hashlib.shake_256(len(secret).to_bytes(1, "big") + secret + label).digest(8 * _LANES)
    return np.frombuffer(digest, np.uint64)[:, None]


def _words(column: pa.Array, secret: bytes) -> Iterator[Words]:
    """The values as words of 32 bits, one array per word; 0 for a null. Their number depends on the type alone."""
    kind = column.type
    if is_.is_null(kind):
        return
    if is_.is_boolean(kind):
        yield np.asarray(column.fill_null(False)).astype(np.uint64)
    elif _is_number(kind):
        yield from _of_numbers(column)
    elif is_.is_struct(kind):
        yield np.asarray(column.is_null()).astype(np.uint64)
        for field in column.flatten():
            values = plain(pa.chunked_array([field])).combine_chunks()
            yield np.asarray(values.is_null()).astype(np.uint64)
            yield from _words(values, secret)
    elif is_.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        yield from _words(column.cast(pa.large_list(entry)), secret)
    elif is_list(kind):
        lists = column.cast(pa.large_list(kind.value_type))
        yield from _of_bytes(_contents(lists, _item_bits(lists.values, secret)), secret)
        yield from _of_absent_items(lists, secret)
    elif is_.is_decimal(kind):
        yield from _of_bytes(column.view(pa.binary(kind.byte_width)).cast(pa.large_binary()), secret)
    elif is_text(kind):
        yield from _of_bytes(column.cast(pa.large_string()).cast(pa.large_binary()), secret)
    elif _is_binary(kind):
        yield from _of_bytes(column.cast(pa.large_binary()), secret)
    else:
        raise TypeError(f"rows with values of the type {kind} have no key")


def _is_binary(kind: pa.DataType) -> bool:
    return bool(is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind))


def _is_number(kind: pa.DataType) -> bool:
    return is_.is_primitive(kind) and not is_.is_boolean(kind) and not is_.is_decimal(kind) and kind.bit_width <= 64


def _of_numbers(column: pa.Array) -> Iterator[Words]:
    values = _as_integers(column)
    if values.itemsize <= 4:
        yield values.astype(np.uint64)
        return
    yield values & _LOW
    yield values >> _32


def _as_integers(column: pa.Array) -> npt.NDArray[Any]:
    """The bits of numbers as integers without sign; 0 for a null."""
    bits = np.frombuffer(column.buffers()[1], f"u{column.type.bit_width // 8}")
    values = bits[column.offset : column.offset + len(column)]
    return np.where(np.asarray(column.is_null()), 0, values) if column.null_count else values


def _of_bytes(column: pa.Array, secret: bytes) -> Iterator[Words]:
    """Four words of each value. column: of large binary."""
    from pandas.util import hash_array  # which takes a while to import

    values = column.fill_null(b"").to_numpy(zero_copy_only=False)
    for label in (b"first", b"second"):
        key = base64.b64encode(hashlib.blake2b(label, key=secret, digest_size=12).digest()).decode()
        hashed = np.where(np.asarray(column.is_null()), 0, hash_array(values, hash_key=key, categorize=False))
        yield hashed & _LOW
        yield hashed >> _32


def _item_bits(items: pa.Array, secret: bytes) -> npt.NDArray[Any]:
    """The bits of the items of lists; of items that are no numbers, their keys."""
    if _is_number(items.type):
        return np.ascontiguousarray(_as_integers(items))
    return row_keys(pa.table([items], ["item"]), secret).view([("", np.uint64)] * 2).ravel()


def _contents(lists: pa.Array, bits: npt.NDArray[Any]) -> pa.Array:
    """The bytes of each list. lists: large lists, without whose nulls its offsets say nothing. bits: of their items."""
    offsets = np.asarray(lists.offsets, np.int64) * bits.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(bits)]
    made = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lists), buffers)
    return pc.if_else(lists.is_null(), pa.scalar(None, pa.large_binary()), made)


def _of_absent_items(lists: pa.Array, secret: bytes) -> Iterator[Words]:
    """Four words of which items are null; 0 for a list without such an item."""
    items = lists.values
    if not items.null_count:
        yield from np.zeros((4, len(lists)), np.uint64)
        return
    absent = np.asarray(items.is_null()).astype(np.uint8)
    offsets = np.asarray(lists.offsets, np.int64)
    before = np.concatenate([[0], np.cumsum(absent)])
    has = (before[offsets[1:]] > before[offsets[:-1]]) & ~np.asarray(lists.is_null())
    for words in _of_bytes(_contents(lists, absent), secret):
        yield np.where(has, words, 0)
