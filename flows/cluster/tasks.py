"""Runs the flow's tasks on a Ray cluster. They take no CPUs, so that Ray Data, which they drive, has all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect import Task
from prefect_ray.context import remote_options

from nightjar.flows.cluster.connection import LOST, cluster, driving, ended, how_lost, lifelines, wait_for_imports
from nightjar.inference.errors import ClusterLost
from nightjar.inference.ledger.holders import has_ended
from nightjar.inference.run.lease import Succession, taken_over
from nightjar.inference.run.request import RunRequest

_LOOK_S = 10.0
"""Seconds between two checks that the cluster still exists while a step is waited for."""

_HEARS_S = 60.0
"""Seconds that a step has to end after another writer replaced this one; then it is not waited for any more."""


@contextmanager
def on_cluster(address: str | None, request: RunRequest, env: dict[str, str]) -> Iterator[OnRay]:
    """Connect to a run's cluster (`connection.cluster`), and yield what runs the tasks there."""
    with cluster(address, request.job, env, verbose=False), remote_options(**driving()):
        wait_for_imports()
        yield OnRay(request)


class OnRay:
    """Runs tasks on the cluster. Results go from one task to the next between workers, not through this process."""

    def __init__(self, request: RunRequest) -> None:
        self._succession = Succession(request.storage, request.run_uri, request.flow_run)

    def done(self, task: Task[Any, Any], *given: Any) -> Any:
        """Run the task. Returns a reference to its result, which can be an argument of the next task."""
        future: Any = task.submit(*given)
        _wait(future, self._succession)
        return future

    def result(self, done: Any) -> Any:
        """The result behind a reference."""
        return done.result()


def _wait(future: Any, succession: Succession) -> None:
    """Wait until a task has succeeded.

    Raises:
        NightjarError: The error that the task raised.
        ClusterLost: The task's process, or the whole cluster, was lost.
        Held: Another writer has taken the run over, and the task has not ended since.
    """
    done, needed = ended(future), lifelines()
    while not done.wait(_LOOK_S):
        # Ray itself reports this, with the task; but if another head has replaced the lost one, Ray may wait for ever.
        if any(map(has_ended, needed)) and not done.wait(_LOOK_S):
            raise ClusterLost(LOST)
        # The step's own process learns from the ledger that it was replaced, and ends. But this process, if it stood
        # still, may never learn of that end.
        if (other := succession.successor()) and not done.wait(_HEARS_S):
            raise taken_over(other)
    if future.state.is_crashed():
        raise ClusterLost(how_lost(future.state.data, str(future.state.message)))
    future.result()
