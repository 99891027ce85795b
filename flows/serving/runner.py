"""Prefect's runner, with requests that are repeated while the API is away, so that a night can outlast it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.context import AsyncClientContext, ContextModel
from prefect.logging import get_logger
from prefect.runner import Runner
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_KEY, PREFECT_API_URL

from nightjar.flows.prefect_api.api import is_away

_ASK_S = 10.0
"""Seconds between two requests to an API that is away."""

_POLL = "/deployments/get_scheduled_flow_runs"
"""The path of the request for due runs. Its error ends the runner; any other request's error is only logged."""

_log = get_logger("runner")
_observer_log = get_logger("FlowRunCancellingObserver")
"""Where Prefect says that its connection for cancellations was lost, and that it polls from then on."""


class PatientRunner(Runner):
    """Prefect's runner, which outlives an absence of its API. over: raises when the API will not come back.

    With Prefect's own client the runner and its runs would end after three polls without an answer.
    """

    def __init__(self, over: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._patience = _Patience(over)
        self._serving: asyncio.Task[Any] | None = None

    async def start(self, run_once: bool = False, webserver: bool | None = None) -> None:
        self._serving = asyncio.current_task()
        brief = _Brief(self._patience)
        _observer_log.addFilter(brief)
        try:
            async with _Client(_PatientClient(self._patience)):
                await super().start(run_once, webserver)
        finally:
            _observer_log.removeFilter(brief)

    async def __aexit__(self, *exc_info: Any) -> None:
        self._patience.ends = True
        await super().__aexit__(*exc_info)

    def handle_sigterm(self, *_: Any, **__: Any) -> None:
        """Stop as for Ctrl-C: cancel what `start` does, which then stops everything in order; once.

        An error raised here would come up wherever the loop happens to be. Prefect's own handler awaits nothing.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert self._serving is not None
        self._serving.get_loop().call_soon_threadsafe(self._serving.cancel)


class _Patience:
    """Says once that the API is away, and once that it is back. ends: the runner is stopped, and waits for no API."""

    def __init__(self, over: Callable[[], None]) -> None:
        self.ends = False
        self._over, self._away = over, False

    def away(self, error: httpx.HTTPError, path: str) -> None:
        if path == _POLL:
            self._over()
        if not self._away:
            _log.warning("Prefect's API is away, asking again until it is back: %s", error or type(error).__name__)
        self._away = True

    def back(self) -> None:
        if self._away:
            _log.warning("Prefect's API is back")
        self._away = False


class _Brief(logging.Filter):
    """Leaves one line of a lost connection, where Prefect shows a traceback; and nothing of it once the runner ends."""

    def __init__(self, patience: _Patience) -> None:
        super().__init__()
        self._patience = patience

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and (error := record.exc_info[1]):
            record.msg, record.args = f"{record.getMessage()} ({str(error) or type(error).__name__})", ()
            record.exc_info = None
        return not self._patience.ends


class _PatientClient(PrefectClient):
    """Prefect's client, whose requests are repeated until the API answers."""

    def __init__(self, patience: _Patience) -> None:
        api, key, password = PREFECT_API_URL.value(), PREFECT_API_KEY.value(), PREFECT_API_AUTH_STRING.value()
        super().__init__(api, api_key=key, auth_string=password)
        self._patience = patience

    async def request(self, method: Any, path: Any, *args: Any, **kwargs: Any) -> httpx.Response:
        while True:
            try:
                answer = await super().request(method, path, *args, **kwargs)
            except httpx.HTTPError as error:
                if not is_away(error) or self._patience.ends:
                    raise
                self._patience.away(error, path)
            else:
                self._patience.back()
                return answer
            await asyncio.sleep(_ASK_S)


class _Client(AsyncClientContext):
    """A context in which Prefect uses this client wherever it needs one."""

    def __init__(self, client: PrefectClient) -> None:
        ContextModel.__init__(self, client=client)  # AsyncClientContext's would make a client of its own
