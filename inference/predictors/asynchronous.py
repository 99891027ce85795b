"""Async predictors, called from code that is not async."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from functools import cached_property
from typing import Any


class Synchronous:
    """A callable that waits for what it calls: for a coroutine, and for each piece of an async generator.

    All run in one event loop, which has a thread of its own, as in Ray Data's actors: what the user's code started in
    it, as an engine that schedules requests, goes on between two batches.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, batch: Any) -> Any:
        raw = self._function(batch)
        if inspect.isasyncgen(raw):
            return self._pieces(raw)
        return self._result(raw) if inspect.iscoroutine(raw) else raw

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True, name="nightjar-async").start()
        return loop

    def _result(self, running: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(running, self._loop).result()

    def _pieces(self, pieces: AsyncIterator[Any]) -> Generator[Any, None, None]:
        end = object()

        async def following() -> Any:
            return await anext(pieces, end)

        while (piece := self._result(following())) is not end:
            yield piece
