"""Prepares the next micro-batch in a thread while the model computes this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import pyarrow as pa


class TwoSteps(Protocol):
    """A scorer whose two steps can be called by different threads, as `predictors.Scorer`."""

    def prepare(self, table: pa.Table) -> Any:
        """Make the model's input from these rows."""

    def score(self, prepared: Any) -> dict[str, pa.Array]:
        """Call the model with what `prepare` returned."""


class Preparer:
    """Has at most one micro-batch prepared, so that there is memory for one more, and no more than that.

    What preparing raises is raised when the batch is scored, as if it had been prepared then.
    """

    def __init__(self, scorer: TwoSteps) -> None:
        self._scorer = scorer
        self._thread = ThreadPoolExecutor(1, "nightjar-prepare")
        self._begun: tuple[Sequence[int], Future[Any]] | None = None

    def begin(self, table: pa.Table, rows: Sequence[int]) -> None:
        """Begin to prepare a micro-batch. rows: the indices of its rows."""
        self._begun = rows, self._thread.submit(self._scorer.prepare, table)

    def take(self, rows: Sequence[int]) -> Callable[[pa.Table], dict[str, pa.Array]] | None:
        """What scores the micro-batch of these rows, which is taken; None if another one was begun, or none."""
        begun, self._begun = self._begun, None
        if begun is None or begun[0] != rows:
            return None
        return lambda _: self._scorer.score(begun[1].result())

    def forget(self) -> None:
        """Drop what was begun and not taken: it is of another table, whose scoring ended early."""
        self._begun = None
