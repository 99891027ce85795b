"""Drivers of one run that move one storage call at a time: what the property tests of the ledger play with.

A driver is a thread that does what a run does to its ledger: open an epoch, commit what is missing, publish, leave.
At each call that could be overtaken (listing, creating, waiting for a lease) it stands still until `step` says what
becomes of that call. So a test, and not the machine's scheduler, decides who acts when, and can repeat it.
"""

from __future__ import annotations

import enum
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from faults import Fault, FaultyStorage, fail, lose_answer
from nightjar.inference.errors import AlreadyExists, Held, StorageError
from nightjar.inference.ledger.epochs import LedgerWriter, open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.ledger import Ledger, Segment, State
from nightjar.inference.ledger.lines import Line, Published, Revoked, Split
from nightjar.inference.output import publications as publish
from nightjar.inference.output.publications import Snapshot
from nightjar.inference.records import Counts, Failed, Receipt
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.storage.retrying import RetryingStorage
from support import planned_line

RUN = "2026-11-19"
LEASE_S = 3600.0
"""No keep-alive is due while a test lasts: a driver's signs of life are its appends."""

SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where a sync costs nothing, if there is such a place: each example makes dozens."""

PARTS_OF = {"p": ("p1", "p2")}
"""The one packed shard, and what a split makes of it."""


class Vanished(Exception):
    """The driver's process is gone. Not one of ours: nothing in a run may catch it."""


class Fate(enum.Enum):
    """What becomes of a call, and of the driver that makes it."""

    PASSES = "it passes"
    FAILS = "nothing happens, and it may be tried again"
    LOST = "it happens, the answer is lost"
    TWICE = "it happens, and was sent twice: the answer is that it exists"
    REFUSED = "nothing happens, and it is not to be tried again"
    BROKEN = "it happens, and the driver cannot learn of it"
    DIES_BEFORE = "the driver is gone before it"
    DIES_AFTER = "the driver is gone after it"

    def fault(self, operation: str) -> Fault:
        """This fate for one call."""
        match self:
            case Fate.FAILS:
                return fail(operation)
            case Fate.TWICE if operation == "create":
                return Fault(operation, error=AlreadyExists("sent twice"))
            case Fate.LOST | Fate.TWICE:
                return lose_answer(operation)
            case Fate.REFUSED:
                return fail(operation, error=StorageError("refused on purpose"))
            case Fate.BROKEN:
                return Fault(operation, error=StorageError("broken on purpose"))
            case Fate.DIES_BEFORE:
                return fail(operation, error=Vanished())
            case Fate.DIES_AFTER:
                return Fault(operation, error=Vanished())
        return Fault(operation)


UNANSWERED = {Fate.LOST, Fate.TWICE, Fate.BROKEN, Fate.DIES_AFTER}
"""It happens, and the driver does not hear of it."""


@dataclass(frozen=True)
class Night:
    """One revision of one run in an output of its own."""

    output: str

    @property
    def revision(self) -> str:
        return join(self.output, "runs", RUN, "r1")

    def segments(self) -> list[Segment]:
        """The whole ledger."""
        return list(Ledger(LakeStorage(), self.revision).segments())

    def snapshots(self) -> list[Snapshot]:
        """Every publication in the output, oldest first."""
        newest = publish.newest(LakeStorage(), self.output).number
        return [publish.snapshot(LakeStorage(), self.output, number) for number in range(1, newest + 1)]

    def publish_another_run(self) -> None:
        """Some other run of the job takes the next number."""
        run = f"other-{len(self.snapshots())}"
        writer = open_epoch(LakeStorage(), join(self.output, "runs", run, "r1"), this_holder("publish"))
        publish.publish(writer, self.output, run, Published(1, "manifest.json", "", RUN))
        writer.stop(release=True)


@dataclass(frozen=True)
class Kind:
    """How a driver differs from others.

    flow_run: two of the same succeed each other at once. seems_dead: others take it for dead at once, rightly or
    not. clock: where its monotonic clock stands. releases: whether it closes its epoch when it leaves.
    splits: whether it splits the packed shard rather than commit it. revokes: whether it finds a committed shard
    damaged, if nobody did so before. at_once: shards in one append.
    """

    flow_run: str = ""
    seems_dead: bool = False
    clock: float = 0.0
    releases: bool = True
    splits: bool = False
    revokes: bool = False
    at_once: int = 1


def planned(state: State) -> set[str]:
    """The shards of the plan, split as the ledger says."""
    return {"a", "b", "c"} | {part for whole, parts in PARTS_OF.items() for part in _now(whole, parts, state)}


def _now(whole: str, parts: tuple[str, ...], state: State) -> tuple[str, ...]:
    return parts if whole in state.splits else (whole,)


def receipt(shard: str, attempt: int, worker: str) -> Receipt:
    """An attempt that was brought home, as its worker reports it."""
    return Receipt(shard, attempt, 1, worker, None, None, 0.1, 0.0, rows_in=10, rows_out=10)


class Driver(threading.Thread):
    """One process that drives the run. `error` is why it stopped, None if it came to its end or vanished.

    told: (shard, driver) of each receipt it was told is committed. number: of the publication it was told of.
    uncertain: a create of its own was carried out and not answered.
    """

    def __init__(self, night: Night, kind: Kind, name: str) -> None:
        super().__init__(daemon=True, name=name)
        me = replace(this_holder("score", kind.flow_run), nonce=name)
        self.me = replace(me, process_started=0.0) if kind.seems_dead else replace(me, host=f"host of {name}/0")
        self.night, self.kind = night, kind
        self.writer: LedgerWriter | None = None
        self.error: Held | StorageError | None = None
        self.unexpected: BaseException | None = None
        self.told: list[tuple[str, str]] = []
        self.number: int | None = None
        self.calls = 0
        self.vanished = self.uncertain = self.ended = False
        self._clock = kind.clock
        self._fates: queue.SimpleQueue[Fate] = queue.SimpleQueue()
        self._stands = threading.Semaphore(0)
        # Patience of its own, since the ledger's takes real time between two tries.
        self._storage = RetryingStorage(_Asking(LakeStorage(), self._ask), attempts=1000, backoff_s=0)

    def begin(self) -> Driver:
        """Start it; it stands before its first call."""
        self.start()
        self._wait()
        return self

    def step(self, fate: Fate = Fate.PASSES) -> None:
        """Decide the call it stands at; it stands at the next one then, or has ended."""
        self._fates.put(fate)
        self._wait()

    def finish(self, fate: Fate = Fate.PASSES) -> None:
        """Let it go on to its end."""
        for _ in range(1000):
            if self.ended:
                return
            self.step(fate)
        raise AssertionError(f"{self.name} comes to no end")

    def run(self) -> None:
        try:
            self._drive()
        except Vanished:
            pass
        except (Held, StorageError) as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001 (raised again by whoever steps it)
            self.unexpected = error
        self.ended = True
        self._stands.release()

    def _wait(self) -> None:
        assert self._stands.acquire(timeout=60), f"{self.name} hangs"
        if self.unexpected is not None:
            raise self.unexpected

    def _ask(self, operation: str) -> Fault:
        if not self.vanished:
            self._stands.release()
            fate = self._fates.get()
            self.calls += 1
            self.vanished = fate in {Fate.DIES_BEFORE, Fate.DIES_AFTER}
            self.uncertain |= operation == "create" and fate in UNANSWERED
            return fate.fault(operation)
        return Fate.DIES_BEFORE.fault(operation)  # a corpse asks for nothing more

    def _sleep(self, _: float) -> None:
        self._ask("sleep")
        if self.vanished:
            raise Vanished
        self._clock += LEASE_S / 2

    def _drive(self) -> None:
        self.writer = writer = open_epoch(
            self._storage,
            self.night.revision,
            self.me,
            lease_s=LEASE_S,
            clock=lambda: self._clock,
            sleep=self._sleep,
        )
        try:
            if writer.state.intent is None:
                self._score(writer)
                if self.kind.revokes and not writer.state.revoked:
                    self._append(writer, [_revoked(min(writer.state.committed))])
                    self._score(writer)
            if writer.state.published is None:
                manifest = f"runs/{RUN}/r1/manifest-{writer.epoch:06d}.json"
                self.number = publish.publish(writer, self.night.output, RUN, Published(1, manifest, self.name, RUN))
        finally:
            writer.stop(release=self.kind.releases)

    def _score(self, writer: LedgerWriter) -> None:
        """Commit what is missing."""
        if writer.state.planned is None:
            self._append(writer, [planned_line("plan.parquet", "f")])
        while missing := sorted(planned(writer.state) - writer.state.committed):
            if self.kind.splits and (packed := PARTS_OF.keys() & set(missing)):
                self._append(writer, [line for shard in packed for line in _split(shard)])
            else:
                tries = {shard: 2 if shard in writer.state.revoked else 1 for shard in missing[: self.kind.at_once]}
                self._append(writer, [receipt(shard, attempt, self.name) for shard, attempt in tries.items()])

    def _append(self, writer: LedgerWriter, lines: list[Line]) -> None:
        try:
            writer.append(lines)
        except (Held, StorageError) as error:
            # Whoever asks again, be it another thread, is refused again.
            with pytest.raises(type(error)):
                writer.append(lines)
            raise
        self.told += [(line.shard, line.worker) for line in lines if isinstance(line, Receipt)]


def _split(shard: str) -> list[Line]:
    return [Failed(shard, 1, "ValueError", "no"), Split(shard, "no", 2)]


def _revoked(shard: str) -> Revoked:
    return Revoked(shard, 1, "PartDamaged", "no", counts=Counts(rows_out=10))


class _Asking(FaultyStorage):
    """Asks what becomes of each call. Reads are let through: what they find never changes, so none overtakes them."""

    def __init__(self, inner: Storage, ask: Callable[[str], Fault]) -> None:
        super().__init__(inner, ())
        self._fault_for = ask

    def _next(self, operation: str, uri: str) -> Fault:
        return self._fault_for(operation) if operation in {"list", "create"} else Fault(operation)


class Play:
    """A night with up to three places for drivers: one that ended is followed by another in its place."""

    def __init__(self, night: Night, kinds: tuple[Kind, ...]) -> None:
        self.night, self.kinds = night, kinds
        self.drivers: list[Driver] = []
        self._at: dict[int, Driver] = {}

    def burst(self, place: int, calls: int, fate: Fate) -> None:
        """The driver at this place makes so many calls; `fate` is the last one's."""
        driver = self._at.get(place)
        if driver is None or driver.ended:
            driver = self._at[place] = self.enter(self.kinds[place])
        for call in range(calls):
            if not driver.ended:
                driver.step(fate if call == calls - 1 else Fate.PASSES)

    def enter(self, kind: Kind) -> Driver:
        """One more driver."""
        driver = Driver(self.night, kind, f"driver-{len(self.drivers)}")
        self.drivers.append(driver)
        return driver.begin()

    def asleep(self) -> Iterator[Driver]:
        """Those that stand still somewhere."""
        return (driver for driver in self.drivers if not driver.ended)

    def close(self) -> None:
        """End whoever is left, so that no thread outlives a failed test."""
        for driver in self.asleep():
            driver.finish(Fate.DIES_BEFORE)


def set_wall_clock(ahead_s: float, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """From here on this process finds the time of day moved, as if somebody had set the clock.

    The kernel tells by that clock when it booted, and psutil from that when each process began.
    """
    folder.mkdir()
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            (folder / each.name).symlink_to(each)
    stat = Path("/proc/stat").read_text()
    booted = int(re.search(r"^btime (\d+)$", stat, re.MULTILINE)[1])  # type: ignore[index]
    (folder / "stat").write_text(stat.replace(f"btime {booted}", f"btime {booted + ahead_s:.0f}"))
    patch.setattr(psutil, "PROCFS_PATH", str(folder))
    real = time.time
    patch.setattr(time, "time", lambda: real() + ahead_s)


def hold(revision: str, host: str, ahead_s: str, folder: str) -> None:
    """In a process of its own: hold the revision, by this process's wall clock, until killed or told to end."""
    set_wall_clock(float(ahead_s), Path(folder), pytest.MonkeyPatch())
    me = this_holder("score")
    writer = open_epoch(LakeStorage(), revision, replace(me, host=host or me.host), lease_s=1)
    print("holds", flush=True)
    sys.stdin.read()
    writer.stop(release=True)
