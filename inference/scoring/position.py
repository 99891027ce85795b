"""A worker's position: the attempt that it works on, and the rows that it is scoring."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.records import Started
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.storage.retrying import RetryingStorage


@dataclass(frozen=True, slots=True)
class Running:
    """One attempt at a shard, from its first read on. at: its start as wall time. began: its start on the monotonic
    clock. first: what is being read of it already. prepared: whether the CPU stage has prepared it; then at and retries
    are of that stage.
    """

    assignment: Assignment
    started: Started
    storage: RetryingStorage
    at: float
    began: float
    first: Sequence[Future[RowsRead]] = ()
    prepared: bool = False
    retries: int = 0

    @property
    def alone(self) -> bool:
        return self.assignment.attempt.crumbs


@dataclass(frozen=True, slots=True)
class At:
    """What the worker is doing. rows: the number of rows that the predictor has now, from `row` on; 0 for none, or if
    they are of several files, `row` is in the first one. model: the name of the predictor's model, if the job has
    several.
    """

    started: Started
    uri: str = ""
    row: int = -1
    rows: int = 0
    model: str = ""

    @property
    def where(self) -> str:
        """The position as text, for a message."""
        by = f" with the model {self.model!r}" if self.model else ""
        if not self.rows and self.row >= 0:
            return f"{by} at a batch of several files that begins with row {self.row} of {self.uri}"
        if not self.rows:
            return f" while {self.uri} was read or written" if self.uri else " while a part was written"
        last = "" if self.rows == 1 else f" to {self.row + self.rows - 1}"
        return f"{by} at row{'s' if last else ''} {self.row}{last} of {self.uri}"
