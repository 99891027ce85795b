"""One thing that a process uses and identity does not cover: as a record, and in a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

TELL_MOST = 8
"""Sentences that a command prints; the manifest has all."""

_SENTENCES = {
    "file": "reads {name}, which is not part of this run's identity; name it in `model.path` or put it beside the job",
    "mapped": "maps {name}, which is not part of this run's identity; name it in `model.path` or put it beside the job",
    "named": "names {name}, which is not part of this run's identity; if it is read, name it in `model.path` or put "
    "it beside the job",
    "folder": "names the folder {name}, which is not part of this run's identity; if files there are read, name them "
    "in `model.path` or put them beside the job",
    "live": "reads {name} in the job's folder as it is now, not as it was when the run began; open it beside the "
    "module: Path(__file__).parent",
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


UNSURE = {"folder"}
"""Kinds that a strict job does not refuse: a folder may be where something is written."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was noticed.

    kind: a key of the table of sentences. name: a path, the name of a variable, host:port; never a value. by:
    "predict.py:12", the line of the user's that was nearest; '' when none was, as in a library's own thread.
    """

    kind: str
    name: str
    by: str = ""

    @property
    def sentence(self) -> str:
        """What to say of it."""
        return f"{self.by.partition(':')[0] or 'the predictor'} {_SENTENCES[self.kind].format(name=self.name)}"


def sentences(seen: Iterable[Seen], most: int = TELL_MOST) -> list[str]:
    """One for each, but one only for all files of a folder where there are many; at last how many were left out."""
    folders: dict[tuple[str, str], list[Seen]] = {}
    for one in seen:
        where = _group(one)
        folders.setdefault((one.kind, where), []).append(one)
    said = []
    for (_, where), alike in folders.items():
        if len(alike) > 2 and where:
            joined = Seen(alike[0].kind, f"{len(alike)} files in {where}", alike[0].by)
            said.append(joined.sentence)
        else:
            said += [one.sentence for one in alike]
    left = len(said) - most
    return [*said[:most], *([f"and {left} more that are not part of this run's identity"] if left > 0 else [])]


def _group(one: Seen) -> str:
    if one.kind not in {"file", "mapped", "live", "module", "library"}:
        return ""
    if "/models--" in one.name:  # a model of the Hub: its files lie in several folders of the cache
        root, _, rest = one.name.partition("/models--")
        return f"{root}/models--{rest.partition('/')[0]}"
    return one.name.rpartition("/")[0]
