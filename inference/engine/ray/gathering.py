"""What workers printed before they ended, kept on each node where they were."""

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
"""So long a pass waits at its end for other nodes: what they have and could not say by then is kept after the next."""

_RAYS_OWN = (":job_id:", ":actor_name:", ":task_name:")
"""How lines begin that Ray writes to a worker's files for its own log monitor."""


def capture(spec: WorkerSpec) -> Capture:
    """Keep what this worker's process prints; nothing without a revision, as in `check`."""
    return Capture(spec.storage, spec.revision, spec.epoch, _RAYS_OWN)


def gather(spec: WorkerSpec) -> None:
    """Keep the rest of what the run's processes printed, wherever they were. For when they are done with."""
    if not spec.revision:
        return
    keep_rest(spec.storage, spec.revision)
    here = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in alive() if node["NodeID"] != here]
    if not others:
        return
    rest: Any = ray.remote(num_cpus=0, max_retries=0)(keep_rest)
    asked = [
        rest.options(name="nightjar logs", scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            spec.storage, spec.revision
        )
        for node in others
    ]
    # A node that is lost has no more to say than what was kept in time.
    with contextlib.suppress(ray.exceptions.RayError):
        ray.wait(asked, num_returns=len(asked), timeout=_PATIENCE_S)
