"""Everything that `flows` uses of Prefect without a documented name.

The test `tests/unit/base/test_internals.py` fails on versions on which this module has not been seen to work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from uuid import UUID

from prefect import flow_engine
from prefect.concurrency._leases import maintain_concurrency_lease

SEEN_ON = {"prefect": "3.9.1"}
"""The versions with which this module has been seen to work."""


_NAME = maintain_concurrency_lease.__name__


def _going_on(lease_id: UUID, lease_duration: float, **_: bool) -> AbstractContextManager[None]:
    return maintain_concurrency_lease(lease_id, lease_duration)


@contextmanager
def outliving_leases() -> Iterator[None]:
    """Let a flow run that begins in this context go on if Prefect's API does not renew the lease of its slot.

    Prefect's own concurrency limits have this as an option, those of deployments do not. Without this, an API that is
    away for a minute ends the run in the middle of a step, by an exception in its thread.
    """
    before = getattr(flow_engine, _NAME)
    setattr(flow_engine, _NAME, _going_on)
    try:
        yield
    finally:
        setattr(flow_engine, _NAME, before)
