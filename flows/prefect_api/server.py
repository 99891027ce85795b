"""The Prefect API for a command: the configured one, or a server of the command's own (`ownserver`).

Nothing of Prefect's logs is on the terminal, and in the run's log our own errors are one sentence, without a traceback.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from prefect.logging.configuration import setup_logging
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED,
    PREFECT_CLOUD_API_URL,
    PREFECT_LOGGING_LEVEL,
    PREFECT_UI_URL,
    temporary_settings,
)

from nightjar.flows.prefect_api.api import ask_api, check_proxies, home, user_of, without_user
from nightjar.flows.prefect_api.ownserver import PrefectApi
from nightjar.inference.errors import ClusterError, NightjarError
from nightjar.inference.process import environment, held

_EVENT_TRIES = 2
"""How often an event is sent again if the API does not take it. From the fourth time on Prefect waits before each."""

_OWN_INSTEAD = (
    ", or let the run start its own (`unset PREFECT_API_URL`, and `prefect config unset PREFECT_API_URL` if it is in "
    "the profile)"
)


def start_api(*, complete: bool = False) -> PrefectApi:
    """Return the configured API if it answers; else an own server that begins, for which `wait` waits.

    complete: start it with pages and services, and at Prefect's usual port if that is free.

    Raises:
        ClusterError: The configured API does not answer, or does not let this command in; or a proxy cannot be used.
    """
    check_proxies()
    if configured := PREFECT_API_URL.value():
        try:
            ask_api(configured)
        except ClusterError as error:
            raise ClusterError(f"{error}{_OWN_INSTEAD}") from error
        return PrefectApi(configured)
    api = PrefectApi()
    api.begin(complete=complete)
    return api


@contextmanager
def reporting_to(api: PrefectApi, verbose: bool) -> Iterator[None]:
    """Run flows with this API, and with a quiet terminal unless `verbose`. Stops an own server at the end."""
    url = without_user(api.url)
    settings = {
        PREFECT_API_URL: url,
        PREFECT_UI_URL: home() or url.removesuffix("/api"),
        PREFECT_LOGGING_LEVEL: "INFO",
        # About 15 s for each report to the API, not a minute: the ledger does not need the API.
        PREFECT_CLIENT_MAX_RETRIES: min(3, PREFECT_CLIENT_MAX_RETRIES.value()),
        # Without this each process of the cluster would ask, and its task would fail if the API is away just then.
        PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False,
    }
    # Prefect logs URLs, and its events do not sign in by them; with this it sends the same header.
    password = api.password if api.own else user_of(api.url)
    signs_in = {PREFECT_API_AUTH_STRING: password} if password else {}
    with (
        api,
        environment({setting.name: password for setting, password in signs_in.items()}),  # for the run's own Ray
        temporary_settings({**settings, **signs_in}),
        _giving_up_events_soon(api),
        held(_pages, not api.own),
    ):
        setup_logging()
        if not verbose:
            quiet()
        try:
            yield
        finally:
            drain()


_pages: ContextVar[bool] = ContextVar("pages", default=True)


def has_pages() -> bool:
    """Whether the API of the run that goes on here has pages, which a person can see when the run is over."""
    return _pages.get()


@contextmanager
def _giving_up_events_soon(api: PrefectApi) -> Iterator[None]:
    """Make an event fail at once if the API is away; Prefect sends it again when the API is back.

    By default Prefect tries each event for 7 s and waits for all of them when the process ends, which takes minutes.
    """
    if api.url.startswith(PREFECT_CLOUD_API_URL.value()):
        yield
        return
    EventsWorker.set_client_override(PrefectEventsClient, reconnection_attempts=_EVENT_TRIES)
    try:
        yield
    finally:
        EventsWorker.set_client_override(None)


def drain() -> None:
    """Send the logs and events that this process has queued, while the server is up."""
    # The thread has no event loop: where one runs, as in a notebook, Prefect would return an awaitable, and drain
    # nothing.
    sending = threading.Thread(target=_drain, daemon=True, name="nightjar-drain")
    sending.start()
    sending.join()


def _drain() -> None:
    for service in (APILogWorker, EventsWorker):
        service.drain_all(timeout=10)


def quiet() -> None:
    """Keep Prefect's logs off the terminal. They go to its API, and the run's page shows them."""
    logging.raiseExceptions = False  # logs that cannot be sent to the API are not printed either
    for handler in _terminals():
        handler.setLevel(logging.CRITICAL + 1)


@contextmanager
def as_found() -> Iterator[None]:
    """Undo `quiet` at the end, for a program that goes on after the run: flows of its own print as before."""
    raises, levels = logging.raiseExceptions, {handler: handler.level for handler in _terminals()}
    try:
        yield
    finally:
        logging.raiseExceptions = raises
        for handler in _terminals():  # a run makes them anew
            handler.setLevel(levels.get(handler, logging.NOTSET))


def _terminals() -> set[logging.StreamHandler[Any]]:
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    return {
        handler
        for logger in loggers
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and type(handler).__module__.startswith("prefect.")
    }


_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")


def _one_sentence(record: logging.LogRecord) -> bool:
    """Log our error in place of "exited with unexpected exception" and a traceback of Prefect's own frames."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, NightjarError):
        record.msg, record.args = f"{type(error).__name__}: {error}", ()
        record.exc_info, record.exc_text = None, None
    return True


def expect_failures() -> None:
    """Install the filter. Each process that runs our flow or a task calls this first; a second call does nothing."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_one_sentence)
