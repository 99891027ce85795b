"""Where the records of a CSV text begin: after line ends that are not inside quotes.

A field is quoted if a quote is its first character. In any other field a quote is a character like any other. This is
how Arrow reads, too.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]

_QUOTE, _LF, _CR, _BACKSLASH = b'"\n\r\\'

_BARE = "has a carriage return that no line feed follows: write line ends as \\n or \\r\\n"
_ESCAPED = "has \\\" inside quotes, which ends the field: write a quote twice, in Spark with the option escape='\"'"


class Records:
    """The records of a text that begins with a record.

    ends: the offsets after the line ends outside quotes. unclosed: the offset of a quote that is still open at the end
    of the text, else -1. wrong: the first offset, or -1, at which a record cannot be told from another, and a sentence.
    """

    def __init__(self, text: bytes, delimiter: bytes) -> None:
        self._text = np.frombuffer(text, np.uint8)
        quotes = _quotes(text, self._text, delimiter)
        self.ends: Offsets = _outside(np.flatnonzero(self._text == _LF), quotes) + 1
        self.unclosed = int(quotes[-1]) if len(quotes) % 2 else -1
        wrong = []
        if b"\r" in text:
            returns = np.flatnonzero(self._text == _CR)
            followed = self._text[np.minimum(returns + 1, len(text) - 1)] == _LF
            wrong += [(int(at), _BARE) for at in _outside(returns[~followed], quotes)[:1] if at != len(text) - 1]
        if b'\\"' in text:
            # The end of a field, but for what follows: Spark writes a quote so, unless it is told otherwise.
            ends = quotes[1::2][quotes[1::2] < len(text) - 1]
            ends = ends[self._text[ends - 1] == _BACKSLASH]
            odd = ends[~np.isin(self._text[ends + 1], [delimiter[0], _LF, _CR, _QUOTE])]
            wrong += [(int(at), _ESCAPED) for at in odd[:1]]
        self.wrong = min(wrong, default=(-1, ""))

    def spans(self) -> tuple[Offsets, Offsets]:
        """The offsets at which records begin and end. A blank line is no record; the last one may lack a line end."""
        starts = np.concatenate([np.zeros(1, np.int64), self.ends])
        stops = np.concatenate([self.ends, np.array([len(self._text)], np.int64)])
        there = starts < len(self._text)
        starts, stops = starts[there], stops[there]
        filled = (self._text[starts] != _LF) & (self._text[starts] != _CR)
        return starts[filled], stops[filled]


def _quotes(text: bytes, codes: NDArray[np.uint8], delimiter: bytes) -> Offsets:
    """The offsets of the quotes that begin or end a quoted part of a field, in turn."""
    if b'"' not in text:
        return np.zeros(0, np.int64)
    quotes = np.flatnonzero(codes == _QUOTE)
    opening, closing = quotes[::2], quotes[1::2]
    before = codes[opening[opening > 0] - 1]
    after = codes[closing[closing < len(codes) - 1] + 1]
    begins = (before == delimiter[0]) | (before == _LF) | (before == _QUOTE)
    ends = (after == delimiter[0]) | (after == _LF) | (after == _CR) | (after == _QUOTE)
    if begins.all() and ends.all():
        return quotes
    # A quote stands within a field that is not quoted: then only looking at one field after the other tells.
    fields = re.finditer(rb"(?:\A|(?<=[\n" + re.escape(delimiter) + rb']))"[^"]*(?:""[^"]*)*("|\Z)', text)
    return np.array([at for field in fields for at in (field.start(), field.start(1))[: 1 + bool(field[1])]], np.int64)


def _outside(offsets: Offsets, quotes: Offsets) -> Offsets:
    if not len(quotes):
        return offsets
    outside: Offsets = offsets[np.searchsorted(quotes, offsets) % 2 == 0]
    return outside


def start_after(text: bytes, before: bytes, quoted: bool, delimiter: bytes) -> int | None:
    """The offset of the first line that begins in a text; None for none.

    before: the byte before. quoted: whether the text begins inside quotes; between two quotes the answer may be wrong.
    """
    if not quoted and before == b"\n":
        return 0
    # Any other byte than the delimiter is the inside of a field.
    lead = b'"' if quoted else (before if before == delimiter else b"x")
    ends = Records(lead + text, delimiter).ends
    return int(ends[0]) - 1 if len(ends) else None
