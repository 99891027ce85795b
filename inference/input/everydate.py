"""A location with `{date}`, matched for any date: files of other nights must not count as code of tonight's run."""

from __future__ import annotations

import glob
import re
import string
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from nightjar.inference.errors import JobError, StorageError
from nightjar.inference.input.listing import Places, takes_in
from nightjar.inference.input.lists import named_in
from nightjar.inference.input.sources.reading import format_of, source_named
from nightjar.inference.job.seams import SOURCES
from nightjar.inference.storage.local import LocalStorage

_DIGITS = {"Y": 4, "m": 2, "d": 2, "y": 2, "j": 3}
"""Directives of a date's format that always give this number of digits. Others match any text, as a month's name."""

_WHOLE = {"": "%Y-%m-%d", "%F": "%Y-%m-%d", "%D": "%m/%d/%y"}

_FIXED = re.compile(r"\[(0-9|[*?\[])\]")
"""Brackets of a pattern that match one digit of a date, or one escaped character."""

_CHOICE = re.compile(r"[*?\[]")


def pattern_of(uri: str) -> str:
    """The pattern, in the syntax of `input.uri`, that matches the location on every date.

    Raises:
        ValueError: There are braces that are not a placeholder.
    """
    parts = []
    for literal, field, spec, _ in string.Formatter().parse(uri):
        parts += [literal, "" if field is None else _dates(_WHOLE.get(spec or "", spec or ""))]
    return "".join(parts)


def _dates(spec: str) -> str:
    return re.sub(r"%([^A-Za-z]*[A-Za-z])", lambda found: "[0-9]" * _DIGITS.get(found[1], 0) or "*", spec)


def tells_input(file: str, kinds: Collection[str]) -> bool:
    """Whether a file is input by its name. kinds: the job's formats; without any, those that do not stand back."""
    told = format_of(file)
    if told is None:
        return False
    return told in kinds if kinds else not source_named(told).stands_back


def beside(kind: str | None) -> tuple[str, ...]:
    """The ends of the names of files that belong to the file beside which they lie. kind: `input.format`."""
    return source_named(kind).beside if kind in SOURCES else ()


def whole(file: str, ends: Iterable[str]) -> str:
    """The file to which a file with one of these ends belongs; any other file itself."""
    return file.removesuffix(next((end for end in ends if file.endswith(end)), ""))


class EveryDate:
    """Input or output of a job, on any date. uri: with its placeholders. kind: `input.format`, if the job names it.
    ends: of the files that belong to a file beside them.

    Raises:
        ValueError: As in `pattern_of`.
        JobError: The uri is not a valid pattern.
    """

    def __init__(self, uri: str, kind: str | None = None, ends: Collection[str] = ()) -> None:
        self._ends = ends
        self._pattern = pattern_of(uri)
        self._kinds = {each for each in (kind, format_of(self._pattern)) if each}
        # If the date is the only open part, everything at the location belongs to it, whatever its name.
        exact = self._pattern != uri and not _CHOICE.search(_FIXED.sub("", self._pattern))
        self._place = self._pattern.rstrip("/") if exact else ""
        takes_in(self._pattern, "")

    def is_place(self, path: str) -> bool:
        """Whether a folder or file is the location itself, on some date."""
        return bool(self._place) and takes_in(self._place, path)

    def takes(self, file: str) -> bool:
        """Whether a file belongs to it, on some date."""
        file = whole(file, self._ends)
        if self._place and (self.is_place(file) or takes_in(f"{self._place}/", file)):
            return True
        return tells_input(file, self._kinds) and takes_in(self._pattern, file)


class EveryList:
    """The input that a local list names: of a list with `{date}`, on all dates for which there is one.

    uri: of the list, with its placeholders. kind: `input.format`, if the job names it. folder: where the list's
    relative paths are looked up.

    Raises:
        ValueError: As in `pattern_of`.
    """

    def __init__(self, uri: str, kind: str | None, folder: Path) -> None:
        found: set[str] = set()
        for file in glob.glob(pattern_of(uri)):  # noqa: PTH207 (the pattern is absolute)
            with suppress(JobError, StorageError):  # an error of the run that needs this list, which will say so
                found.update(named_in(file, LocalStorage().read(file), folder))
        self._kinds = [kind] if kind else []
        self._places = Places(found)

    def is_place(self, path: str) -> bool:
        """Whether a folder or file is the location itself: that is `EveryDate` of the list."""
        return False

    def takes(self, file: str) -> bool:
        """Whether a file is such input."""
        return file in self._places.exact or (tells_input(file, self._kinds) and self._places.takes(file))
