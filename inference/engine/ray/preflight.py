"""Preflight on Ray: in one process without restarts, with a time limit for each thing that it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
import ray.exceptions

from nightjar.inference.engine.protocol import NO_EVENT
from nightjar.inference.engine.ray.capacity import Demand
from nightjar.inference.engine.ray.processes import capture, gather
from nightjar.inference.engine.ray.warming import taken
from nightjar.inference.errors import ClusterLost, JobError, NightjarError
from nightjar.inference.messages import clip
from nightjar.inference.records import Piece
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.preflight import (
    Loaded,
    PreflightSteps,
    loaded_by,
    observed,
    preflight_steps,
    with_packages,
)
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
    """Load the model once, in one process without restarts, and score a few rows.

    places: pieces of the input, from `preflight.samples`.

    Raises:
        JobError: The model cannot be loaded, its process died meanwhile, or no row at any place could be scored.
        ClusterLost: The cluster started no process for it in time.
    """
    try:
        loaded = _tried(spec, places, steps, last=False)
        if loaded.hung:
            # One row may be the cause, which the passes find; if another place hangs, too, it is the model.
            others = places[loaded.place + 1 :]
            if _tried(spec, others or places[loaded.place :], steps, last=not others).hung:
                said = f"{loaded.sample_error}; see whether it hangs, or allow more"
                raise JobError(f"{loaded_by(spec.job)}: {said}")
    except NightjarError:
        # After a success the first pass does this at its end. On several nodes it takes seconds.
        gather(spec)
        raise
    return loaded


def _tried(spec: WorkerSpec, places: Sequence[Piece], steps: PreflightSteps, *, last: bool) -> Loaded:
    """Preflight in one process, which has ended when this returns."""
    answers, end = _begun(spec, steps, list(places), last)
    if spec.revision:
        # A pass follows. Ray Data takes a second to import, and this process only waits here.
        from nightjar.inference.engine.ray import passes  # noqa: F401
    try:
        return _answered(spec, answers)
    finally:
        end()


def _begun(spec: WorkerSpec, steps: PreflightSteps, places: list[Piece], last: bool) -> tuple[Any, Callable[[], None]]:
    """Begin preflight in the process that waits for it, or in a new one. Returns its answers, and what ends it."""
    demand = Demand(spec.job.resources)
    warm = taken(spec.job.retry.stall_s) if demand.plain else None
    if warm is not None:
        answers = warm.run.options(**_STREAMED).remote(_captured, steps, spec, places, last)
        return answers, partial(ray.kill, warm)
    task: Any = ray.remote(**demand.options(), max_retries=0, max_calls=1, **_STREAMED)(_captured)
    answers = task.options(name="nightjar preflight").remote(steps, spec, places, last)
    return answers, partial(ray.cancel, answers, force=True)


def _captured(steps: PreflightSteps, spec: WorkerSpec, places: list[Piece], last: bool) -> Iterator[Any]:
    logs = capture(spec)
    yield None  # The process is there: from now on the model takes the time.
    outcome = None
    for outcome in observed(spec.job, steps, partial(ShardWorker, spec), places, last):
        yield outcome
    yield from with_packages(outcome)
    logs.close()


def _answered(spec: WorkerSpec, answers: Any) -> Loaded:
    """What the process found. If it ends or hangs with the model loaded, a row may be the cause: that is noted."""
    key, stall_s = loaded_by(spec.job), spec.job.retry.stall_s
    loaded: Loaded | None = None
    began = False
    try:
        for answer in _patiently(answers, stall_s):
            outcome = ray.get(answer)
            if isinstance(outcome, JobError):
                raise outcome
            began, loaded = True, outcome or loaded
    except ray.exceptions.RayTaskError as error:
        said = clip(str(error.cause))
        raise JobError(said if isinstance(error.cause, JobError) else f"{key}: {said}") from error
    except _LOST as error:
        if loaded is None:
            raise JobError(
                f"{key}: loading the model ended its process (exit, signal or out of memory) before it was ready; "
                + ("`nightjar logs` has what it printed last, or " if spec.revision else "")
                + "load it once in a plain Python process to see why"
            ) from error
        # The passes find a row that kills its process, and quarantine it.
        return replace(loaded, sample_error="scoring the first rows ended the process")
    except TimeoutError:
        if not began:
            raise ClusterLost(
                f"preflight stood still for {NO_EVENT} × retry.stall_s = {stall_s:g} s: the cluster started no process "
                "for it; is it busy with others? Repeat the command when it is not"
            ) from None
        took = f"took longer than retry.stall_s = {stall_s:g} s and was ended"
        if loaded is None:
            raise JobError(f"{key}: loading the model {took}; see whether it hangs, or allow more") from None
        return replace(loaded, sample_error=f"scoring the first rows {took}", hung=True)
    assert loaded is not None
    return loaded


def _patiently(answers: Any, stall_s: float) -> Iterator[Any]:
    """Yield the answers; raises TimeoutError if none comes for `stall_s` seconds.

    The first one may take `NO_EVENT` times as long, because a busy cluster needs time to start a process.
    """
    patience = NO_EVENT * stall_s
    while ray.wait([answers], timeout=patience)[0]:
        patience = stall_s
        try:
            yield next(answers)
        except StopIteration:
            return
    raise TimeoutError
