"""What a process uses that the identity does not cover: a bounded collection, and sentences about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nightjar.inference.records import Seen

PER_FOLDER = 50
"""The most things of one kind that are kept per folder, or per kind for things without a folder."""

PER_KIND = 200
"""The most things of one kind that are kept for all folders together. Each kind has its own limit."""

TELL_MOST = 8
"""The most sentences that a command prints; the manifest has everything that is kept."""

_SENTENCES = {
    "absent": "looks for {name}, which lies beside the job and is not part of what scores; add it to `model.code`",
    "listed": "lists {name}, where more lies beside the job than what scores; name the files that it looks for in "
    "`model.code`",
    "file": "reads {name}, which is not part of this run's identity; name it in `model.path` or put it beside the job",
    "named": "names {name}, which is not part of this run's identity; if it is read, name it in `model.path` or put "
    "it beside the job",
    "folder": "names the folder {name}, which is not part of this run's identity; if files there are read, name them "
    "in `model.path` or put them beside the job",
    "live": "reads {name} in the job's folder as it is now, not as it was when the run began; open it beside the "
    "module, Path(__file__).parent, and list it in `model.code` if it is left out there",
    "module": "imports {name}, which is not part of this run's identity; put it beside the job, or install it",
    "library": "loads {name}, which is not part of this run's identity; put it beside the job, or install it",
    "environment": "reads {name} of the environment, which is not part of this run's identity; write it into "
    "`model.options`",
    "network": "connects to {name}, whose answers are not part of this run's identity; say in `model.version` which "
    "they are",
    "database": "opens the database {name}, which is not part of this run's identity; say in `model.version` which "
    "state it is in",
    "unnoted": "does what Python calls `{name}`, and Nightjar failed to note what it used; please report this",
    "program": "starts {name}, which is not part of this run's identity; say in `model.version` which it is",
}

_THINGS = {"environment": "variables", "network": "addresses", "database": "databases", "program": "programs"}
"""The noun for further things of a kind; "files" for the other kinds."""

LACKING = {"absent", "listed"}
"""Kinds that no job may have: the copy of the job's folder from which it scores lacks what the code looks for."""

UNSURE = {"folder"}
"""Kinds that a strict job does not refuse: code may name a folder only to write there."""


class Collection:
    """What one process noticed, or all processes of a run: each thing once, and a limited number per kind and folder.

    It is thread-safe, but the limits may then be inexact.
    """

    def __init__(self, seen: Iterable[Seen] = ()) -> None:
        self._kept: dict[tuple[bool, str, str], Seen] = {}
        self._numbers: Counter[tuple[str, str | None]] = Counter()
        for one in seen:
            self.add(one)

    def add(self, one: Seen) -> Seen | None:
        """Keep one thing. Returns what to report, or None if it is nothing new."""
        # A file counts once, whether it was read or named.
        key = (one.more, "path" if one.name.startswith("/") and not one.more else one.kind, one.name)
        if before := self._kept.get(key):
            one = _better(before, one)
            if one == before:
                return None
        elif not one.more:
            folder = folder_of(one)
            if self._numbers[one.kind, None] >= PER_KIND:
                return self.add(Seen(one.kind, "", one.by, more=True))
            if self._numbers[one.kind, folder] >= PER_FOLDER:
                return self.add(Seen(one.kind, folder, one.by, more=True))
            self._numbers.update([(one.kind, None), (one.kind, folder)])
        self._kept[key] = one
        return one

    def all(self) -> tuple[Seen, ...]:
        """The kept things in the order in which they came; then the records of further things."""
        return tuple(sorted(self._kept.values(), key=lambda one: one.more))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collection) and self.all() == other.all()


def _better(before: Seen, one: Seen) -> Seen:
    """The better of two reports of one thing: reading says more than naming, and a known line more than none."""
    if before.kind == "named" != one.kind:
        return Seen(one.kind, one.name, one.by or before.by)
    return Seen(before.kind, before.name, before.by or one.by, before.more)


def sentences(seen: Iterable[Seen], most: int = TELL_MOST) -> list[str]:
    """One sentence for each thing, or for all files of a folder if there are many; then the number of those left out.

    Every kind gets one sentence before any kind gets two.
    """
    folders: dict[tuple[str, str], list[Seen]] = {}
    for one in seen:
        folders.setdefault((one.kind, one.name if one.more else folder_of(one)), []).append(one)
    joined = [each for (_, folder), alike in folders.items() for each in _joined(alike, folder)]
    numbers: Counter[str] = Counter()
    ranked = []
    for one in joined:
        ranked.append((numbers[one.kind], _sentence(one)))
        numbers[one.kind] += 1
    ranked.sort(key=lambda each: each[0])
    left = len(ranked) - most
    rest = [f"and {left} more that are not part of this run's identity"] if left > 0 else []
    return [*(sentence for _, sentence in ranked[:most]), *rest]


def _sentence(one: Seen) -> str:
    who = one.by.partition(":")[0] or "the predictor"
    if not one.more:
        return f"{who} {_SENTENCES[one.kind].format(name=one.name)}"
    things = _THINGS.get(one.kind, "files") + (f" in {one.name}" if one.name else "")
    return f"{who} uses more {things}, which are not part of this run's identity"


def _joined(alike: list[Seen], folder: str) -> list[Seen]:
    """The things of one kind and folder, joined into one if they are many."""
    kept = sum(not one.more for one in alike)
    if len(alike) <= 2 or not folder:
        return alike
    more = "more than " if kept < len(alike) else ""
    return [Seen(alike[0].kind, f"{more}{kept} files in {folder}", alike[0].by)]


def folder_of(one: Seen) -> str:
    """The folder under which files like this one are joined; '' if they are not joined."""
    if one.kind not in {"file", "live", "module", "library"}:
        return ""
    if "/models--" in one.name:  # a model of the Hub has files in several folders of the cache
        root, _, rest = one.name.partition("/models--")
        return f"{root}/models--{rest.partition('/')[0]}"
    return one.name.rpartition("/")[0]
