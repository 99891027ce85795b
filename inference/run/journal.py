"""Appends lines to the ledger in batches, then tells the listeners."""

from __future__ import annotations

import time
from collections.abc import Callable

from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.lines import Line
from nightjar.inference.run.listeners import Listeners

FLUSH_S = 1.0
"""The longest time in seconds that a line waits for others. A killed command loses the results of this time."""

FLUSH_RECORDS = 500
"""The most lines that wait."""


class Journal:
    """One command's lines for the ledger. written: called with each line when the ledger has it."""

    def __init__(self, writer: LedgerWriter, listeners: Listeners, written: Callable[[Line], None]) -> None:
        self._writer, self._listeners, self._written = writer, listeners, written
        self._waiting: list[Line] = []
        self._flushed_at = time.monotonic()

    def save(self, line: Line) -> None:
        """Append the line with the next batch."""
        self._waiting.append(line)

    def flush_if_due(self) -> None:
        """Append the batch if it is large or old enough.

        Raises:
            Fenced: another writer took over.
        """
        due = time.monotonic() - self._flushed_at > FLUSH_S
        if (self._waiting and due) or len(self._waiting) >= FLUSH_RECORDS:
            self.flush()
        self._writer.check()

    def flush(self) -> None:
        """Append the waiting lines.

        Raises:
            Fenced: another writer took over.
        """
        self._flushed_at = time.monotonic()
        if not self._waiting:
            return
        lines, self._waiting = self._waiting, []
        self._writer.append(lines)
        for line in lines:
            self._written(line)
        self._listeners.progress(self._writer.state.progress)
