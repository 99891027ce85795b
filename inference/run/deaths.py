"""Finds the shards that a pass started and that died with their processes; the last crumb tells at which rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from nightjar.inference.records import Crumb, Event, Failed, Prepared, Preparing, Receipt, Started


@dataclass
class Underway:
    """The shards that a pass has started and that have no result yet. started: the number of all starts.

    With a CPU stage the events of a shard may arrive in any order, so each kind is kept until the end.
    """

    started: int = 0
    _preparing: dict[str, Preparing] = field(default_factory=dict)
    _prepared: set[str] = field(default_factory=set)
    _running: dict[str, Started] = field(default_factory=dict)
    _crumbs: dict[str, Crumb] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def take(self, event: Event) -> None:
        """Follow one event of the pass."""
        match event:
            case Started():
                self.started += 1
                self._running[event.shard] = event
            case Preparing():
                self.started += 1
                self._preparing[event.shard] = event
            case Prepared():
                self._prepared.add(event.shard)
            case Crumb():
                self._crumbs[event.shard] = event
            case Receipt() | Failed():
                self._ended.add(event.shard)

    def deaths(self, ended: str) -> list[Failed]:
        """The failures for shards that have no result when the pass has ended. ended: why the pass ended early."""
        lost = {shard: start for shard, start in self._preparing.items() if shard not in self._prepared} | self._running
        return [
            _death(start, self._crumbs.get(shard), ended) for shard, start in lost.items() if shard not in self._ended
        ]


def _death(start: Started | Preparing, crumb: Crumb | None, ended: str) -> Failed:
    """The failure for a lost process: its shard, and the rows of its last crumb."""
    message = ended or f"the worker {start.worker} was lost while it worked on this shard"
    if crumb is None or not crumb.rows:
        return Failed(start.shard, start.attempt, "ProcessDied", message, died=True, worker=start.worker)
    where = f"row {crumb.row}" if crumb.rows == 1 else f"rows {crumb.row} to {crumb.row + crumb.rows - 1}"
    return Failed(
        start.shard,
        start.attempt,
        "ProcessDied",
        f"{message}, at {where} of {crumb.uri}" + (f" with the model {crumb.model!r}" if crumb.model else ""),
        died=True,
        uri=crumb.uri,
        row=crumb.row,
        rows=crumb.rows,
        worker=start.worker,
        model=crumb.model,
    )
