"""Which Ray a run uses: one of its own on this machine, or an existing one by address.

The one owner of Ray in this package. Here is what needs no Ray: a run on the local engine, and one that has nothing to
score, must not wait until Ray is imported.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Self
from urllib.parse import urlsplit

from prefect.task_runners import TaskRunner

from nightjar.inference.errors import ClusterError

ADDRESS = "NIGHTJAR_RAY"
"""Environment variable: the cluster of runs that name none."""

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}

joined = threading.Event()
"""Set while this process hangs on a cluster that it joined by `connection.cluster`."""


class ClusterRunner(TaskRunner[Any]):
    """Submits to the Ray of this process. Which one that is, the flow settles once it has read its job.

    Ray's own runner is made when something is submitted: a flow that submits nothing imports no Ray.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rays: TaskRunner[Any] | None = None

    def duplicate(self) -> Self:
        return type(self)()

    def submit(self, *arguments: Any, **options: Any) -> Any:
        if self._rays is None:
            from prefect_ray import RayTaskRunner

            self._rays = RayTaskRunner()
            # Past RayTaskRunner's own, which would start a Ray or join whichever it finds.
            TaskRunner.__enter__(self._rays)
        return self._rays.submit(*arguments, **options)


def named(address: str | None) -> str | None:
    """The cluster that is asked for, here or by `NIGHTJAR_RAY`; None for one of the run's own."""
    return address or os.environ.get(ADDRESS) or None


def check_reports(address: str | None, api_url: str) -> None:
    """Whether what drives the run can report to this API: through `ray://` it runs on another machine.

    Raises:
        ClusterError: the API is on this machine's loopback.
    """
    wanted = named(address) or ""
    host = wanted.removeprefix("ray://").rpartition(":")[0].strip("[]")
    if wanted.startswith("ray://") and host not in _LOOPBACK and urlsplit(api_url).hostname in _LOOPBACK:
        raise ClusterError(
            f"--ray {wanted}: what drives the run is on that machine and cannot reach Prefect at {api_url}; set "
            "PREFECT_API_URL to a server that both reach"
        )


def is_connected() -> bool:
    """Whether this process is connected to a cluster."""
    if joined.is_set():
        return True
    # prefect-ray imports Ray lazily: "ray" may stand there alone, and nothing of it be loaded.
    if "ray._raylet" not in sys.modules:
        return False
    import ray

    # Asked of Ray only if it is not known: through `ray://` that is a call, too.
    return bool(ray.is_initialized())
