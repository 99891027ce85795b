"""Preflight as an engine sees it: a process that may die or hang, and a time limit for each of its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from nightjar.inference.engine.protocol import NO_EVENT
from nightjar.inference.errors import ClusterLost, JobError
from nightjar.inference.job.model import Job
from nightjar.inference.records import Piece
from nightjar.inference.scoring.child import WorkLost
from nightjar.inference.scoring.preflight import Loaded, Outcome, Ready, loaded_by

Take = Callable[[float], Outcome | Ready | None]
"""Takes a process's next answer, which may take so many seconds; None after the last one.

Raises `WorkLost` if the process ended before it, and `TimeoutError` if none came."""

Begin = Callable[[Sequence[Piece]], AbstractContextManager[Take]]
"""Begins preflight of these places in a process, for as long as the context lasts."""


def try_model(job: Job, places: Sequence[Piece], begin: Begin) -> Loaded:
    """Load the model once, without restarts, and score a few rows.

    places: pieces of the input, from `preflight.samples`.

    Raises:
        JobError: The model cannot be loaded, its process died meanwhile, or no row at any place could be scored.
        ClusterLost: No process was there in time.
    """
    loaded = _answered(job, places, begin)
    # One row may be the cause, which the passes find; if another place hangs, too, it is the model.
    others = places[loaded.place + 1 :]
    if loaded.hung and others and _answered(job, others, begin).hung:
        raise JobError(f"{loaded_by(job)}: {loaded.sample_error}; see whether it hangs, or allow more")
    return loaded


def _answered(job: Job, places: Sequence[Piece], begin: Begin) -> Loaded:
    """What a process found. If it ends or hangs with the model loaded, a row may be the cause: that is noted."""
    key, stall_s = loaded_by(job), job.retry.stall_s
    loaded: Loaded | None = None
    ready = False
    try:
        with begin(places) as take:
            # A busy cluster needs time to start a process, and a process to import the library.
            take(NO_EVENT * stall_s)
            ready = True
            while (outcome := take(stall_s)) is not None:
                if isinstance(outcome, JobError):
                    raise outcome
                loaded = outcome if isinstance(outcome, Loaded) else loaded
    except WorkLost as lost:
        if loaded is None:
            raise JobError(f"{key}: loading the model {lost.how}; load it once in Python to see why") from lost
        # The passes find a row that kills its process, and quarantine it.
        return replace(loaded, sample_error=f"scoring the first rows {lost.how}")
    except TimeoutError:
        if not ready:
            raise ClusterLost(
                f"preflight stood still for {NO_EVENT} × retry.stall_s = {stall_s:g} s: no process was there for it; "
                "is the cluster busy with others? Repeat the command when it is not"
            ) from None
        took = f"took longer than retry.stall_s = {stall_s:g} s and was ended"
        if loaded is None:
            raise JobError(f"{key}: loading the model {took}; see whether it hangs, or allow more") from None
        return replace(loaded, sample_error=f"scoring the first rows {took}", hung=True)
    assert loaded is not None
    return loaded
