"""A collection of things seen, each once. Per kind and folder a limited number is kept; the others are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nightjar.inference.witness.records import Seen, folder_of

PER_FOLDER = 50
"""The most things of one kind that are kept per folder, or per kind for things without a folder."""

PER_KIND = 200
"""The most things of one kind that are kept for all folders together. Each kind has its own limit."""

_COUNTED = 5000
"""The number of further names that are remembered, so that each is counted only once."""


class Collection:
    """What one process noticed, or all processes of a run. It is thread-safe, but counts may then be inexact."""

    def __init__(self, seen: Iterable[Seen] = ()) -> None:
        self._kept: dict[tuple[str, str], Seen] = {}
        self._in_folder: Counter[tuple[str, str]] = Counter()
        self._of_kind: Counter[str] = Counter()
        self._names: set[tuple[str, str, str]] = set()
        self._beyond: Counter[tuple[str, str]] = Counter()
        self._more: dict[tuple[str, str], Seen] = {}
        for one in seen:
            self.add(one)

    def add(self, one: Seen) -> Seen | None:
        """Keep or count one thing. Returns what to report, or None if it is nothing new.

        The number of things beyond the limits is reported when it reaches 1, 2, 4, 8 …
        """
        if one.more:
            return self._raise(one)
        key = _key(one.kind, one.name)
        before = self._kept.get(key)
        if before is not None:
            return self._improve(before, one)
        folder = folder_of(one)
        if self._in_folder[one.kind, folder] >= PER_FOLDER or self._of_kind[one.kind] >= PER_KIND:
            return self._count(one, folder)
        self._kept[key] = one
        self._in_folder[one.kind, folder] += 1
        self._of_kind[one.kind] += 1
        return one

    def get(self, kind: str, name: str) -> Seen | None:
        """The kept thing of this kind and name, if any."""
        return self._kept.get(_key(kind, name))

    def all(self) -> tuple[Seen, ...]:
        """The kept things in the order in which they came; then the numbers of further things, by kind and folder."""
        return (*list(self._kept.values()), *list(self._more.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collection) and self.all() == other.all()

    def __repr__(self) -> str:
        return f"Collection({self.all()!r})"

    def _improve(self, before: Seen, one: Seen) -> Seen | None:
        """Replace a thing by a better report of it: reading says more than naming, and a known line more than none."""
        if before.kind == "named" != one.kind:
            better = Seen(one.kind, before.name, one.by or before.by)
        else:
            better = Seen(before.kind, before.name, before.by or one.by)
        if better == before:
            return None
        self._kept[_key(one.kind, one.name)] = better
        return better

    def _count(self, one: Seen, folder: str) -> Seen | None:
        if not self._in_folder[one.kind, folder]:
            folder = ""  # too many to remember their names
        name = (one.kind, folder, one.name)
        if name in self._names or len(self._names) >= _COUNTED:
            return None
        self._names.add(name)
        self._beyond[one.kind, folder] += 1
        return self._raise(Seen(one.kind, folder, one.by, self._beyond[one.kind, folder]))

    def _raise(self, now: Seen) -> Seen | None:
        """Keep the highest number. Each process counts for itself, so there are at least so many."""
        where = now.kind, now.name
        known = self._more.get(where)
        if known is not None and now.more <= known.more:
            return None
        self._more[where] = now
        return now if known is None or now.more.bit_length() > known.more.bit_length() else None


def _key(kind: str, name: str) -> tuple[str, str]:
    """The key under which a thing is kept. A file counts once, whether it was read, mapped or named."""
    return ("path" if name.startswith("/") else kind, name)
