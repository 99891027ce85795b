"""What a flow run is asked for: its parameters as a request, and the name it has on Prefect's pages."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect.runtime import deployment, flow_run

from nightjar.inference.engine import RAY
from nightjar.inference.environ import held
from nightjar.inference.errors import JobError, NightjarError
from nightjar.inference.run.request import RunRequest, fixed, make_request

_handed: ContextVar[tuple[RunRequest, float] | None] = ContextVar("handed", default=None)
_noted: ContextVar[Callable[[RunRequest], None]] = ContextVar("noted", default=lambda _: None)
_named: dict[str, RunRequest] = {}
"""The request that the running flow run was named for, by its id, until the flow itself takes it."""


SERVED = "NIGHTJAR_SERVED"
"""The environment variable of a served run with the paths of the job files that are served, as JSON."""


def handing(request: RunRequest, since: float | None = None) -> AbstractContextManager[None]:
    """For the flow called within: the request that its parameters stand for, which need not be made again.

    since: when its command began, by the monotonic clock; default: now.
    """
    return held(_handed, (request, time.monotonic() if since is None else since))


def noting(note: Callable[[RunRequest], None]) -> AbstractContextManager[None]:
    """For a flow called within: it gives its request to `note` as it begins."""
    return held(_noted, note)


def requested(given: dict[str, Any]) -> RunRequest:
    """The run that these parameters of the flow ask for, with the code it is scored with."""
    if (handed := _handed.get()) is not None:
        request = replace(handed[0], flow_run=str(flow_run.id))
    else:
        request = fixed(due(given))
        _named.clear()
    _noted.get()(request)
    return request


def begun() -> float:
    """When the command of this flow run began, by the monotonic clock; of a deployment's run, now."""
    handed = _handed.get()
    return handed[1] if handed else time.monotonic()


def due(given: dict[str, Any]) -> RunRequest:
    """The run that these parameters of the flow ask for, without the code it is scored with."""
    return _named.get(str(flow_run.id)) or asked(given)


def asked(given: dict[str, Any]) -> RunRequest:
    """The run that these parameters of the flow ask for, due when the flow run was due.

    Raises:
        JobError: The job is none of those that are served: who may start its runs must not make it run other code.
    """
    served = json.loads(os.environ.get(SERVED, "null"))
    if deployment.id and served is not None and given["job"] not in served:
        raise JobError(f"job: {given['job']} is not served here; start `nightjar serve` on its folder")
    date = given.get("date")
    return make_request(
        given["job"],
        date=str(date) if date else None,
        run_id=given.get("run_id"),
        limit=given.get("limit"),
        fresh=bool(given.get("fresh")),
        publish=given.get("publish", True),
        flow_run=str(flow_run.id),
        shards=tuple(given.get("shards") or ()),
        engine=given.get("engine") or RAY,
        moment=flow_run.scheduled_start_time,
        scores=False,
    )


def run_name() -> str:
    """The name of the flow run that begins, for Prefect's pages."""
    _named.clear()
    try:
        handed = _handed.get()
        request = handed[0] if handed else asked(flow_run.parameters)
    except JobError:
        return f"{job_name(flow_run.parameters)}: the job is wrong"
    except NightjarError:
        return f"{job_name(flow_run.parameters)}: could not begin"
    _named[str(flow_run.id)] = request
    return f"{request.job.name} {request.run_id}"


def job_name(given: dict[str, Any]) -> str:
    """The job's name as far as it can be known: that of its file, of its deployment, or the file's own."""
    try:
        return asked(given).job.name
    except NightjarError:
        return str(deployment.name or Path(given["job"]).stem)
