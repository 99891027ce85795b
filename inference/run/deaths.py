"""Finds the shards that a pass started and that died with their processes; the last crumb tells at which rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from nightjar.inference.records import Crumb, Event, Failed, Receipt, Started


@dataclass
class Underway:
    """The shards that a pass has started and that have no result yet. started: the number of all started shards."""

    started: int = 0
    _running: dict[str, Started] = field(default_factory=dict)
    _crumbs: dict[str, Crumb] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Follow one event of the pass."""
        match event:
            case Started():
                self.started += 1
                self._running[event.shard] = event
            case Crumb():
                self._crumbs[event.shard] = event
            case Receipt() | Failed():
                self._running.pop(event.shard, None)

    def deaths(self, ended: str) -> list[Failed]:
        """The failures for shards that have no result when the pass has ended. ended: why the pass ended early."""
        return [_death(start, self._crumbs.get(shard), ended) for shard, start in self._running.items()]


def _death(start: Started, crumb: Crumb | None, ended: str) -> Failed:
    """The failure for a lost process: its shard, and the rows of its last crumb."""
    message = ended or f"the worker {start.worker} was lost while it worked on this shard"
    if crumb is None or not crumb.rows:
        return Failed(start.shard, start.attempt, "ProcessDied", message, died=True, worker=start.worker)
    where = f"row {crumb.row}" if crumb.rows == 1 else f"rows {crumb.row} to {crumb.row + crumb.rows - 1}"
    return Failed(
        start.shard,
        start.attempt,
        "ProcessDied",
        f"{message}, at {where} of {crumb.uri}",
        died=True,
        uri=crumb.uri,
        row=crumb.row,
        rows=crumb.rows,
        worker=start.worker,
    )
