"""Spaces out requests, so that no minute has more of something than it may."""

from __future__ import annotations

import asyncio
import time


class Pace:
    """A limit for each minute. What is spent is spread evenly: a minute never begins with a burst."""

    def __init__(self, per_minute: float) -> None:
        """per_minute: 0 for no limit."""
        self._each_s = 60.0 / per_minute if per_minute else 0.0
        self._free_at = 0.0

    async def spend(self, amount: float) -> None:
        """Wait until this may be spent. Who asks first is first."""
        if not self._each_s:
            return
        now = time.monotonic()
        begins = max(now, self._free_at)
        self._free_at = begins + amount * self._each_s
        await asyncio.sleep(begins - now)

    def correct(self, more: float) -> None:
        """Take into account that it was more than was said, or less."""
        self._free_at += more * self._each_s
