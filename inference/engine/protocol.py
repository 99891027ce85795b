"""The seam of the engines: where shards are scored and audited. An engine does not know the ledger.

Preflight as every engine sees it is here, too: a process that may die or hang, and a time limit for each answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from nightjar.inference.errors import ClusterLost, JobError
from nightjar.inference.job.model import Job
from nightjar.inference.records import Event, Piece
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.child import WorkLost
from nightjar.inference.scoring.preflight import Loaded, Outcome, PreflightSteps, Ready, loaded_by, preflight_steps
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.validation.rescore import Rescored

TICK_S = 0.5
"""Seconds between two ticks, which an engine yields while nothing happens."""

NO_EVENT = 3
"""Work without any event for this many times `retry.stall_s` is ended. Reading, one micro-batch and writing may each
take `stall_s`, and workers end a step that takes longer."""

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Where one step of a run does its work. Made by `engine.opened`, which closes it."""

    @property
    def in_tasks(self) -> Callable[..., Generator[Any, None, None]] | None:
        """As `each`, always in processes of their own, as large work needs them; None if there are none for it."""

    def check_capacity(self, job: Job) -> None:
        """Check that there is room for the job.

        Raises:
            ClusterError: There is no room. Names the key to change.
        """

    def preflight(self, spec: WorkerSpec, places: Sequence[Piece], steps: PreflightSteps = preflight_steps) -> Loaded:
        """As `try_model`, in a process of this engine."""

    def run_pass(
        self, spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt]
    ) -> Generator[list[Event], None, None]:
        """Score the shards (lines of `plan.SHARDS`), one attempt each; yields events in batches, [] on a tick.

        A shard that was started and has no receipt when the pass ends has died. Closing the iterator ends the pass.
        attempts: all with crumbs, or none.

        Raises:
            PassEnded: The pass itself could not go on.
        """

    def each(
        self, work: Callable[[T], R], given: Sequence[T], job: Job, called: str
    ) -> Generator[R | None, None, None]:
        """Do small work once for each thing given, without a model; yields the results in order, and None on a tick.

        called: the work, a noun for errors and for whoever looks at the engine, as `audit`.

        Raises:
            RunFailed: The processes were lost, or stood still.
        """

    def rescore(self, spec: WorkerSpec, chosen: pa.Table) -> Generator[Rescored | None, None, None]:
        """Score shards (lines of `outcomes.OUTCOMES`) a second time; yields None on a tick, and at the end the result.

        Raises:
            RunFailed: The processes were lost, or stood still.
        """

    def close(self) -> None:
        """Release what the engine holds."""


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
