"""The seam of the engines: where shards are scored and audited. An engine knows nothing of the ledger."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from nightjar.inference.job.model import Job
from nightjar.inference.records import Event, Piece
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.preflight import Loaded, Trial, try_model
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.audit import Audited
from nightjar.inference.validation.rescore import Rescored

TICK_S = 0.5
"""How often whoever waits for an engine is told that nothing happened."""

NO_EVENT = 3
"""What goes without any event for so many times `retry.stall_s` is ended: reading, one micro-batch and writing may
each take that long, and workers end what takes longer."""


class Engine(Protocol):
    """Where one step of a run does its work. Made by `engine.opened`, which closes it."""

    def check(self, job: Job, descriptors: int = 0) -> None:
        """Whether there is room for the job. descriptors: bytes of the plan's table.

        Raises:
            ClusterError: there is not; names the key to change.
        """

    def preflight(self, spec: WorkerSpec, places: Sequence[Piece], trial: Trial = try_model) -> Loaded:
        """Load the model once and score a few rows.

        places: of the input, as of `preflight.samples`.

        Raises:
            JobError: the model cannot be loaded, or no row anywhere could be scored.
        """

    def run_pass(
        self, spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt]
    ) -> Generator[list[Event], None, None]:
        """Score the shards (lines of `plan.SHARDS`), one attempt each; yields events in batches, [] on a tick.

        What was started and has no receipt when it ends has died. Closing the iterator ends the pass.

        Raises:
            PassEnded: the pass itself could not go on.
        """

    def audit(self, storage: Storage, revision: str, job: Job, outcomes: pa.Table) -> Iterator[Audited | None]:
        """Audit committed shards (lines of `outcomes.OUTCOMES`); None on a tick, and at last everything merged.

        Merged in the order of `blocks.audit_blocks`: so every engine's metrics are the same to the byte.

        Raises:
            RunFailed: what audits was lost, or stood still.
        """

    def rescore(self, spec: WorkerSpec, chosen: pa.Table) -> Iterator[Rescored | None]:
        """Score shards (lines of `outcomes.OUTCOMES`) a second time; None on a tick, and at last what was found.

        Raises:
            RunFailed: what scores was lost, or stood still.
        """

    def close(self) -> None:
        """Let go of what it holds."""
