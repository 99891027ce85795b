"""The cluster's resources, and whether a job fits into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from nightjar.inference.errors import ClusterError
from nightjar.inference.job.model import Job
from nightjar.inference.job.model_sections import Preprocess
from nightjar.inference.job.resources import Resources
from nightjar.inference.messages import counted, listed

_PARTS = 10_000
"""The parts of 1 CPU, 1 GPU and the like in which Ray counts resources."""

_GIB = 1 << 30
_UNITS = {"CPU": "CPUs", "GPU": "GPUs", "memory": "GiB of memory"}


@dataclass(frozen=True)
class Demand:
    """What one process of a job needs of a node."""

    need: Resources

    @property
    def plain(self) -> bool:
        """Whether any process of any node with enough CPUs will do."""
        need = self.need
        special = need.gpus or need.memory_gb or need.custom or need.labels
        return not (special or need.runtime_env.pip)

    def options(self) -> dict[str, Any]:
        """The same as options of a task or an actor."""
        need = self.need
        asked: dict[str, Any] = {"num_cpus": need.cpus, "num_gpus": need.gpus}
        # The job's own variables are set by the process itself: see `scoring.assignment`.
        if need.runtime_env.pip:
            asked["runtime_env"] = {"pip": list(need.runtime_env.pip)}
        if need.memory_gb:
            asked["memory"] = int(need.memory_gb * _GIB)
        if need.custom:
            asked["resources"] = dict(need.custom)
        if need.labels:
            asked["label_selector"] = dict(need.labels)
        return asked

    def fitting(self, node: dict[str, Any]) -> int:
        """The number of such processes that fit on a node, as Ray describes it."""
        if not self.need.labels.items() <= node["Labels"].items():
            return 0
        held = node["Resources"]
        room = [_times(held.get(name, 0.0), each) for name, each in self._amounts().items() if each > 0]
        return min(room, default=1024)

    def __str__(self) -> str:
        words = [_amount(name, each) for name, each in self._amounts().items()]
        return listed([*words, *(f"label {name}={value}" for name, value in self.need.labels.items())], "and")

    def held_by(self, node: dict[str, Any]) -> str:
        """What a node has of what is needed, in words."""
        held, labels = node["Resources"], node["Labels"]
        words = [_amount(name, held.get(name, 0.0)) for name in self._amounts()]
        words += [f"label {name}={labels[name]}" if name in labels else f"no label {name}" for name in self.need.labels]
        return listed(words, "and")

    def _amounts(self) -> dict[str, float]:
        """By the names of Ray's resources, in Ray's units."""
        need = self.need
        memory = {"memory": need.memory_gb * _GIB} if need.memory_gb else {}
        return {"CPU": need.cpus, "GPU": need.gpus, **memory, **need.custom}


def _amount(name: str, amount: float) -> str:
    return f"{amount / _GIB if name == 'memory' else amount:.4g} {_UNITS.get(name, name)}"


def check_cluster(job: Job) -> None:
    """Check that the cluster has room for the smallest pool that the job allows.

    Raises:
        ClusterError: It has not. Names the key to change, with the numbers.
    """
    need, demand = job.resources, Demand(job.resources)
    nodes = alive()
    placeable = sum(map(demand.fitting, nodes))
    if placeable < need.min_actors:
        have = "; ".join(map(demand.held_by, nodes))
        more = "" if demand.plain else ", or what else resources asks for"
        raise ClusterError(
            f"resources: {need.min_actors} actors of {demand} each do not fit: "
            f"this cluster has {len(nodes)} nodes ({have}), room for {placeable}. "
            f"Lower resources.actors, cpus or gpus{more}, or choose another "
            "cluster with --ray"
        )
    step = job.stage
    if step and _room(job, step, need.min_actors) < step.min_workers:
        raise ClusterError(
            f"preprocess.workers: {counted(step.min_workers, 'worker')} of {step.cpus:g} CPUs and {need.min_actors} "
            f"actors of {demand} do not fit: this cluster has {total('CPU'):g} CPUs. Lower preprocess.cpus or "
            "resources.cpus, write placement: fused, or choose another cluster with --ray"
        )


def stage_workers(job: Job) -> int:
    """The workers of the CPU stage: as many as the job says, else as have CPUs beside all of the job's actors, at least
    one; and no more than have CPUs beside the fewest actors.
    """
    need, step = job.resources, job.stage
    if step is None:
        return 0
    wanted = step.max_workers or max(1, _room(job, step, need.max_actors))
    # Nodes may have been lost since the run began: a stage without a CPU would never begin.
    return max(0, min(wanted, _room(job, step, need.min_actors)))


def _room(job: Job, step: Preprocess, actors: int) -> int:
    """The workers of the CPU stage for which there are CPUs beside so many actors."""
    left = total("CPU") - actors * job.resources.cpus
    return _times(left, step.cpus) if step.cpus > 0 else int(total("CPU"))


def _times(held: float, each: float) -> int:
    """How often an amount of a resource fits. It is counted in the parts that Ray counts: in floats 2 - 2 * 0.9 is less
    than 0.2.
    """
    return round(held * _PARTS) // max(1, round(each * _PARTS))


def alive() -> list[dict[str, Any]]:
    """The cluster's live nodes, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def total(resource: str) -> float:
    """The whole cluster's amount of a resource, in Ray's units."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get(resource, 0.0)
