"""What a person should know of how a night was scored: folded from its ledger, and told wherever it is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any

from nightjar.inference.ledger.lines import Packages, Preflight, encode
from nightjar.inference.records import known
from nightjar.inference.witness import Collection, Seen, sentences
from nightjar.inference.witness.packages import (
    States,
    added,
    as_json,
    changes,
    from_json,
    installed_packages,
    states_as_json,
    states_from_json,
)

FEW_CUTS = 3
"""So many batches cut in a run are not worth a word."""


@dataclass(slots=True)
class Remarks:
    """What the ledger says of the results of one identity, those that were taken over included.

    again: what made shards old that had a result. preflight: what it said when the model was tried last. outside: what
    predictors used that identity does not cover. loaded: the packages with which results were scored. tried: those with
    which preflight last loaded the model, as JSON; unproven: no result came of them yet.
    """

    again: tuple[str, ...] = ()
    preflight: tuple[str, ...] = ()
    outside: Collection = field(default_factory=Collection)
    loaded: States = field(default_factory=dict)
    tried: Mapping[str, Any] = field(default_factory=dict)
    unproven: bool = False

    def fold(self, record: Mapping[str, Any]) -> None:
        """Take note of one ledger record."""
        match record["t"]:
            case "receipt" if self.unproven and not record["adopted_from"]:
                self.loaded, self.unproven = added(self.loaded, from_json(self.tried)), False
            case "planned":  # those of before do not say it
                self.again += tuple(why for why in record.get("again", ()) if why not in self.again)
            case "noticed":
                self.outside.add(known(Seen, record))
            case "preflight":
                self.preflight = tuple(record["notes"])
            case "packages" if record.get("adopted_from"):
                self.loaded = added(self.loaded, from_json(record["loaded"]))
            case "packages":
                self.tried, self.unproven = record["loaded"], True
            case _:
                pass

    def lacking(self, source: Remarks, name: str) -> list[dict[str, Any]]:
        """The records by which this ledger, too, knows what `source` does of results that it takes over.

        name: of the revision they are taken from.
        """
        records = self.noticed(source.outside.all())
        loaded = self.loaded
        for layer in takewhile(bool, (_layer(source.loaded, depth) for depth in count())):
            more = added(loaded, layer)
            if more != loaded:
                records.append(encode(Packages(as_json(layer), name)))
            loaded = more
        if source.preflight and not self.preflight:
            records.append(encode(Preflight(source.preflight)))
        return records

    def noticed(self, seen: tuple[Seen, ...]) -> list[dict[str, Any]]:
        """Records of what is news of these."""
        kept = Collection(self.outside.all())
        return [{"t": "noticed", **news.as_json()} for one in seen if (news := kept.add(one)) is not None]

    def notes(self, batches_cut: int) -> tuple[str, ...]:
        """What to say, a sentence each; without `again`, which comes first wherever it is said."""
        loaded = added(self.loaded, from_json(self.tried)) if self.unproven else self.loaded
        return (
            *self.preflight,
            *cut_batches(batches_cut),
            *_others(changes(loaded)),
            *sentences(self.outside.all()),
        )

    def as_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "outside": [seen.as_json() for seen in self.outside.all()],
            "loaded": states_as_json(self.loaded),
            "preflight": list(self.preflight),
            "again": list(self.again),
        }


def of_finished(manifest: Mapping[str, Any]) -> Remarks:
    """Those of a published revision, with the packages as they are installed now: nothing is loaded any more.

    Manifests of before say less.
    """
    loaded = states_from_json(manifest.get("loaded", {}))
    return Remarks(
        again=tuple(manifest.get("again", ())),
        preflight=tuple(manifest.get("preflight", ())),
        outside=Collection(known(Seen, each) for each in manifest.get("outside", ())),
        loaded=loaded,
        tried=as_json(installed_packages({name: states[-1] for name, states in loaded.items()})),
        unproven=True,
    )


def _layer(loaded: States, depth: int) -> dict[str, Any]:
    """Of each package that has so many the state at that place."""
    return {name: states[depth] for name, states in loaded.items() if len(states) > depth}


def _others(found: list[str]) -> list[str]:
    if not found:
        return []
    return [
        f"packages changed since this run was begun, and what is scored stays: {', '.join(found)}; `identity.packages` "
        "makes them count"
    ]


def cut_batches(batches: int) -> list[str]:
    """What to say of a run in which so many batches were cut: nothing, where they were few."""
    if batches <= FEW_CUTS:
        return []
    return [
        f"{batches:,} batches failed and were scored in parts, which takes longer; see the errors in the quarantine, "
        "and where it is empty, whether the predictor can take batches of this size"
    ]
