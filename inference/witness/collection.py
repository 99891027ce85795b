"""Things seen, each once: only so many of each kind and folder are kept, and of the others how many there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nightjar.inference.witness.records import Seen, folder_of

PER_FOLDER = 50
"""So many of one kind are kept of one folder; of things that lie in no folder so many of one kind."""

PER_KIND = 200
"""So many of one kind are kept of all folders together. No kind takes another's place."""

_COUNTED = 5000
"""So many beyond those are told apart, so that each counts once."""


class Collection:
    """What one process noticed, or all processes of a run. Safe for any number of threads, but for a count."""

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
        """Keep or count it; returns what is to be told of that, None for nothing new.

        Of those beyond the limits their number is told as it comes to 1, 2, 4, 8 …
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
        """What is kept of it."""
        return self._kept.get(_key(kind, name))

    def all(self) -> tuple[Seen, ...]:
        """What is kept, in the order in which it came; then how many there were beyond, by kind and folder."""
        return (*list(self._kept.values()), *list(self._more.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collection) and self.all() == other.all()

    def __repr__(self) -> str:
        return f"Collection({self.all()!r})"

    def _improve(self, before: Seen, one: Seen) -> Seen | None:
        """That it is named says less than that it is read, and a line more than none."""
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
            folder = ""  # one of so many that they are not told apart
        name = (one.kind, folder, one.name)
        if name in self._names or len(self._names) >= _COUNTED:
            return None
        self._names.add(name)
        self._beyond[one.kind, folder] += 1
        return self._raise(Seen(one.kind, folder, one.by, self._beyond[one.kind, folder]))

    def _raise(self, now: Seen) -> Seen | None:
        """Several processes count for themselves: the highest number is one that there are at least."""
        where = now.kind, now.name
        known = self._more.get(where)
        if known is not None and now.more <= known.more:
            return None
        self._more[where] = now
        return now if known is None or now.more.bit_length() > known.more.bit_length() else None


def _key(kind: str, name: str) -> tuple[str, str]:
    """A file counts once, however it was come by."""
    return ("path" if name.startswith("/") else kind, name)
