"""Passes until nothing is missing: attempt 1 over everything, attempt N over what is still missing.

Only what was started is charged. A shard that started and has neither receipt nor failure when its pass has
ended died with its process; what waited behind it in the same actor did not start, and simply rides again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.engine.protocol import Engine
from nightjar.inference.errors import (
    ClusterLost,
    Fenced,
    InputChanged,
    InputCorrupt,
    ModelChanged,
    OutsideIdentity,
    PassEnded,
    QuarantineFull,
    RunFailed,
    SchemaMismatch,
    ShardsFailed,
)
from nightjar.inference.input.plan import Plan
from nightjar.inference.ledger import lines
from nightjar.inference.ledger.ledger import LedgerWriter, Record
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.output.space import LOOK_S, check_room
from nightjar.inference.records import (
    UNREADABLE,
    Crumb,
    Event,
    Failed,
    Noticed,
    Receipt,
    Started,
    as_line,
    encode,
)
from nightjar.inference.run.listeners import Listeners
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.suspects import Attempt, GivenUp, next_attempt
from nightjar.inference.witness import Collection, Seen
from nightjar.inference.witness.records import UNSURE

FLUSH_S = 1.0
FLUSH_RECORDS = 500
ALIKE = 8
"""So many first shards failing for one cause, and none succeeding, end the run: the rest would, too."""

LONG_ALIKE = 64
"""So many, of a run of which something is committed."""

_OWN_FAULT = {InputCorrupt.__name__, InputChanged.__name__, SchemaMismatch.__name__}
"""Causes that lie in one file and say nothing of the next; as do failures of files that discovery could not read."""

_LONGEST_BACKOFF_S = 60.0


@dataclass
class Campaign:
    """Scores every shard of `plan` that the ledger does not have; with `only`, none but these."""

    plan: Plan
    spec: WorkerSpec
    engine: Engine
    writer: LedgerWriter
    fingerprint: str
    progress: Progress
    listeners: Listeners
    only: frozenset[str] = frozenset()
    passes: int = 0
    first_event_at: float = 0.0
    given_up: dict[str, GivenUp] = field(default_factory=dict)
    _unsaved: list[Record] = field(default_factory=list)
    _flushed_at: float = field(default_factory=time.monotonic)
    _looked_at: float = 0.0
    _silent_passes: int = 0
    _failures: dict[str, list[Failed]] = field(default_factory=dict)
    _earlier: dict[str, list[Failed]] = field(default_factory=dict)
    _receipts: int = 0
    _unread: frozenset[str] = frozenset()
    _noticed: Collection = field(default_factory=Collection)

    def __post_init__(self) -> None:
        """Repeating the command grants new attempts, since whoever repeats it has probably mended something.

        But what is known about a row that kills is kept.
        """
        for shard, failures in self.writer.state.failures.items():
            self._earlier[shard] = [failed for failed in failures if failed.died]
        unread = self.plan.table.filter(pc.equal(self.plan.table["rows"], UNREADABLE))
        self._unread = frozenset(unread["shard"].to_pylist())

    def run(self) -> None:
        """Score what is missing.

        Raises:
            ShardsFailed: some shards have no result and will get none; lists the first of them.
            QuarantineFull: more rows are quarantined than the job allows.
            Fenced: another writer took over.
        """
        self._check_budget()
        self._noticed = Collection(self.writer.state.about.outside.all())
        while pending := self._pending():
            table, attempts = pending
            self._back_off(attempts)
            self._pass(table, attempts)
        if self.given_up:
            raise ShardsFailed(self._summary(), len(self.given_up), len(self.plan))
        if left := len(set(self.plan.ids()) - self.writer.state.committed):
            raise ShardsFailed(f"the shards asked for are done; {left} others have no result yet", left, len(self.plan))

    def _pending(self) -> tuple[pa.Table, list[Attempt]] | None:
        """What the next pass has to do, after splitting and giving up what earlier ones could not."""
        while True:
            ids, attempts, packed = self._decide()
            if not packed:
                break
            self._split(packed)
        if not ids:
            return None
        riding = self._riding(attempts)
        chosen = pc.is_in(self.plan.table["shard"], value_set=pa.array([ids[i] for i in riding], pa.string()))
        return self.plan.table.filter(chosen), [attempts[i] for i in riding]

    def _riding(self, attempts: list[Attempt]) -> list[int]:
        """Which of the pending ride in the next pass: suspects only when nothing else is left, row by row last.

        But as long as nothing at all succeeded, a few suspects are judged before more processes die.
        """
        kinds = [attempt.crumbs + (attempt.singly is not None) for attempt in attempts]
        suspects = [index for index, kind in enumerate(kinds) if kind]
        judged = not self._receipts and len(suspects) >= ALIKE
        pending = suspects[:ALIKE] if judged else range(len(kinds))
        kind = min(kinds[index] for index in pending)
        return [index for index in pending if kinds[index] == kind]

    def _decide(self) -> tuple[list[str], list[Attempt], list[str]]:
        ids: list[str] = []
        attempts: list[Attempt] = []
        packed: list[str] = []
        fresh = Attempt()
        sizes = pc.list_value_length(self.plan.table["pieces"]).to_pylist()
        for shard, pieces in zip(self.plan.ids(), sizes, strict=True):
            if shard in self.writer.state.committed or shard in self.given_up or (self.only and shard not in self.only):
                continue
            failures, earlier = self._failures.get(shard, []), self._earlier.get(shard, [])
            tries = self.spec.job.retry.attempts
            decided = next_attempt(failures, tries, earlier) if failures or earlier else fresh
            if pieces > 1 and (isinstance(decided, GivenUp) or any(not failed.died for failed in failures)):
                packed.append(shard)
            elif isinstance(decided, GivenUp):
                self.given_up[shard] = decided
            else:
                ids.append(shard)
                attempts.append(decided)
        self._check_alike(given_up.failed for given_up in self.given_up.values())
        return ids, attempts, packed

    def _split(self, packed: list[str]) -> None:
        """These shards failed: from now on each of their files is a shard of its own."""
        self.plan, split = self.plan.with_splits(packed, self.fingerprint)
        for shard, parts in split.items():
            self.only = self.only and self.only | {part.id for part in parts}
            why = self.writer.state.failures[shard][-1].message
            self._save(lines.encode(lines.Split(shard, why, len(parts))))
        self._flush()

    def _back_off(self, attempts: list[Attempt]) -> None:
        """Wait before trying again what failed, longer each time, jittered."""
        tries = max(attempt.number for attempt in attempts)
        if tries > 1 and all(attempt.number > 1 and not attempt.crumbs for attempt in attempts):
            pause = min(_LONGEST_BACKOFF_S, self.spec.job.retry.backoff_s * 2 ** (tries - 2))
            deadline = time.monotonic() + pause * random.uniform(0.5, 1.0)
            while time.monotonic() < deadline:
                self.writer.check()
                time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))

    def _pass(self, table: pa.Table, attempts: list[Attempt]) -> None:
        """One pass; charges what it started and did not bring home."""
        self.passes += 1
        running: dict[str, Started] = {}
        crumbs: dict[str, Crumb] = {}
        started = 0
        ended = ""
        events = self.engine.run_pass(self.spec, table, attempts)
        try:
            for batch in events:
                self.listeners.events(batch)
                for event in batch:
                    started += isinstance(event, Started)
                    self._take(event, running, crumbs)
                self._flush_if_due()
                self._check_budget()
                self._look_at_disk()
        except PassEnded as error:
            ended = str(error)
        finally:
            events.close()
            self._flush()
        deaths = [_death(start, crumbs.get(shard), ended) for shard, start in running.items()]
        self.listeners.events(deaths)
        for death in deaths:
            self._charge(death)
        self._flush()
        self._check_budget()
        self._silent_passes = 0 if started else self._silent_passes + 1
        if self._silent_passes >= self.spec.job.retry.attempts:
            raise ClusterLost(
                f"{self._silent_passes} passes in a row started nothing. {ended or 'Is the cluster alive?'}"
            )

    def _take(self, event: Event, running: dict[str, Started], crumbs: dict[str, Crumb]) -> None:
        if not self.first_event_at:
            self.first_event_at = time.time()
            self._save(lines.encode(lines.Doing("score")))
        match event:
            case Started():
                running[event.shard] = event
            case Crumb():
                crumbs[event.shard] = event
            case Receipt():
                running.pop(event.shard, None)
                if event.shard not in self.writer.state.committed:
                    self._receipts += 1
                    self._save(encode(event))
            case Noticed():
                self._notice(event)
            case Failed():
                running.pop(event.shard, None)
                if event.cause == Fenced.__name__:
                    self.writer.append([])  # the ledger knows by whom
                self._charge(event)
                if event.cause in {ModelChanged.__name__, OutsideIdentity.__name__}:
                    raise RunFailed(event.message)
                # Deaths are judged once they were given up: until then one row may be to blame.
                self._check_alike(found[0] for found in self._failures.values() if not found[0].died)

    def _notice(self, event: Noticed) -> None:
        """Each thing once, whichever workers noticed it. A strict job keeps no result of what used it: not at all."""
        if self.spec.job.identity.strict and event.kind not in UNSURE:
            return
        if (news := self._noticed.add(Seen(event.kind, event.name, event.by, event.more))) is not None:
            self._save(encode(replace(event, **as_line(news))))

    def _charge(self, failed: Failed) -> None:
        self._failures.setdefault(failed.shard, []).append(failed)
        self._save(encode(failed))

    def _check_alike(self, failures: Iterable[Failed]) -> None:
        if self._receipts:
            return
        # What an earlier command committed shows that the model did score; it takes more to say that it does not now.
        enough = LONG_ALIKE if self.progress.done_shards else ALIKE
        telling = (each for each in failures if each.cause not in _OWN_FAULT and each.shard not in self._unread)
        firsts = list(islice(telling, enough))
        if len(firsts) == enough and len({(failed.cause, failed.terminal) for failed in firsts}) == 1:
            raise ShardsFailed(
                f"the first {len(firsts)} shards all failed alike, so the run stopped: "
                f"{firsts[0].cause}: {firsts[0].message}",
                len(firsts),
                len(self.plan),
            )

    def _check_budget(self) -> None:
        # Of rows that nobody has counted no share is known: then the gate decides, once all of them are read.
        if self.spec.budget is not None and self.progress.rows_quarantined > self.spec.budget:
            raise QuarantineFull(
                f"{self.progress.rows_quarantined} rows are quarantined, more than the {self.spec.budget} of "
                f"{self.progress.rows} that retry.max_quarantined = {self.spec.job.retry.max_quarantined:g} allows; "
                f"look at {self.spec.revision}/quarantine, mend the rows or the model, or raise the limit"
            )

    def _save(self, record: Record) -> None:
        self._unsaved.append(record)

    def _look_at_disk(self) -> None:
        now = time.monotonic()
        if now - self._looked_at > LOOK_S:
            self._looked_at = now
            check_room(self.spec.revision)

    def _flush_if_due(self) -> None:
        due = time.monotonic() - self._flushed_at > FLUSH_S
        if (self._unsaved and due) or len(self._unsaved) >= FLUSH_RECORDS:
            self._flush()
        self.writer.check()

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        if not self._unsaved:
            return
        records, self._unsaved = self._unsaved, []
        self.writer.append(records)
        for record in records:
            self.progress.fold(record)
        self.listeners.progress(self.progress)

    def _summary(self) -> str:
        shard, first = next(iter(self.given_up.items()))
        found = self.plan.shard(shard)
        assert found is not None
        return (
            f"{len(self.given_up)} of {len(self.plan)} shards have no result; the first is {found.label} "
            f"(shard {shard}): {first.why}"
        )


def _death(start: Started, crumb: Crumb | None, ended: str) -> Failed:
    """What a lost process is charged with: the shard, and where its last crumb lay."""
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
