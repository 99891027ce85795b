"""What an own Prefect server serves, and its settings."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect.settings import (
    PREFECT_API_DATABASE_CONNECTION_URL,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS,
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

HOSTS = ("127.0.0.1", "localhost")
"""The names by which it may be asked: a page of elsewhere whose name leads to this machine must not reach it."""

_SIGN_IN = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Sign in</title>
<script>
localStorage.setItem("prefect-password", btoa(decodeURIComponent(location.hash.slice(1))));
location.replace("/deployments");
</script>
"""
"""Prefect's pages keep the password so. A browser does not send what follows `#` to any server."""


def server_settings(port: int = 0) -> dict[Setting, Any]:
    """Settings that an own server has besides the user's. The user's profile and environment have precedence."""
    given = get_current_settings().to_environment_variables(exclude_unset=True)
    usual = {**_USUAL, PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS: ",".join(f"http://{host}:{port}" for host in HOSTS)}
    return {setting: value for setting, value in usual.items() if setting.name not in given}


def nights_ahead() -> int:
    """The number of nights of a job that fall due while the own server is down and are run when it is up again."""
    ahead = PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS
    count: int = server_settings().get(ahead, ahead.value())
    return count


def serve(shared: socket.socket, *, complete: bool) -> None:
    """Serve the Prefect API on a socket that listens, until this process is told to end.

    complete: as in `start_api`.
    """
    with temporary_settings(server_settings(shared.getsockname()[1])):
        # Imported with these settings, and by nobody who only asks for them: it takes seconds.
        import uvicorn
        from prefect.server.api.server import create_app
        from prefect.server.services.perpetual_services import get_perpetual_services
        from prefect.server.services.repossessor import monitor_expired_leases
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.responses import HTMLResponse
        from starlette.routing import Route

        for service in get_perpetual_services():
            # A run's server, too, frees the slots of runs that were killed: there may never be another one.
            service.run_in_ephemeral |= service.function is monitor_expired_leases
        app = create_app(ephemeral=not complete, final=True)
        app.router.routes.insert(0, Route("/sign-in", lambda _: HTMLResponse(_SIGN_IN)))
        # Around the application, and not in it: Prefect's services (automations, say) ask the application itself, as
        # the host `prefect-in-memory`.
        guarded = TrustedHostMiddleware(app, allowed_hosts=[*HOSTS], www_redirect=False)
        _close_database()
        uvicorn.Server(uvicorn.Config(guarded, log_level="error", lifespan="on")).run(sockets=[shared])


def _close_database() -> None:
    """Let only this user read the database, which has logs and parameters, and what this process writes from now on."""
    os.umask(0o077)
    kind, _, file = str(PREFECT_API_DATABASE_CONNECTION_URL.value()).partition("?")[0].partition(":///")
    for end in ("", "-wal", "-shm") if kind.startswith("sqlite") and file else ():
        with suppress(FileNotFoundError):
            Path(f"{file}{end}").chmod(0o600)
