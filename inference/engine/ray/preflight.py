"""Preflight on Ray: in one process without restarts, with a time limit for each thing that it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
import ray.exceptions

from nightjar.inference import predictors
from nightjar.inference.engine.protocol import Take, try_model
from nightjar.inference.engine.ray.capacity import Demand
from nightjar.inference.engine.ray.processes import capture, gather
from nightjar.inference.engine.ray.warming import taken
from nightjar.inference.errors import JobError, NightjarError
from nightjar.inference.messages import clip
from nightjar.inference.records import Piece
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.child import WorkLost
from nightjar.inference.scoring.preflight import Loaded, Outcome, PreflightSteps, Ready, observed, preflight_steps
from nightjar.inference.scoring.worker import ShardWorker

_LOST = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.RayActorError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.NodeDiedError,
)
"""Ray's errors for a process that was lost: by itself, by Ray because the node's memory was short, or with its node."""

_STREAMED: dict[str, Any] = {"num_returns": "streaming", "_generator_backpressure_num_objects": 1}
"""Each answer has arrived before the next step begins, which may end the process, and lose what is still under way."""


def preflight(spec: WorkerSpec, places: Sequence[Piece], steps: PreflightSteps = preflight_steps) -> Loaded:
    """As `protocol.try_model`, in a process of the cluster.

    Raises:
        JobError, ClusterLost: As there.
    """

    @contextmanager
    def begin(places: Sequence[Piece]) -> Iterator[Take]:
        answers, end = _begun(spec, steps, list(places))
        if spec.revision:
            # A pass follows. Ray Data takes a second to import, and this process only waits here.
            from nightjar.inference.engine.ray import passes  # noqa: F401
        try:
            yield partial(_take, answers)
        finally:
            end()

    try:
        return try_model(spec.job, places, begin)
    except NightjarError:
        # After a success the first pass does this at its end. On several nodes it takes seconds.
        gather(spec)
        raise


def _begun(spec: WorkerSpec, steps: PreflightSteps, places: list[Piece]) -> tuple[Any, Callable[[], None]]:
    """Begin preflight in the process that waits for it, or in a new one. Returns its answers, and what ends it."""
    demand = Demand(spec.job.resources)
    warm = taken(spec.job.retry.stall_s) if demand.plain else None
    if warm is not None:
        answers = warm.run.options(**_STREAMED).remote(_captured, steps, spec, places)
        return answers, partial(ray.kill, warm)
    task: Any = ray.remote(**demand.options(), max_retries=0, max_calls=1, **_STREAMED)(_captured)
    answers = task.options(name="nightjar preflight").remote(steps, spec, places)
    return answers, partial(ray.cancel, answers, force=True)


def _captured(steps: PreflightSteps, spec: WorkerSpec, places: list[Piece]) -> Iterator[Outcome | Ready]:
    logs = capture(spec)
    predictors.warm(spec.job)  # the limit is for the model, not for the import of its library
    yield Ready()
    yield from observed(spec.job, steps, partial(ShardWorker, spec), places)
    logs.close()


def _take(answers: Any, patience_s: float) -> Outcome | Ready | None:
    """As `protocol.Take`."""
    if not ray.wait([answers], timeout=patience_s)[0]:
        raise TimeoutError
    try:
        found: Outcome | Ready = ray.get(next(answers))
    except StopIteration:
        return None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, JobError):
            raise JobError(clip(str(error.cause))) from error
        raise WorkLost(f"failed with {clip(str(error.cause))}", died=False) from error
    except _LOST as error:
        raise WorkLost("ended its process (exit, signal or out of memory)", died=True) from error
    return found
