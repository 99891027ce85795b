"""What an own Prefect server serves, and its settings."""

from __future__ import annotations

import socket
from typing import Any

from prefect.settings import (
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE,
    PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS,
    get_current_settings,
    temporary_settings,
)
from prefect.settings.legacy import Setting

_USUAL: dict[Setting, Any] = {
    PREFECT_SERVER_ANALYTICS_ENABLED: False,
    # Runs are made ahead, because none is made while this server is down. A run that was made ahead starts late.
    # Prefect's default is three.
    PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS: 14,
    # The database counts the slots of concurrency limits. If the leases for them were only in memory, they would be
    # lost with the server, and the slot of a run that was cut off would never be free again.
    PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE: "prefect.server.concurrency.lease_storage.filesystem",
}
"""Settings of an own server that differ from Prefect's defaults."""


def server_settings() -> dict[Setting, Any]:
    """Settings that an own server has besides the user's. The user's profile and environment have precedence."""
    given = get_current_settings().to_environment_variables(exclude_unset=True)
    return {setting: usual for setting, usual in _USUAL.items() if setting.name not in given}


def nights_ahead() -> int:
    """The number of nights of a job that fall due while the own server is down and are run when it is up again."""
    ahead = PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS
    count: int = server_settings().get(ahead, ahead.value())
    return count


def serve(shared: socket.socket, *, complete: bool) -> None:
    """Serve the Prefect API on a socket that listens, until this process is told to end.

    complete: as in `start_api`.
    """
    with temporary_settings(server_settings()):
        # Imported with these settings, and by nobody who only asks for them: it takes seconds.
        import uvicorn
        from prefect.server.api.server import create_app

        app = create_app(ephemeral=not complete, final=True)
        uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on")).run(sockets=[shared])
