"""The record of one thing that a process uses and the identity does not cover, and a sentence about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from nightjar.inference.jsonform import SELDOM

TELL_MOST = 8
"""The most sentences that a command prints; the manifest has all that is kept, and the number of the others."""

_SENTENCES = {
    "absent": "looks for {name}, which lies beside the job and is not part of what scores; add it to `model.code`",
    "listed": "lists {name}, where more lies beside the job than what scores; name the files that it looks for in "
    "`model.code`",
    "file": "reads {name}, which is not part of this run's identity; name it in `model.path` or put it beside the job",
    "mapped": "maps {name}, which is not part of this run's identity; name it in `model.path` or put it beside the job",
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
    "program": "starts {name}, which is not part of this run's identity; say in `model.version` which it is",
}

_THINGS = {"environment": "variables", "network": "addresses", "database": "databases", "program": "programs"}
"""The noun for things of which only the number is known; "files" for the other kinds."""

LACKING = {"absent", "listed"}
"""Kinds that no job may have: the copy of the job's folder from which it scores lacks what the code looks for."""

UNSURE = {"folder"}
"""Kinds that a strict job does not refuse: code may name a folder only to write there."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One thing that was noticed.

    kind: a key of the table of sentences. name: a path, the name of a variable, or host:port; never a value. by: the
    nearest line of the user's code, as "predict.py:12"; '' if there is none, as in a library's own thread. more: if not
    0, the record stands for at least this many further things of this kind, in the folder `name` if that is not ''.
    """

    kind: str
    name: str
    by: str = ""
    more: int = field(default=0, metadata=SELDOM)

    @property
    def sentence(self) -> str:
        """A sentence for people."""
        who = self.by.partition(":")[0] or "the predictor"
        if not self.more:
            return f"{who} {_SENTENCES[self.kind].format(name=self.name)}"
        things = _THINGS.get(self.kind, "files") + (f" in {self.name}" if self.name else "")
        return f"{who} uses at least {self.more:,} more {things}, which are not part of this run's identity"


def sentences(seen: Iterable[Seen], most: int = TELL_MOST) -> list[str]:
    """One sentence for each thing, or for all files of a folder if there are many; then the number of those left out.

    If some must be left out, every kind gets one sentence before any kind gets two.
    """
    folders: dict[tuple[str, str], list[Seen]] = {}
    for one in seen:
        folders.setdefault((one.kind, one.name if one.more else folder_of(one)), []).append(one)
    said = [each for (_, where), alike in folders.items() for each in _joined(alike, where)]
    kinds: Counter[str] = Counter()
    turns = []
    for one in said:
        turns.append(kinds[one.kind])
        kinds[one.kind] += 1
    told = sorted(sorted(range(len(said)), key=turns.__getitem__)[:most])
    left = [one for at, one in enumerate(said) if at not in told]
    number = sum(one.more or 1 for one in left)
    least = "at least " if any(one.more for one in left) else ""
    rest = [f"and {least}{number:,} more that are not part of this run's identity"] if left else []
    return [*(said[at].sentence for at in told), *rest]


def _joined(alike: list[Seen], where: str) -> list[Seen]:
    """The things of one kind and folder, joined into one if they are many."""
    more = sum(one.more for one in alike)
    number = sum(not one.more for one in alike) + more
    if number <= 2 or not where:
        return alike
    return [Seen(alike[0].kind, f"{'at least ' if more else ''}{number:,} files in {where}", alike[0].by)]


def folder_of(one: Seen) -> str:
    """The folder under which files like this one are joined; '' if they are not joined."""
    if one.kind not in {"file", "mapped", "live", "module", "library"}:
        return ""
    if "/models--" in one.name:  # a model of the Hub has files in several folders of the cache
        root, _, rest = one.name.partition("/models--")
        return f"{root}/models--{rest.partition('/')[0]}"
    return one.name.rpartition("/")[0]
