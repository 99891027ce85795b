"""Numbers that are written in text: which of them are not the same number, or the same name, once they are read."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_
from numpy.typing import NDArray

from nightjar.inference.arrow_types import is_list

_WHOLE = 1 << 53
"""From this number on a float64 does not hold each whole number."""

_CODE = r"^\s*(\+\d+|[+-]?0[0-9xX][0-9a-fA-F]*)\s*$"
"""Digits that are more a name than a number: 01234, +491234, 0x1F."""

_LONG = r"^\s*[+-]?\d{16,}\s*$"
_NO_NUMBER = 19
"""So many digits, or more, that no int64 holds are taken for a name."""

_CHUNK = 1 << 18
"""Bytes that are searched at once: all that is made of them stays in the processor's cache."""

_AROUND = 40
"""Bytes that are looked at before and behind those, so that a field is not cut."""

_STEPS = 32
"""The most blanks before a field, or digits of it, that are looked at to tell whether it may be a code."""


class DigitsLost(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow has no types
    """A number, as it would be read, is not what was written."""

    def __init__(self) -> None:
        super().__init__("it would lose digits: declare the column's type in input.schema")


def is_rounded(whole: int) -> bool:
    """Whether a float64, or its shortest text, which JavaScript writes, is another number than this whole number."""
    try:
        near = float(whole)
    except OverflowError:
        return True
    return int(near) != whole and int(Decimal(repr(near))) != whole


def has_large(column: pa.ChunkedArray | pa.Array) -> bool:
    """Whether there are floats, also in lists and structs, that may have been rounded from whole numbers."""
    kind = column.type
    if is_.is_floating(kind):
        low, high = pc.min_max(column).as_py().values()
        return low is not None and max(-low, high) >= _WHOLE
    if is_list(kind):
        return has_large(pc.list_flatten(column))
    return is_.is_struct(kind) and any(has_large(pc.struct_field(column, [at])) for at in range(kind.num_fields))


def is_lost(values: pa.ChunkedArray, text: pa.ChunkedArray) -> bool:
    """Whether reading these texts lost a leading zero, a sign, or last digits of a whole number in a float column."""
    # Most texts are told by their first letters, which takes a tenth of the time.
    few = text.filter(pc.or_(pc.less(text, "."), pc.and_(pc.greater(text, "0/"), pc.less(text, "1"))))
    if pc.any(pc.match_substring_regex(few, _CODE)).as_py():
        return True
    if not has_large(values):
        return False
    long = (each.strip().lstrip("+-") for each in text.filter(pc.match_substring_regex(text, _LONG)).to_pylist())
    return any(len(each) >= _NO_NUMBER or is_rounded(int(each)) for each in long)


def may_hold_codes(text: bytes, delimiter: bytes) -> bool:
    """Whether a field of a CSV text may be a code, as 01234, +491234 or 0x1F: a quick look without columns."""
    codes, plus = np.frombuffer(text, np.uint8), b"+" in text
    before, after = _among(delimiter + b'\n"'), _among(delimiter + b'\r\n"')
    lead, rear = (np.frombuffer(each * _AROUND, np.uint8) for each in (delimiter, b"\n"))
    room = _Room()
    for low in range(0, len(text), _CHUNK):
        part = codes[max(low - _AROUND, 0) : low + _CHUNK + _AROUND]
        if not low or low + _CHUNK + _AROUND > len(text):
            part = np.concatenate([lead[: 0 if low else None], part, rear])
        found = _zeros(part, delimiter[0], plus, room)
        found = _passed(part, found, -1, _BLANKS | _SIGNS, before)
        found = _passed(part, found, 1, _BLANKS | _LETTERS, after)
        if len(found):
            return True
    return False


class _Room:
    """Arrays for what is made of a chunk: new ones for each would take longer than all else."""

    def __init__(self) -> None:
        self.digits = np.empty(_CHUNK + 2 * _AROUND, np.uint8)
        self.flags = [np.empty(_CHUNK + 2 * _AROUND, np.bool_) for _ in range(3)]


def _zeros(codes: NDArray[np.uint8], delimiter: int, plus: bool, room: _Room) -> NDArray[np.int64]:
    """The offsets of zeros with which a code may begin, without those in most numbers, dates and times; and, if asked,
    of each plus. codes: with `_AROUND` bytes more on each side than are searched.
    """
    here, before = codes[_AROUND:-_AROUND], codes[_AROUND - 1 : -_AROUND - 1]
    size, zero = len(here), np.uint8(ord("0"))
    digits = np.subtract(codes[_AROUND - 2 : -_AROUND - 1], zero, out=room.digits[: size + 1])
    digit = np.less(digits, np.uint8(10), out=room.flags[0][: size + 1])
    found = np.equal(here, zero, out=room.flags[1][:size])
    some = np.greater_equal(codes[_AROUND + 1 : 1 - _AROUND], zero, out=room.flags[2][:size])
    found &= some
    np.greater(found, digit[1:], out=found)
    # In 2026-01-02 03:04 the zeros stand behind a digit and something else that separates no fields.
    np.greater_equal(before, np.uint8(ord("-")), out=some)
    some |= before == np.uint8(ord(" "))
    if delimiter >= ord("-") or delimiter == ord(" "):
        some &= before != np.uint8(delimiter)
    some &= digit[:-1]
    np.greater(found, some, out=found)
    if plus:
        found |= here == np.uint8(ord("+"))
    return np.flatnonzero(found) + _AROUND if found.any() else _NONE


def _passed(
    codes: NDArray[np.uint8], found: NDArray[np.int64], step: int, over: NDArray[np.bool_], to: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Those of the offsets from which steps over some bytes lead to some others; also if there are too many steps."""
    at, kept = found + step, []
    for _ in range(_STEPS if len(found) else 0):
        here = codes[at]
        kept.append(found[to[here]])
        more = over[here]
        found, at = found[more], at[more] + step
    return np.concatenate([found, *kept])


def _among(letters: bytes) -> NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[[*letters]] = True
    return table


_NONE = np.zeros(0, np.int64)
_BLANKS, _SIGNS, _LETTERS = _among(b" \t"), _among(b"+-"), _among(b"0123456789abcdefABCDEFxX")
