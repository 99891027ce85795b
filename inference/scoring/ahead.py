"""Prepares the next micro-batch in a thread while the model computes this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import pyarrow as pa

from nightjar.inference.scoring.parcels import Batch, found


class Steps(Protocol):
    """A scorer whose steps can be called by different threads, as `predictors.Scorer`."""

    def prepare(self, table: pa.Table) -> Any:
        """Make the model's input from these rows."""

    def accept(self, batch: Any, rows: int) -> Any:
        """Make the model's input from a batch that was preprocessed before."""

    def score(self, prepared: Any) -> dict[str, pa.Array]:
        """Call the model with what `prepare` or `accept` returned."""

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        """`prepare` and `score`."""


class Preparer:
    """Has at most one micro-batch prepared, so that there is memory for one more, and no more than that.

    What preparing raises is raised when the batch is scored, as if it had been prepared then.
    """

    def __init__(self, scorer: Steps, *, ahead: bool = True) -> None:
        """ahead: whether there is a core for a thread that prepares; without one it would only take the model's
        time.
        """
        self._scorer = scorer
        self._thread = ThreadPoolExecutor(1, "nightjar-prepare") if ahead else None
        self._begun: tuple[Sequence[int], Future[Any]] | None = None
        self._shipped: Sequence[Batch] = ()

    def start(self, shipped: Sequence[Batch]) -> None:
        """Begin another table. shipped: the batches of it that came preprocessed."""
        self._begun, self._shipped = None, shipped

    def begin(self, table: pa.Table, rows: Sequence[int]) -> None:
        """Begin to prepare a micro-batch. rows: the indices of its rows."""
        if self._thread and rows:
            self._begun = rows, self._thread.submit(self._prepare, table, rows)

    def take(self, rows: Sequence[int]) -> Callable[[pa.Table], dict[str, pa.Array]]:
        """What scores these rows. What was begun is taken."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] == rows:
            return lambda _: self._scorer.score(begun[1].result())
        batch = found(self._shipped, rows) if rows else None
        return self._scorer if batch is None else lambda _: self._scorer.score(self._scorer.accept(batch, len(rows)))

    def _prepare(self, table: pa.Table, rows: Sequence[int]) -> Any:
        batch = found(self._shipped, rows)
        return self._scorer.prepare(table) if batch is None else self._scorer.accept(batch, len(rows))
