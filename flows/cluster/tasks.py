"""The flow's tasks on a Ray cluster, as zero-CPU tasks: they drive Ray Data there, and hold nothing it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect import Task
from prefect_ray.context import remote_options

from nightjar.flows.cluster.connection import LOST, cluster, driving, ended, lifelines
from nightjar.inference.errors import ClusterLost
from nightjar.inference.ledger.holders import has_ended
from nightjar.inference.run.lease import Succession, taken_over
from nightjar.inference.run.request import RunRequest

_LOOK_S = 10.0
"""How often a step that is waited for looks whether its cluster is still there."""

_HEARS_S = 60.0
"""So long a step that was replaced by another writer has to end; then it is not waited for any more."""


@contextmanager
def on_cluster(address: str | None, request: RunRequest, env: dict[str, str]) -> Iterator[OnRay]:
    """Connected to a run's cluster (`connection.cluster`): how its tasks are carried out there."""
    with cluster(address, request.job, env, verbose=False), remote_options(**driving()):
        yield OnRay(request)


class OnRay:
    """On the cluster. What one task hands to the next goes from worker to worker, not through here."""

    def __init__(self, request: RunRequest) -> None:
        self._succession = Succession(request.storage, request.run_uri, request.flow_run)

    def done(self, task: Task[Any, Any], *given: Any) -> Any:
        """The task, done: what stands for its result as a task's argument."""
        future: Any = task.submit(*given)
        _wait(future, self._succession)
        return future

    def result(self, done: Any) -> Any:
        """The result itself."""
        return done.result()


def _wait(future: Any, succession: Succession) -> None:
    """Until a task has succeeded.

    Raises:
        NightjarError: as the task did.
        ClusterLost: the task's process, or the whole cluster, was lost.
        Held: another writer has taken the run over, and nothing was heard of the task since.
    """
    done, needed = ended(future), lifelines()
    while not done.wait(_LOOK_S):
        # Ray says so itself, and of which task; but where another head has taken the place of the lost one it may wait
        # for ever.
        if any(map(has_ended, needed)) and not done.wait(_LOOK_S):
            raise ClusterLost(LOST)
        # The step's own process learns from the ledger that it was replaced, and ends; but a process that stood still
        # may never hear of that end.
        if (other := succession.successor()) and not done.wait(_HEARS_S):
            raise taken_over(other)
    if future.state.is_crashed():
        raise ClusterLost(f"a task's process was lost: {str(future.state.message).splitlines()[0]}")
    future.result()
