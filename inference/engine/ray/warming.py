"""A process that imports what preflight will need, while the command is still busy with other things.

On two busy cores a night of the flights took 46 and 88 s with it, and 53 and 106 s without. It is an actor, because Ray
gives the process of a task that has ended to any other task, and to no actor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions

from nightjar.inference import predictors
from nightjar.inference.job.model import Job
from nightjar.inference.process import seldom_collected

if TYPE_CHECKING:
    from nightjar.inference.scoring.preflight import Outcome

_NAME = "nightjar-preflight"


class _Warm:
    """Imports when it is made; then does one preflight."""

    def __init__(self, job: Job) -> None:
        # Everything that `preflight` imports; the imports themselves are the purpose.
        with seldom_collected():
            from nightjar.inference.engine import protocol  # noqa: F401
            from nightjar.inference.engine.ray import processes  # noqa: F401

        self._free = True
        predictors.warm(job)

    def take(self) -> bool:
        """Whether the caller has this process for its preflight. Only one caller has it."""
        free, self._free = self._free, False
        return free

    def run(self, work: Callable[..., Iterator[Outcome]], *given: Any) -> Iterator[Outcome]:
        """Yield what the work yields."""
        yield from work(*given)


@contextmanager
def warmed(job: Job) -> Iterator[None]:
    """Start a process for the next preflight on this cluster, and do not wait for it. It ends with the context.

    It takes no CPUs of the cluster, because it is idle after its imports. Nothing of the job's folder is read. For a
    job with GPUs this does nothing: the process would have none.
    """
    actor: Any = None
    if job.resources.gpus == 0:
        actor = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(_Warm)
        actor = actor.options(name=_NAME, get_if_exists=True).remote(job)
    yield
    del actor  # Ray ends an actor without a handle


def taken(patience_s: float) -> Any:
    """The actor that `warmed` started, for the caller alone; None if there is none, or another caller has it.

    patience_s: seconds to wait for the end of its imports.
    """
    try:
        actor: Any = ray.get_actor(_NAME)
        return actor if ray.get(actor.take.remote(), timeout=patience_s) else None
    except (ValueError, ray.exceptions.RayError):  # there is none, or its process was lost; a time-out is a RayError
        return None
