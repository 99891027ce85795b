"""Finds the lines of a text that cannot be parsed, and leaves the others together, because one by one they are slow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

import pyarrow as pa

from nightjar.inference.errors import InputCorrupt

T = TypeVar("T")

LineError: TypeAlias = "pa.ArrowInvalid | UnicodeDecodeError"
"""What parsing a line raises."""

UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""What a text begins with that is UTF-16, as some programs write it."""


def in_parts(
    lines: Sequence[bytes], parse: Callable[[Sequence[bytes]], T], known: Mapping[int, LineError] = {}
) -> Iterator[tuple[int, int, T | LineError]]:
    """Parse lines in order: yield (first, last + 1, what was parsed), or a line's error.

    Lines that fail together are halved until they fail alone. known: lines that are known to fail.
    """
    edges = [-1, *sorted(known), len(lines)]
    todo = [(row, row + 1) for row in known] + [(low + 1, high) for low, high in itertools.pairwise(edges)]
    todo = sorted((span for span in todo if span[0] < span[1]), reverse=True)
    while todo:
        low, high = todo.pop()
        if low in known:
            yield low, high, known[low]
            continue
        found: T | LineError
        try:
            found = parse(lines[low:high])
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            if high - low > 1:
                middle = (low + high) // 2
                todo += (middle, high), (low, middle)
                continue
            found = error
        yield low, high, found


def first_bad(count: int, parse: Callable[[int], object]) -> int | None:
    """The index of the first of several things that cannot be parsed; None if all can. parse: parses the first n."""

    def fails(many: int) -> bool:
        try:
            parse(many)
        except pa.ArrowInvalid:
            return True
        return False

    if not fails(count):
        return None
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if fails(middle) else (middle, bad)
    return bad - 1


def not_utf8(at: str, error: UnicodeDecodeError, *, encodings: bool = False) -> InputCorrupt:
    """The error of a line. at: its file and line. encodings: whether the source has the option `encoding`."""
    known = ": it is UTF-16" if error.object.startswith(UTF16) else ""
    how = ", or name its encoding in input.options.encoding" if encodings else ""
    return InputCorrupt(f"{at} is not UTF-8 text: {error.reason}{known}; save the file as UTF-8{how}")


def check_utf8(where: str, line: int, block: bytes) -> None:
    """Check that a block is UTF-8 text. where, line: of its first line, for the message.

    Raises:
        InputCorrupt: It is not.
    """
    try:
        block.decode()
    except UnicodeDecodeError as error:
        number = line + block.count(b"\n", 0, error.start)
        raise not_utf8(f"{where}: line {number}", error, encodings=True) from error
