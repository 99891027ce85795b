"""Runs passes until no shard is missing: the first over all shards, each further one over those still missing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.engine.protocol import Engine
from nightjar.inference.errors import (
    ClusterLost,
    EndpointRefused,
    Fenced,
    ModelChanged,
    OutsideIdentity,
    PassEnded,
    QuarantineFull,
    RunFailed,
)
from nightjar.inference.input.plan import Plan
from nightjar.inference.ledger import lines
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.lines import Line
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.output.owner import check_room
from nightjar.inference.records import Event, Failed, Receipt, Seen
from nightjar.inference.run.account import SCORE
from nightjar.inference.run.failures import ALIKE, LONG_ALIKE, Failures, Pending, Underway
from nightjar.inference.scoring.assignment import WorkerSpec
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.stopwatch import Stopwatch
from nightjar.inference.witness.seen import UNSURE, Collection

FLUSH_S = 1.0
"""The longest time in seconds that a line waits for others. A killed command loses the results of this time."""

FLUSH_RECORDS = 500
"""The most lines that wait."""


_OF_THE_RUN = {kind.__name__ for kind in (EndpointRefused, ModelChanged, OutsideIdentity)}
"""Causes for which every further shard would fail, too: the first one ends the run."""

_LONGEST_BACKOFF_S = 60.0
"""The longest wait before a pass, however often its shards failed."""


@dataclass
class Campaign:
    """Scores every shard of `plan` without a receipt in the ledger."""

    plan: Plan
    """The shards of the run, in which packed shards that failed are split."""
    spec: WorkerSpec
    """What each worker is told."""
    engine: Engine
    """Where passes run."""
    writer: LedgerWriter
    """The writer of the revision's ledger."""
    fingerprint: str
    """The fingerprint of what scores, for the ids of shards that come from a split."""
    watch: Stopwatch = field(default_factory=lambda: Stopwatch("actors"))
    """The seconds of this step by the parts of `Account`."""
    workers: int = 0
    """The most workers that scored at once."""
    first_event_at: float = 0.0
    """When the first event of a worker arrived, in seconds since 1970; 0 before."""
    _silent_passes: int = 0
    _waiting: list[Line] = field(default_factory=list)
    _flushed_at: float = field(default_factory=time.monotonic)
    _receipts: int = 0
    _noticed: Collection = field(default_factory=Collection)

    def __post_init__(self) -> None:
        self._failures = Failures(self.plan, self.writer.state.failures, self.spec.job.retry.attempts)

    @property
    def progress(self) -> Progress:
        """Of the run, as its ledger has it."""
        return self.writer.state.progress

    def run(self) -> None:
        """Score what is missing.

        Raises:
            ShardsFailed: Some shards have no result and will get none; the message names the first.
            QuarantineFull: more rows are quarantined than the job allows.
            Fenced: another writer took over.
        """
        self._check_budget()
        self._noticed = Collection(self.writer.state.about.outside.all())
        while pending := self._pending():
            self._back_off(pending.attempts)
            self._pass(pending)
        self._failures.check_given_up(self.plan)

    def _pending(self) -> Pending | None:
        """The shards of the next pass, after splitting packed shards that failed, and giving up shards without tries
        left.
        """
        while True:
            pending = self._failures.pending(self.plan, self.writer.state.committed)
            self._check_alike(self._failures.finals())
            if not pending.packed:
                return pending.riding(succeeded=self._receipts > 0) if pending.shards else None
            self._split(pending.packed)

    def _split(self, packed: list[str]) -> None:
        """Split these failed shards, so that each of their files is a shard of its own."""
        self.plan, split = self.plan.with_splits(packed, self.fingerprint)
        for shard, parts in split.items():
            why = self.writer.state.failures[shard][-1].message
            self._waiting.append(lines.Split(shard, why, len(parts)))
        self.flush()

    def _back_off(self, attempts: list[Attempt]) -> None:
        """Wait before failed shards are tried again, longer each time, with jitter."""
        tries = max(attempt.number for attempt in attempts)
        if all(attempt.number > 1 and not attempt.crumbs for attempt in attempts):
            pause = min(_LONGEST_BACKOFF_S, self.spec.job.retry.backoff_s * 2 ** (tries - 2))
            deadline = time.monotonic() + pause * random.uniform(0.5, 1.0)
            with self.watch.during("wait"):
                while time.monotonic() < deadline:
                    self.writer.check()
                    time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))

    def _pass(self, pending: Pending) -> None:
        """Run one pass; charge the shards that it started and that have no result."""
        underway = Underway()
        ended = self._follow(pending, underway)
        # One that was lost is replaced within the pass, and counts once.
        scored = min(len(underway.workers), self.spec.job.resources.max_actors)
        self.workers = max(self.workers, scored)
        for death in underway.deaths(ended):
            self._charge(death)
        self.flush()
        self._check_budget()
        self._silent_passes = 0 if underway.started else self._silent_passes + 1
        if self._silent_passes >= self.spec.job.retry.attempts:
            raise ClusterLost(
                f"{self._silent_passes} passes in a row started nothing. {ended or 'Is the cluster alive?'}"
            )

    def _follow(self, pending: Pending, underway: Underway) -> str:
        """Take the events of one pass until it ends. Returns why it ended early, if it did."""
        chosen = pc.is_in(self.plan.table["shard"], value_set=pa.array(pending.shards, pa.string()))
        self.watch.turn_to("actors")
        events = self.engine.run_pass(self.spec, self.plan.table.filter(chosen), pending.attempts)
        try:
            for batch in events:
                if batch:  # it is empty where nothing happened for a while
                    self.watch.turn_to(SCORE)
                for event in batch:
                    underway.take(event)
                    self._take(event)
                due = bool(self._waiting) and time.monotonic() - self._flushed_at > FLUSH_S
                if due or len(self._waiting) >= FLUSH_RECORDS:
                    self.flush()
                self.writer.check()
                self._check_budget()
                check_room(self.spec.revision)
        except PassEnded as error:
            return str(error)
        finally:
            events.close()
            self.flush()
        return ""

    def flush(self) -> None:
        """Append the waiting lines to the ledger.

        Raises:
            Fenced: another writer took over.
        """
        self._flushed_at = time.monotonic()
        if self._waiting:
            appended, self._waiting = self._waiting, []
            self.writer.append(appended)

    def _take(self, event: Event) -> None:
        """Write one event to the ledger, if the ledger needs it."""
        if not self.first_event_at:
            self.first_event_at = time.time()
            self._waiting.append(lines.Doing("score"))
        match event:
            case Receipt() if event.shard not in self.writer.state.committed:
                self._receipts += 1
                self._waiting.append(event)
            case Seen():
                self._notice(event)
            case Failed():
                self._take_failure(event)

    def _take_failure(self, failed: Failed) -> None:
        if failed.cause == Fenced.__name__:
            self.writer.append([])  # the ledger knows by whom
        self._charge(failed)
        if failed.cause in _OF_THE_RUN:
            raise RunFailed(failed.message)
        self._check_alike(self._failures.firsts())

    def _notice(self, event: Seen) -> None:
        """Note each thing once, whichever workers noticed it. A strict job keeps no result of a shard that used it."""
        if self.spec.job.identity.strict and event.kind not in UNSURE:
            return
        if (news := self._noticed.add(event)) is not None:
            self._waiting.append(news)

    def _charge(self, failed: Failed) -> None:
        self._failures.add(failed)
        self._waiting.append(failed)

    def _check_alike(self, failures: Iterable[Failed]) -> None:
        if not self._receipts:
            enough = LONG_ALIKE if self.progress.done_shards else ALIKE
            self._failures.check_alike(failures, enough)

    def _check_budget(self) -> None:
        # Without a row count the budget is not known; then the gate decides when all rows have been read.
        if self.spec.budget is not None and self.progress.counts.rows_in_quarantine > self.spec.budget:
            raise QuarantineFull(
                f"{self.progress.counts.rows_in_quarantine} rows are quarantined, more than the {self.spec.budget} of "
                f"{self.progress.rows} that retry.max_quarantined = {self.spec.job.retry.max_quarantined:g} allows; "
                f"look at {self.spec.revision}/quarantine, mend the rows or the model, or raise the limit"
            )
