"""One thing that a process uses and identity does not cover: as a record, and in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

TELL_MOST = 8
"""Sentences that a command prints; the manifest names what is kept, and counts the rest."""

_SENTENCES = {
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
"""What those are of which only the number is known, where they are no files."""

UNSURE = {"folder"}
"""Kinds that a strict job does not refuse: a folder may be where something is written."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was noticed.

    kind: a key of the table of sentences. name: a path, the name of a variable, host:port; never a value. by:
    "predict.py:12", the line of the user's that was nearest; '' when none was, as in a library's own thread.
    more: not 0: at least so many further things of this kind that are not kept by name, in the folder `name` if it is
    not ''.
    """

    kind: str
    name: str
    by: str = ""
    more: int = 0

    @property
    def sentence(self) -> str:
        """What to say of it."""
        who = self.by.partition(":")[0] or "the predictor"
        if not self.more:
            return f"{who} {_SENTENCES[self.kind].format(name=self.name)}"
        things = _THINGS.get(self.kind, "files") + (f" in {self.name}" if self.name else "")
        return f"{who} uses at least {self.more:,} more {things}, which are not part of this run's identity"

    def as_json(self) -> dict[str, Any]:
        """For ledger and manifest: `more` only where it says something."""
        return {key: value for key, value in asdict(self).items() if value or key != "more"}


def sentences(seen: Iterable[Seen], most: int = TELL_MOST) -> list[str]:
    """One for each, but one only for all files of a folder where there are many; at last how many were left out.

    Where some must be left out, each kind is told before one is told of twice.
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
    """All of one kind and folder; as one if they are many."""
    more = sum(one.more for one in alike)
    number = sum(not one.more for one in alike) + more
    if number <= 2 or not where:
        return alike
    return [Seen(alike[0].kind, f"{'at least ' if more else ''}{number:,} files in {where}", alike[0].by)]


def folder_of(one: Seen) -> str:
    """The folder in whose name files like this one are told together; '' if it is none of many."""
    if one.kind not in {"file", "mapped", "live", "module", "library"}:
        return ""
    if "/models--" in one.name:  # a model of the Hub: its files lie in several folders of the cache
        root, _, rest = one.name.partition("/models--")
        return f"{root}/models--{rest.partition('/')[0]}"
    return one.name.rpartition("/")[0]
