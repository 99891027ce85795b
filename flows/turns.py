"""Jobs that share GPUs take turns: a run holds a slot of one of Prefect's global concurrency limits while it scores."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from nightjar.flows.prefect_api.api import is_away, lacks_limit, no_such_limit
from nightjar.flows.waiting import waiting
from nightjar.inference.errors import RunFailed
from nightjar.inference.run.request import RunRequest

_ASK_S = 10.0
"""How often a slot is asked for while Prefect's API is away."""

_AWAY_S = 1800.0
"""So long a run that waits for its turn goes on asking an API that is away."""

_NOTICED_S = 600.0
"""A question that lasted longer was asked of an API that was there: it is noticed sooner that nobody answers."""


@contextmanager
def turn(request: RunRequest, limit: str | None) -> Iterator[None]:
    """Wait for a slot of Prefect's global concurrency limit, and hold it: jobs that share GPUs take turns."""
    if limit is None:
        yield
        return
    taken = f"`prefect gcl inspect {shlex.quote(limit)}` shows how many are taken"
    with waiting(request) as tell:
        tell(f"waiting for a slot of the concurrency limit {limit}; {taken}")
        slot = _slot(limit)
    try:
        yield
    finally:
        try:
            slot.close()
        except (httpx.HTTPError, PrefectException, OSError) as error:
            # Its lease ends by itself; what was scored must not be lost for it.
            get_run_logger().warning("the slot of %s could not be given back: %s", limit, error)


def _slot(limit: str) -> ExitStack:
    """A slot, once there is one. An API that is away meanwhile is asked again: Prefect itself gives up after seconds.

    Raises:
        JobError: there is no such limit.
        RunFailed: the API said no, or was away for `_AWAY_S`.
    """
    lost: float | None = None
    while True:
        asked = time.monotonic()
        with ExitStack() as held:
            try:
                held.enter_context(concurrency(limit, strict=True, raise_on_lease_renewal_failure=False))
                return held.pop_all()
            except ConcurrencySlotAcquisitionError as error:
                if not is_away(error.__cause__) and lacks_limit(limit):
                    raise no_such_limit(limit) from error
                why, now = f"{error}: {error.__cause__}", time.monotonic()
                lost = now if lost is None or now - asked > _NOTICED_S else lost
                if not is_away(error.__cause__) or now - lost > _AWAY_S:
                    raise RunFailed(f"no slot of the concurrency limit {limit!r} could be had: {why}") from error
                get_run_logger().warning("Prefect's API is away, asking again: %s", why)
        time.sleep(_ASK_S)
