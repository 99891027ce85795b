"""Prefect's runner, for nights that outlast its API: what is away is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

import httpx
from prefect.logging import get_logger
from prefect.runner import Runner

from nightjar.flows.prefect_api.api import is_away

_ASK_S = 10.0
"""How often an API that is away is asked again about a run that is to be cancelled."""

_log = get_logger("runner")


class PatientRunner(Runner):
    """Prefect's runner, but it outlives its API. over: raises when there is no use in waiting for it any more."""

    def __init__(self, over: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._over = over

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        # After three polls without an answer Prefect ends the runner, and with it the run that is going on.
        poller: Any = self._scheduled_run_poller
        poller._get_and_submit_flow_runs = _Patient(poller._get_and_submit_flow_runs, self._over)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        # After as many Prefect looks for cancelled runs no more; without a websocket it does so from the moment this
        # is entered, which is where it is made.
        if name == "_cancelling_observer" and value is not None:
            ask = value._check_for_cancelled_flow_runs
            if not isinstance(ask, _Patient):
                # That there is no use in waiting is for the poller to say: this would end alone, and loudly.
                value._check_for_cancelled_flow_runs = _Patient(ask)
        super().__setattr__(name, value)

    async def _cancel_run(self, flow_run: Any, state_msg: str | None = None) -> None:
        # Prefect asks for the run first, and an API that is away then would end the runner, too.
        while True:
            try:
                await super()._cancel_run(flow_run, state_msg)
                return
            except httpx.HTTPError as error:
                if not is_away(error):
                    raise
                _log.warning("Prefect's API is away; cancelling the run when it is back: %s", error)
            await asyncio.sleep(_ASK_S)

    def handle_sigterm(self, *_: Any, **__: Any) -> None:
        """As Ctrl-C. Prefect's own leaves its `stop` unawaited, so that nothing is stopped in order."""
        raise KeyboardInterrupt


class _Patient:
    """A question to Prefect's API that is asked again while it is away: it says so once, and once that it is back."""

    def __init__(self, ask: Callable[[], Awaitable[None]], over: Callable[[], None] = lambda: None) -> None:
        self._ask, self._over, self._away = ask, over, False

    async def __call__(self) -> None:
        try:
            await self._ask()
        except httpx.HTTPError as error:
            if not is_away(error):
                raise
            self._over()
            if not self._away:
                _log.warning("Prefect's API is away, asking again until it is back: %s", error or type(error).__name__)
            self._away = True
            return
        if self._away:
            _log.warning("Prefect's API is back")
        self._away = False
