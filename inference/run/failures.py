"""The failures of a run's shards: whom a pass that ended is charged with, what gets a further attempt, and when the run
ends because everything fails alike.

Only a shard that was started is charged. If it has neither receipt nor failure when its pass has ended, it died with
its process. A shard that waited behind it in the same actor did not start, and is simply in the next pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pyarrow.compute as pc

from nightjar.inference.errors import InputChanged, InputCorrupt, SchemaMismatch, ShardsFailed
from nightjar.inference.input.plan import Plan
from nightjar.inference.messages import counted_of
from nightjar.inference.records import UNREADABLE, Crumb, Event, Failed, Prepared, Preparing, Receipt, Started, death
from nightjar.inference.scoring.suspects import Attempt, GivenUp, next_attempt

ALIKE = 8
"""If this many shards fail first, all for one cause, and none succeeds, the run ends: the others would fail, too."""

LONG_ALIKE = 64
"""The same limit for a run that already has committed shards. The model has scored before, so more failures are needed
to conclude that it does not score any more."""

_OWN_FAULT = {InputCorrupt.__name__, InputChanged.__name__, SchemaMismatch.__name__}
"""Causes that concern one file and say nothing about others, like failures of files that discovery could not read."""


@dataclass
class Pending:
    """The shards that are left to score. packed: shards of several files that failed, or died twice, and must first be
    split.
    """

    shards: list[str] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    packed: list[str] = field(default_factory=list)

    def riding(self, succeeded: bool) -> Pending:
        """The shards of the next pass: suspects come only when nothing else is left, and row by row last.

        But while nothing at all has succeeded, a few suspects are tried before more processes die.
        """
        kinds = [attempt.crumbs + (attempt.singly is not None) for attempt in self.attempts]
        suspects = [index for index, kind in enumerate(kinds) if kind]
        judged = not succeeded and len(suspects) >= ALIKE
        candidates = suspects[:ALIKE] if judged else range(len(kinds))
        kind = min(kinds[index] for index in candidates)
        chosen = [index for index in candidates if kinds[index] == kind]
        return Pending([self.shards[index] for index in chosen], [self.attempts[index] for index in chosen])


class Failures:
    """Every failure that this command has seen, by shard. given_up: the shards that get no further attempt."""

    def __init__(self, plan: Plan, before: Mapping[str, Sequence[Failed]], tries: int) -> None:
        """before: the failures that the ledger has. tries: the attempts that the job allows."""
        self.given_up: dict[str, GivenUp] = {}
        self._found: dict[str, list[Failed]] = {}
        self._tries = tries
        # Repeating the command grants new attempts, because something has probably been mended. But what is known
        # about rows that kill is kept.
        self._earlier = {shard: [failed for failed in said if failed.died] for shard, said in before.items()}
        unread = plan.table.filter(pc.equal(plan.table["rows"], UNREADABLE))
        self._unread = frozenset(unread["shard"].to_pylist())

    def add(self, failed: Failed) -> None:
        """Add a failure."""
        self._found.setdefault(failed.shard, []).append(failed)

    def pending(self, plan: Plan, done: set[str]) -> Pending:
        """The shards of the plan that are left. Gives up shards without attempts left."""
        pending, fresh = Pending(), Attempt()
        sizes = pc.list_value_length(plan.table["pieces"]).to_pylist()
        for shard, pieces in zip(plan.ids(), sizes, strict=True):
            if shard in done or shard in self.given_up:
                continue
            found, earlier = self._found.get(shard, []), self._earlier.get(shard, [])
            decided = next_attempt(found, self._tries, earlier) if found or earlier else fresh
            if pieces > 1 and (len(earlier) + len(found) > 1 or any(not failed.died for failed in found)):
                pending.packed.append(shard)
            elif isinstance(decided, GivenUp):
                self.given_up[shard] = decided
            else:
                pending.shards.append(shard)
                pending.attempts.append(decided)
        return pending

    def check_given_up(self, plan: Plan) -> None:
        """Check that every shard of the plan has a result.

        Raises:
            ShardsFailed: Some were given up; the message names the first.
        """
        if not self.given_up:
            return
        shard, first = next(iter(self.given_up.items()))
        found = plan.shard(shard)
        assert found is not None
        lost = counted_of(len(self.given_up), len(plan), "shard")
        raise ShardsFailed(f"{lost} no result; the first is {found.label} (shard {shard}): {first.why}")

    def firsts(self) -> Iterable[Failed]:
        """The first failure of each shard that did not die: one row may be to blame for a death."""
        return (found[0] for found in self._found.values() if not found[0].died)

    def finals(self) -> Iterable[Failed]:
        """The failure for which each shard was given up, deaths among them."""
        return (given_up.failed for given_up in self.given_up.values())

    def check_alike(self, failures: Iterable[Failed], enough: int) -> None:
        """End the run if its first `enough` failures are alike.

        Raises:
            ShardsFailed: They are alike.
        """
        telling = (each for each in failures if each.cause not in _OWN_FAULT and each.shard not in self._unread)
        first = list(islice(telling, enough))
        if len(first) == enough and len({(failed.cause, failed.terminal) for failed in first}) == 1:
            raise ShardsFailed(
                f"the first {len(first)} shards all failed alike, so the run stopped: "
                f"{first[0].cause}: {first[0].message}"
            )


@dataclass
class Underway:
    """The shards that a pass has started and that have no result yet. started: the number of all starts. workers: that
    have the models.

    With a CPU stage the events of a shard may arrive in any order, so each kind is kept until the end.
    """

    started: int = 0
    workers: set[str] = field(default_factory=set)
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
                self.workers.add(event.worker)
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
    if crumb is not None and crumb.rows:
        return death(crumb, "ProcessDied", f"{message},", start.worker)
    return Failed(start.shard, start.attempt, "ProcessDied", message, died=True, worker=start.worker)
