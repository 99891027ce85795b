"""The seam of the engines: where shards are scored and audited. An engine does not know the ledger."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeVar

import pyarrow as pa

from nightjar.inference.job.model import Job
from nightjar.inference.records import Event, Piece
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.preflight import Loaded, PreflightSteps, preflight_steps
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.audit import Audited
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

    def check_capacity(self, job: Job) -> None:
        """Check that there is room for the job.

        Raises:
            ClusterError: There is no room. Names the key to change.
        """

    def preflight(self, spec: WorkerSpec, places: Sequence[Piece], steps: PreflightSteps = preflight_steps) -> Loaded:
        """Load the model once and score a few rows.

        places: pieces of the input, from `preflight.samples`.

        Raises:
            JobError: The model cannot be loaded, or no row at any place could be scored.
        """

    def run_pass(
        self, spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt]
    ) -> Generator[list[Event], None, None]:
        """Score the shards (lines of `plan.SHARDS`), one attempt each; yields events in batches, [] on a tick.

        A shard that was started and has no receipt when the pass ends has died. Closing the iterator ends the pass.

        Raises:
            PassEnded: The pass itself could not go on.
        """

    def audit(
        self, storage: Storage, revision: str, job: Job, outcomes: pa.Table
    ) -> Generator[Audited | None, None, None]:
        """Audit committed shards (lines of `outcomes.OUTCOMES`); yields None on a tick, and at the end everything
        merged.

        Results are merged in the order of `blocks.audit_blocks`, so that every engine's metrics are the same to the
        byte.

        Raises:
            RunFailed: The audit's processes were lost, or stood still.
            Transient: This process does it, and the storage stood still.
        """

    def each(
        self, work: Callable[[T], R], given: Sequence[T], job: Job, called: str
    ) -> Generator[R | None, None, None]:
        """Do small work once for each thing given, without a model; yields the results in order, and None on a tick.

        called: the work, a noun for errors and for whoever looks at the engine, as `audit`.

        Raises:
            RunFailed: The processes were lost, or stood still.
            Transient: This process does it, and the storage stood still.
        """

    def rescore(self, spec: WorkerSpec, chosen: pa.Table) -> Generator[Rescored | None, None, None]:
        """Score shards (lines of `outcomes.OUTCOMES`) a second time; yields None on a tick, and at the end the result.

        Raises:
            RunFailed: The processes were lost, or stood still.
        """

    def close(self) -> None:
        """Release what the engine holds."""
