"""Prepares the next micro-batch in a thread while the model computes this one."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from types import FrameType
from typing import Any, Protocol

import pyarrow as pa

from nightjar.inference.scoring.prepared_shards import Batch, found
from nightjar.inference.stopwatch import Stopwatch


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


class PreparingThread:
    """One thread that does one step after the other. A process ends without waiting for it, because a step may hang."""

    def __init__(self) -> None:
        self._steps: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=_work, args=(self._steps,), name="nightjar-prepare", daemon=True)
        self._thread.start()
        self._awaited = False
        weakref.finalize(self, self._steps.put, None)

    def submit(self, step: Callable[[], Any]) -> Future[Any]:
        """Do this when all that was submitted before is done."""
        done: Future[Any] = Future()
        self._steps.put((done, step))
        return done

    def result(self, step: Future[Any]) -> Any:
        """Wait for a step. Raises what it raised."""
        self._awaited = True
        try:
            return step.result()
        finally:
            self._awaited = False

    def frame(self) -> FrameType | None:
        """What the thread is doing, if somebody waits for it."""
        return sys._current_frames().get(self._thread.ident or 0) if self._awaited else None


def _work(steps: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    """Do the steps. Nothing of one is held when it is done: its rows are large."""
    while _done(steps.get()):
        pass


def _done(given: tuple[Future[Any], Callable[[], Any]] | None) -> bool:
    if given is None:
        return False
    done, step = given
    if done.set_running_or_notify_cancel():
        try:
            done.set_result(step())
        except BaseException as error:  # noqa: BLE001 (whoever waits for it raises it)
            done.set_exception(error)
        finally:
            del given, done, step  # the error's traceback would hold them, and they the error
    return True


class Preparer:
    """Has at most one micro-batch prepared, so that there is memory for one more, and no more than that.

    With a thread, this thread prepares all batches, those that are tried again, too: the user's code is never called
    by two threads at once. What preparing raises is raised when the batch is scored, as if it had been prepared then.
    """

    def __init__(self, scorer: Steps, thread: PreparingThread | None, watch: Stopwatch | None = None) -> None:
        """thread: None if there is no core for one, which would only take the model's time. The preparers of several
        models share one, because they may have a preprocess in common. watch: of the thread that scores.
        """
        self._scorer = scorer
        self._watch = watch or Stopwatch("")
        self._thread = thread
        self._begun: tuple[Sequence[int], Future[Any]] | None = None
        self._shipped: Sequence[Batch] = ()

    def start(self, shipped: Sequence[Batch]) -> None:
        """Begin another table. shipped: the batches of it that came preprocessed."""
        self._drop()
        self._shipped = shipped

    def begin(self, table: pa.Table, rows: Sequence[int]) -> None:
        """Begin to prepare a micro-batch. rows: the indices of its rows."""
        if self._thread and rows:
            self._begun = rows, self._thread.submit(lambda: self._prepared(table, rows))

    def take(self, table: pa.Table, rows: Sequence[int]) -> Callable[[pa.Table], dict[str, pa.Array]]:
        """What scores these rows. What was begun is taken."""
        thread = self._thread
        if thread is None:
            return lambda now: self._scored(lambda: self._prepared(now, rows))
        if self._begun is None or self._begun[0] != rows:
            self._drop()
            self.begin(table, rows)
        assert self._begun is not None
        (_, begun), self._begun = self._begun, None
        return lambda _: self._scored(lambda: thread.result(begun))

    def _scored(self, prepare: Callable[[], Any]) -> dict[str, pa.Array]:
        with self._watch.during("prepare"):
            prepared = prepare()
        with self._watch.during("predict"):
            return self._scorer.score(prepared)

    def _drop(self) -> None:
        if self._begun is not None:
            self._begun[1].cancel()
        self._begun = None

    def _prepared(self, table: pa.Table, rows: Sequence[int]) -> Any:
        batch = found(self._shipped, rows)
        return self._scorer.prepare(table) if batch is None else self._scorer.accept(batch, len(rows))
