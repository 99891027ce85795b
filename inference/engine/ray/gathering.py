"""Collects, on each node, what workers printed before they ended."""

from __future__ import annotations

import contextlib
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nightjar.inference.engine.ray.capacity import alive
from nightjar.inference.logs.capture import Capture, keep_rest
from nightjar.inference.scoring.assignment import WorkerSpec

_PATIENCE_S = 10.0
"""Seconds that a pass waits at its end for other nodes; later output of theirs is kept after the next pass."""


def capture(spec: WorkerSpec) -> Capture:
    """Keep what this worker's process prints; nothing if there is no revision, as in `check`."""
    return Capture(spec.storage, spec.revision, spec.epoch, secrets=spec.secrets)


def gather(spec: WorkerSpec) -> None:
    """Keep the rest of what the run's processes printed, on all nodes. Call it when the processes have ended."""
    if not spec.revision:
        return
    keep_rest(spec.storage, spec.revision, spec.secrets)
    here = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in alive() if node["NodeID"] != here]
    if not others:
        return
    rest: Any = ray.remote(num_cpus=0, max_retries=0)(keep_rest)
    asked = [
        rest.options(name="nightjar logs", scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            spec.storage, spec.revision, spec.secrets
        )
        for node in others
    ]
    # The output of a lost node that was not kept in time is lost.
    with contextlib.suppress(ray.exceptions.RayError):
        ray.wait(asked, num_returns=len(asked), timeout=_PATIENCE_S)
