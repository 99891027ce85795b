"""What the workers of both stages have in common: they take assignments, read, and report what they can catch."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import NightjarError, OverBudget, ProcessSpoilt, ShardTooSlow
from nightjar.inference.input.sources.reading import read_piece
from nightjar.inference.input.sources.rows import RowsRead, shifted
from nightjar.inference.messages import clip
from nightjar.inference.process import this_worker
from nightjar.inference.records import Crumb, Event, Failed, Piece, Receipt, Started, death
from nightjar.inference.scoring import memory
from nightjar.inference.scoring.assignment import Assignment, WorkerSpec
from nightjar.inference.scoring.known_rows import KnownRows
from nightjar.inference.scoring.watchdog import Watchdog
from nightjar.inference.stopwatch import Stopwatch
from nightjar.inference.storage.retrying import RetryingStorage
from nightjar.inference.witness import audit as witness


class JoinedPieces:
    """Consecutive pieces of a shard as one table, so that small files share micro-batches.

    pieces, reads: as given. table: the rows of all of them, without those that were left out. starts: the index of the
    first row of each, and at last the number of rows. rows: of each row of the table the index in its file. left_out:
    how many rows were left out. failures: index in the table → why the row could not be read.
    """

    def __init__(self, pieces: Sequence[Piece], reads: Sequence[RowsRead]) -> None:
        self.pieces, self.reads = tuple(pieces), tuple(reads)
        self.starts = np.cumsum([0, *(read.table.num_rows for read in reads)])
        self.rows = np.concatenate(
            [np.asarray(read.indices()) + piece.first_row for piece, read in zip(pieces, reads, strict=True)]
        )
        self.left_out = sum(read.left_out for read in reads)
        if len(reads) == 1:
            self.table, self.failures = reads[0].table, dict(reads[0].failures)
            return
        self.table = pa.concat_tables([read.table for read in reads]).unify_dictionaries()
        self.failures = {}
        for start, read in zip(self.starts.tolist(), reads, strict=False):
            self.failures |= shifted(read.failures, start)

    def within(self, uri: str, row: int, rows: int = 1) -> range:
        """The rows of the table that are rows [row, row + rows) of a file; empty if none of them is here."""
        for piece, start, end in zip(self.pieces, self.starts, self.starts[1:], strict=False):
            low, high = start + np.searchsorted(self.rows[start:end], (row, row + rows))
            if piece.uri == uri and low < high:
                return range(int(low), int(high))
        return range(0)

    def at(self, row: int) -> int:
        """Of a row of the table: its index in its file; of several files, the row."""
        return int(self.rows[row]) if len(self.pieces) == 1 else row

    def place(self, first: int, rows: int = 1) -> tuple[str, int, int]:
        """The file and the rows there of the table's rows [first, first + rows): uri, first row, number of rows.

        If they are of several files, the number is 0, because no row of the first file alone is meant.
        """
        at = int(np.searchsorted(self.starts, first, side="right")) - 1
        low = int(self.rows[first])
        # Rows between may have been left out.
        within = first + rows <= self.starts[at + 1]
        return self.pieces[at].uri, low, int(self.rows[first + rows - 1]) - low + 1 if within else 0


@dataclass(frozen=True, slots=True)
class Running:
    """One attempt at a shard, from its first read on."""

    assignment: Assignment
    """The shard, and how it is tried."""

    started: Started
    """The event of its start."""

    storage: RetryingStorage
    """The storage, with a count of the requests that are repeated for this attempt."""

    at: float
    """Its start as wall time; of the CPU stage, if that has prepared it."""

    began: float
    """Its start on this process's monotonic clock."""

    reads: Sequence[Future[RowsRead]] = ()
    """Of its pieces."""

    known: Future[dict[str, KnownRows]] | None = None
    """What is known before of its rows, by the name of the model; None if nobody asked while the pieces were read."""

    retries: int = 0
    """The storage requests that the CPU stage repeated."""

    @property
    def alone(self) -> bool:
        return self.assignment.attempt.crumbs

    def at_rows(self, uri: str = "", row: int = -1, rows: int = 0, model: str = "") -> Crumb:
        """What the worker is doing in this attempt."""
        return Crumb(self.started.shard, uri, row, rows, model, self.started.attempt)


IDLE = "idle"
"""What a worker does that waits for a shard. The other things that it does are the fields of `Spent`."""

_READERS = 4
"""The files of a shard that are read at the same time: reading a small one is mostly waiting for the storage."""


class Worker:
    """Works on shards in one process that it has to itself. Subclasses define `events`."""

    spec: WorkerSpec
    """Set by subclasses, because the columns to read are known when the models are open."""

    def __init__(self, spec: WorkerSpec, cores: int, turn_to: Callable[[Started], None]) -> None:
        """cores: computing threads. turn_to: called with each attempt before its rows are worked on, while other
        attempts may be read or written.
        """
        pa.set_cpu_count(cores)
        memory.use_system()
        self.name = this_worker()
        self.reader = ThreadPoolExecutor(_READERS, "nightjar-read")
        self.watchdog = Watchdog(spec.job.retry.stall_s)
        self.watch = Stopwatch(IDLE)
        self.at: Crumb | None = None
        self._said = 0.0
        self.turn_to = turn_to

    def process(self, assignments: Iterable[Assignment]) -> Iterator[Event]:
        """Work on the assignments in order, yielding events as they happen.

        Raises:
            ProcessSpoilt: A step hung or the device is lost. It was reported, and the process must end.
        """
        events = self.events(assignments)
        while True:
            try:
                with self.watchdog:
                    event = next(events)
            except StopIteration:
                return
            except ProcessSpoilt as spoilt:
                yield from self.before_the_end()
                yield from self.last_words(spoilt, self.at)
                raise
            self._said = time.monotonic()
            if isinstance(event, (Receipt, Failed)):
                # What the user's code used since the last result that the identity does not cover.
                yield from witness.news()
            yield event

    def events(self, assignments: Iterable[Assignment]) -> Iterator[Event]:
        """What happens with the assignments, as it happens."""
        raise NotImplementedError

    def before_the_end(self) -> Iterator[Event]:
        """Results that are still underway when this process must end."""
        return iter(())

    def last_words(self, spoilt: ProcessSpoilt, at: Crumb | None) -> Iterator[Event]:
        """Report what ends this process, and at which rows. at: None if it worked on no shard."""
        if at is not None:
            yield death(at, spoilt.cause, f"{spoilt}; its process was ended", self.name)

    def begin(self, assignment: Assignment) -> Running:
        """Begin an attempt; nothing of it is read yet."""
        storage = self.spec.patient_storage()  # one per shard, so that each retry is counted with its shard
        started = Started(assignment.shard.id, assignment.attempt.number, self.name)
        return Running(assignment, started, storage, time.time(), time.monotonic())

    def read(self, running: Running) -> list[Future[RowsRead]]:
        """Begin to read the pieces of a shard."""
        spec, pieces = self.spec, running.assignment.shard.pieces
        return [
            self.reader.submit(read_piece, running.storage, spec.job, each, spec.schema, spec.budget) for each in pieces
        ]

    def join_pieces(self, running: Running, deadline: float) -> Generator[Crumb, None, JoinedPieces]:
        """Wait until the pieces are read, and join them."""
        pieces, reads = running.assignment.shard.pieces, list[RowsRead]()
        for piece, each in zip(pieces, running.reads, strict=True):
            self.at = running.at_rows(piece.uri)
            if reads:
                yield from self.in_time(running.at_rows(piece.uri, piece.first_row), deadline)
                self.watchdog.calling()
            with self.watch.during("read"):
                reads.append(each.result())
        return JoinedPieces(pieces, reads)

    def in_time(self, at: Crumb, deadline: float) -> Iterator[Crumb]:
        """Check the time, and give a sign of life if there was none for a while."""
        self.check_time(at, deadline)
        if time.monotonic() - self._said > self.spec.job.retry.stall_s / 4:
            # From here on a death blames no row, because the next micro-batches leave no crumb.
            yield replace(at, rows=0, model="")

    def check_time(self, at: Crumb, deadline: float) -> None:
        """Raise ShardTooSlow if the time of the attempt is over."""
        if time.monotonic() > deadline:
            raise ShardTooSlow(
                f"this attempt takes longer than retry.shard_s = {self.spec.job.retry.shard_s:g} s; it came to row "
                f"{at.row} of {at.uri}. See why the model is slow, lower input.shard_rows, or allow more"
            )

    def failed(self, running: Running, error: Exception) -> Failed:
        """The event, which is small; the whole traceback of the user's code goes to the run's logs."""
        if text := getattr(error, "traceback", ""):
            # The local engine's stream takes a text for the logs alone.
            getattr(sys.stderr, "copy", sys.stderr.write)(text)
        pieces = running.assignment.shard.pieces
        return Failed(
            shard=running.started.shard,
            attempt=running.started.attempt,
            cause=type(error).__name__,
            message=clip(str(error) or type(error).__name__),
            terminal=isinstance(error, NightjarError) and not error.repeatable,
            uri=pieces[0].uri,
            # Which file of several it is in is not said; those are split and tried again.
            row=error.row if isinstance(error, OverBudget) and len(pieces) == 1 else -1,
            worker=self.name,
        )


_forking = threading.local()
"""`blocked`: the signals that were blocked before this thread's fork."""


def _hold_sigterm() -> None:
    """Let a SIGTERM wait until the child has its own handler: the parent may end a child that it has just started."""
    _forking.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.blocked)


def _forget_handlers() -> None:
    """In a process that the user's code forks, as a DataLoader does: drop what only its parent can use.

    A SIGTERM handler of Ray, Prefect or a command would raise in the user's code, or do nothing, where the parent ends
    the process. Prefect's hook for the end of Python would wait for threads that only the parent has.
    """

    def module(function: Any) -> str:
        return getattr(function, "__module__", None) or ""

    if module(signal.getsignal(signal.SIGTERM)).startswith(("prefect.", "nightjar.", "ray.")):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    hooks: list[Any] = getattr(threading, "_threading_atexits", [])
    hooks[:] = [hook for hook in hooks if not module(getattr(hook, "func", hook)).startswith("prefect.")]
    _release_sigterm()


os.register_at_fork(before=_hold_sigterm, after_in_parent=_release_sigterm, after_in_child=_forget_handlers)
