"""The engine that scores on the Ray cluster to which this process is connected."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import pyarrow as pa

from nightjar.inference.engine.auditing import audit_here, audited, each_here, is_small
from nightjar.inference.engine.ray import tasks
from nightjar.inference.engine.ray.capacity import check_cluster, free_workers
from nightjar.inference.engine.ray.preflight import preflight
from nightjar.inference.job.model import Job
from nightjar.inference.records import Event, Piece
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.preflight import Loaded, PreflightSteps, preflight_steps
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.scoring.timing import Placement, Timed, placed
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.audit import Audited
from nightjar.inference.validation.rescore import Rescored

T = TypeVar("T")
R = TypeVar("R")


class RayEngine:
    """`Engine` on Ray. If a process dies, only the shard that it was scoring is charged."""

    def check_capacity(self, job: Job, descriptors: int = 0) -> None:
        check_cluster(job, descriptors=descriptors)

    def preflight(self, spec: WorkerSpec, places: Sequence[Piece], steps: PreflightSteps = preflight_steps) -> Loaded:
        return preflight(spec, places, steps)

    def place(self, job: Job, found: Timed | None) -> Placement:
        if job.stage is None:
            return Placement()
        need = job.resources
        if need.as_tasks:
            return Placement(0, "in the tasks that score, as resources.actors: 0 says")
        return placed(job.stage, need.max_actors, need.prepares_ahead, free_workers(job), found)

    def run_pass(
        self, spec: WorkerSpec, shards: pa.Table, attempts: Sequence[Attempt]
    ) -> Generator[list[Event], None, None]:
        from nightjar.inference.engine.ray.passes import run_pass  # Ray Data takes a second to import

        return run_pass(spec, shards, attempts)

    def audit(
        self, storage: Storage, revision: str, job: Job, outcomes: pa.Table
    ) -> Generator[Audited | None, None, None]:
        if is_small(job, outcomes):
            return audit_here(storage, revision, job, outcomes)
        return audited(tasks.each, storage, revision, job, outcomes)

    def each(
        self, work: Callable[[T], R], given: Sequence[T], job: Job, called: str
    ) -> Generator[R | None, None, None]:
        # One process of the cluster would take as long to start as this one to do it.
        each = each_here if len(given) == 1 else tasks.each
        return each(work, given, job, called)

    def rescore(self, spec: WorkerSpec, chosen: pa.Table) -> Generator[Rescored | None, None, None]:
        return tasks.rescore(spec, chosen)

    def close(self) -> None:
        """Do nothing: the code that connected to the cluster also disconnects."""
