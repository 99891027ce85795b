"""What preflight learnt of a run beyond its identity: kept in its ledger, or refused if the job is strict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.ledger.ledger import LedgerWriter
from nightjar.inference.ledger.lines import Packages, Preflight, encode
from nightjar.inference.scoring.preflight import Loaded
from nightjar.inference.witness import Seen, sentences
from nightjar.inference.witness.records import UNSURE

_BEFORE = (
    ". Results that this run has were scored so: once code, model or job are mended they are scored again; if what "
    "was mended is none of these, with --fresh"
)


def learn(job: Job, loaded: Loaded, notes: Sequence[str], writer: LedgerWriter) -> None:
    """Keep what preflight noticed with the run. notes: what else it said.

    Raises:
        JobError: the job is strict, and something was noticed now, or while results were scored that the run has.
    """
    about = writer.state.about
    refuse(job, loaded.outside)
    refuse(job, about.outside.all(), _BEFORE)
    records: list[dict[str, Any]] = about.noticed(loaded.outside)
    # Where nothing is left to score, nothing was loaded.
    if loaded.packages and loaded.packages != about.tried:
        records.append(encode(Packages(loaded.packages)))
    if loaded.packages and tuple(notes) != about.preflight:
        records.append(encode(Preflight(tuple(notes))))
    if records:
        writer.append(records)


def refuse(job: Job, outside: Iterable[Seen], also: str = "") -> None:
    """Hold what was noticed against a strict job.

    Raises:
        JobError: something was noticed; lists it. also: what more to say.
    """
    if job.identity.strict and (found := [seen for seen in outside if seen.kind not in UNSURE]):
        raise JobError(f"identity: strict: {'; '.join(sentences(found))}{also}")
