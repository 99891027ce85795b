"""Waits for a run's input, and for a slot of the global concurrency limit that jobs with the same GPUs share.

The holder of a slot renews its lease; Prefect frees the slot of a dead holder when the lease ends, after five minutes.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
from prefect.artifacts import create_progress_artifact
from prefect.client.orchestration import get_client
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.logging import get_run_logger

from nightjar.flows.flow_call import current_call
from nightjar.flows.pages.artifacts import deliver
from nightjar.flows.pages.escaping import markdown
from nightjar.flows.prefect_api.api import is_away, no_such_limit
from nightjar.inference.errors import RunFailed
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.waiting import Awaited, await_input, keeping


def wait_for_input(request: RunRequest, *, patient: bool) -> bool:
    """Wait for the job's input. Returns whether the run had to wait. patient: False to look only once.

    Raises:
        GateFailed: The input did not come in time; its page shows the gate.
    """
    with waiting(request) as show:

        def tell(now: Awaited) -> None:
            show(now.sentence)

        waited = await_input(request.storage, request.job, tell, patient=patient)
    if waited:
        get_run_logger().info("the input is there")
    return waited


@contextmanager
def waiting(request: RunRequest) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows a sentence on the terminal, in the run's log, on its page, and in `nightjar status`,
    until the end of the block.
    """
    key, show = f"{request.job.name}-progress", current_call().show
    with keeping(request) as keep:

        def tell(sentence: str) -> None:
            about = f"{markdown(request.run_id)}: {markdown(sentence)}"
            show(sentence)
            get_run_logger().info("%s", sentence)
            keep(sentence)
            deliver({key: lambda: create_progress_artifact(0.0, key=key, description=about)})

        yield tell
        show("")  # only of a run that goes on: of another the last sentence stays


_ASK_S = 10.0
"""Seconds between two requests for a slot."""

_AWAY_S = 1800.0
"""The longest time in seconds that a run that waits for a slot goes on while the API is away."""


@contextmanager
def slot(request: RunRequest, limit: str | None) -> Iterator[None]:
    """Wait for a slot of Prefect's global concurrency limit, and hold it.

    Raises:
        JobError: There is no such limit.
        RunFailed: The API said no, or was away for `_AWAY_S`.
    """
    if limit is None:
        yield
        return
    with waiting(request) as tell:
        held = _acquired(limit, tell)
    try:
        yield
    finally:
        try:
            held.close()
        except (httpx.HTTPError, PrefectException, OSError) as error:
            # Its lease ends by itself; what was scored must not be lost for it.
            get_run_logger().warning("the slot of %s could not be given back: %s", limit, error)


def _acquired(limit: str, tell: Callable[[str], None]) -> ExitStack:
    """A slot, once one is free. tell: called with a sentence if the run has to wait."""
    lost, told = 0.0, False
    while True:
        try:
            # Only a free slot is requested: Prefect logs an error whenever it refuses one.
            if not _all_taken(limit):
                with ExitStack() as held:
                    held.enter_context(
                        concurrency(limit, strict=True, max_retries=0, raise_on_lease_renewal_failure=False)
                    )
                    return held.pop_all()
            lost = 0.0
            if not told:
                shows = f"`prefect gcl inspect {shlex.quote(limit)}` shows how many are taken"
                tell(f"waiting for a slot of the concurrency limit {limit}; {shows}")
                told = True
        except ObjectNotFound as error:
            raise no_such_limit(limit) from error
        except (ConcurrencySlotAcquisitionError, httpx.HTTPError) as error:
            cause = error.__cause__ if isinstance(error, ConcurrencySlotAcquisitionError) else error
            lost = lost or time.monotonic()
            was_faster = isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code == httpx.codes.LOCKED
            if not (was_faster or is_away(cause)) or time.monotonic() - lost > _AWAY_S:
                raise RunFailed(f"no slot of the concurrency limit {limit!r} could be had: {error}: {cause}") from error
            if not was_faster:
                get_run_logger().warning("Prefect's API is away, asking again: %s", cause)
        time.sleep(_ASK_S)


def _all_taken(limit: str) -> bool:
    with get_client(sync_client=True) as client:
        found = client.read_global_concurrency_limit_by_name(limit)
    return found.active and 0 < found.limit <= found.active_slots
