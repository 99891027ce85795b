"""The Ray of a run: one of its own on this machine, or an existing one by address.

In `flows` only this room uses Ray. This module does not import it, because a run on the local engine, and a run with
nothing to score, must not wait for that import.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import UUID

from prefect import flow_engine
from prefect.concurrency._leases import maintain_concurrency_lease
from prefect.task_runners import TaskRunner

from nightjar.inference.engine import ray as ray_engine
from nightjar.inference.errors import ClusterError
from nightjar.inference.process import replaced

SEEN_ON = {"prefect": "3.9.1"}
"""The versions with which `_going_on`, which uses Prefect without documented names, has been seen to work."""

ADDRESS = "NIGHTJAR_RAY"
"""The environment variable with the cluster for runs that name none."""

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}

joined = threading.Event()
"""Set while this process is connected to a cluster by `connection.cluster`."""


def _going_on(lease_id: UUID, lease_duration: float, **_: bool) -> AbstractContextManager[None]:
    """Let a flow run go on if Prefect's API does not renew the lease of its slot.

    Prefect's own concurrency limits have this as an option, those of deployments do not. Without this, an API that is
    away for a minute ends the run in the middle of a step, by an exception in its thread.
    """
    return maintain_concurrency_lease(lease_id, lease_duration)


class ClusterRunner(TaskRunner[Any]):
    """Submits tasks to the Ray of this process. The flow decides which Ray that is after it has read its job.

    Ray's own runner is made when a task is submitted, so a flow that submits none does not import Ray.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        # Prefect enters the runner before it maintains the lease of the run's slot, and leaves it after that.
        self._stack.enter_context(replaced(flow_engine, maintain_concurrency_lease=_going_on))
        return super().__enter__()

    def __exit__(self, *ended: Any) -> None:
        super().__exit__(*ended)
        self._stack.close()

    def duplicate(self) -> Self:
        return type(self)()

    def submit(self, *arguments: Any, **options: Any) -> Any:
        from prefect_ray import RayTaskRunner

        rays = RayTaskRunner()
        # Not RayTaskRunner's own method, which would start a Ray or join any Ray that it finds.
        TaskRunner.__enter__(rays)
        return rays.submit(*arguments, **options)


def named(address: str | None) -> str | None:
    """The cluster that the address or `NIGHTJAR_RAY` names; None for one of the run's own."""
    return address or os.environ.get(ADDRESS) or None


def check_reports(address: str | None, api_url: str) -> None:
    """Check that the tasks that drive the run can reach this API: with `ray://` they run on another machine.

    Raises:
        ClusterError: The API is on this machine's loopback.
    """
    wanted = named(address) or ""
    host = wanted.removeprefix("ray://").rpartition(":")[0].strip("[]")
    if wanted.startswith("ray://") and host not in _LOOPBACK and urlsplit(api_url).hostname in _LOOPBACK:
        raise ClusterError(
            f"--ray {wanted}: the tasks that drive the run are on that machine and cannot reach Prefect at {api_url}; "
            "set PREFECT_API_URL to a server that both machines reach"
        )


def is_connected() -> bool:
    """Whether this process is connected to a cluster."""
    # Ask Ray only if it is not known otherwise: with `ray://` this is a remote call, too.
    return joined.is_set() or ray_engine.is_connected()
