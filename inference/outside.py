"""What a run uses beyond its identity: kept in its ledger, said to whoever runs it, refused if the job is strict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nightjar.inference.errors import JobError
from nightjar.inference.job import Job
from nightjar.inference.ledger import LedgerWriter, State
from nightjar.inference.trial import Loaded
from nightjar.inference.witness import Collection, Seen, sentences
from nightjar.inference.witness.packages import as_json, differences, from_json, installed_packages
from nightjar.inference.witness.records import UNSURE


def learn(job: Job, loaded: Loaded, writer: LedgerWriter, newest: State | None) -> list[str]:
    """Keep what preflight noticed with the run; says which packages are others than before.

    newest: of the revision before, which may be the writer's own.

    Raises:
        JobError: the job is strict, and something was noticed.
    """
    refuse(job, loaded.outside)
    before = writer.state.packages or (newest.packages if newest else {})
    known = Collection(writer.state.outside.all())
    records: list[dict[str, Any]] = [{"t": "noticed", **seen.as_json()} for seen in loaded.outside if known.add(seen)]
    if loaded.packages and loaded.packages != writer.state.packages:
        records.append({"t": "packages", "loaded": loaded.packages})
    if records:
        writer.append(records)
    return others(before, loaded.packages) if loaded.packages else []


def refuse(job: Job, outside: Iterable[Seen]) -> None:
    """End a strict job's preflight.

    Raises:
        JobError: something was noticed; lists it.
    """
    if job.identity.strict and (found := [seen for seen in outside if seen.kind not in UNSURE]):
        raise JobError(f"identity: strict: {'; '.join(sentences(found))}")


def others(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One sentence on the packages that are others than those the run was scored with so far; none if they are not."""
    found = differences(from_json(before), from_json(now))
    if not found:
        return []
    return [
        f"packages changed since this run was begun, and what is scored stays: {', '.join(found)}; `identity.packages` "
        "makes them count"
    ]


def notes(state: State) -> list[str]:
    """What was noticed while a revision was scored, by whatever command."""
    return sentences(state.outside.all())


def still(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """The same of a run that is finished, of which nothing is loaded any more: from its manifest.

    Manifests of before have neither.
    """
    seen = [Seen(**each) for each in manifest.get("outside", ())]
    before = manifest.get("loaded", {})
    now = installed_packages(from_json(before))
    return (*sentences(seen), *others(before, as_json(now)))
