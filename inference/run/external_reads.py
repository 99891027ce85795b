"""Handles what preflight noticed beyond a run's identity: it is kept in the ledger, or refused if the job is strict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.lines import Line, Packages, Preflight
from nightjar.inference.scoring.preflight import Loaded
from nightjar.inference.witness import Seen, sentences
from nightjar.inference.witness.seen import UNSURE

_BEFORE = (
    ". This run has results that were scored in this way. After a change of code, model or job they are scored again; "
    "after any other change, only with --fresh"
)


def learn(job: Job, loaded: Loaded, notes: Sequence[str], writer: LedgerWriter, remembered: int = 0) -> None:
    """Keep in the ledger what preflight noticed. notes: its other notes. remembered: as in `Preflight`.

    Raises:
        JobError: The job is strict, and something was noticed now, or while the run's results were scored.
    """
    about = writer.state.about
    refuse(job, loaded.outside)
    refuse(job, about.outside.all(), _BEFORE)
    lines: list[Line] = [*about.noticed(loaded.outside)]
    # If nothing is left to score, nothing was loaded.
    if loaded.packages and loaded.packages != about.tried:
        lines.append(Packages(loaded.packages))
    if loaded.packages and (tuple(notes) != about.preflight or remembered not in {0, about.remembered}):
        lines.append(Preflight(tuple(notes), remembered))
    if lines:
        writer.append(lines)


def refuse(job: Job, outside: Iterable[Seen], also: str = "") -> None:
    """Refuse a strict job if something was noticed. also: added to the message.

    Raises:
        JobError: Something was noticed; the message lists it.
    """
    if job.identity.strict and (found := [seen for seen in outside if seen.kind not in UNSURE]):
        raise JobError(f"identity: strict: {'; '.join(sentences(found))}{also}")
