"""The cluster's resources, and whether a job fits into it."""

from __future__ import annotations

from typing import Any

import ray

from nightjar.inference.errors import ClusterError
from nightjar.inference.job.model import Job

_COPIES = 3
"""The number of copies of the shards' descriptors in the object store at once: discovered, planned, and in blocks."""


def check_cluster(job: Job, pools: int = 1, descriptors: int = 0) -> None:
    """Check that the cluster has room for the smallest pool that the job allows, and for the shards' descriptors.

    pools: the number of such pools. descriptors: bytes of the shards' descriptors, the only data in the object store.

    Raises:
        ClusterError: It has not. Names the key to change, with the numbers.
    """
    need = job.resources
    nodes = [node["Resources"] for node in alive()]
    placeable = sum(fits(node, need.cpus, need.gpus) for node in nodes)
    if placeable < need.min_actors * pools:
        have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise ClusterError(
            f"resources: {f'{pools} × ' if pools > 1 else ''}{need.min_actors} actors of {need.cpus:g} CPUs and "
            f"{need.gpus:g} GPUs each do not fit: "
            f"this cluster has {len(nodes)} nodes ({have}), room for {placeable}. "
            f"Lower resources.actors, cpus or gpus{' or --parallel' if pools > 1 else ''}, or choose another cluster "
            "with --ray"
        )
    store = total("object_store_memory")
    if descriptors * _COPIES > store:
        raise ClusterError(
            f"input.shard_rows: the descriptors of this plan's shards take {descriptors / 2**20:,.0f} MiB, and the "
            f"cluster's object store has {store / 2**20:,.0f} MiB. Make the shards larger, or start Ray with a larger "
            "--object-store-memory"
        )


def alive() -> list[dict[str, Any]]:
    """The cluster's live nodes, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def fits(node: dict[str, float], cpus: float, gpus: float) -> int:
    """The number of processes with these CPUs and GPUs that fit on a node with these resources."""
    room = [node.get(kind, 0.0) / each for kind, each in (("CPU", cpus), ("GPU", gpus)) if each > 0]
    return int(min(room, default=1024))


def total(resource: str) -> float:
    """The whole cluster's amount of a resource, in Ray's units."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get(resource, 0.0)
