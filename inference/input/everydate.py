"""A location with `{date}` in it, as what it may be on any date: tonight's code must not know last night's files."""

from __future__ import annotations

import re
import string

from nightjar.inference.input.listing import takes_in
from nightjar.inference.input.sources.reading import format_of

_DIGITS = {"Y": 4, "m": 2, "d": 2, "y": 2, "j": 3}
"""Of a date's format, what is always so many digits. Whatever else it may hold can be anything: a month has a name."""

_WHOLE = {"": "%Y-%m-%d", "%F": "%Y-%m-%d", "%D": "%m/%d/%y"}

_FIXED = re.compile(r"\[(0-9|[*?\[])\]")
"""In a pattern, a digit of a date or a character that stands for itself."""

_CHOICE = re.compile(r"[*?\[]")


def pattern_of(uri: str) -> str:
    """The pattern, as of an input, that matches the location of every date.

    Raises:
        ValueError: braces that are no placeholder.
    """
    parts = []
    for literal, field, spec, _ in string.Formatter().parse(uri):
        parts += [literal, "" if field is None else _dates(_WHOLE.get(spec or "", spec or ""))]
    return "".join(parts)


def _dates(spec: str) -> str:
    return re.sub(r"%([^A-Za-z]*[A-Za-z])", lambda found: "[0-9]" * _DIGITS.get(found[1], 0) or "*", spec)


class EveryDate:
    """Input or output of a job, on whatever date. uri: as a pattern, its placeholders open.

    Raises:
        ValueError: as `pattern_of`.
        JobError: it is no pattern.
    """

    def __init__(self, uri: str) -> None:
        self._pattern = pattern_of(uri)
        # Of a place with a date and nothing else open it is known what lies there, whatever its name.
        exact = self._pattern != uri and not _CHOICE.search(_FIXED.sub("", self._pattern))
        self._place = self._pattern.rstrip("/") if exact else ""
        takes_in(self._pattern, "")

    def is_place(self, path: str) -> bool:
        """Whether a folder or file is the place itself, on some date."""
        return bool(self._place) and takes_in(self._place, path)

    def takes(self, file: str) -> bool:
        """Whether a file belongs to it, on some date."""
        if self._place and (self.is_place(file) or takes_in(f"{self._place}/", file)):
            return True
        return format_of(file) is not None and takes_in(self._pattern, file)
