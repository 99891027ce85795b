"""Micro-batches that are prepared before the model takes them: by a thread beside it, or by the CPU stage.

The CPU stage hands a shard over as a parcel: one block of one row in Ray's object store, so that a shard never meets
two actors. Arrays are serialised beside the pickle (protocol 5, PEP 574), so each is copied once into the store and
once out of it: what the model gets is its own, and may be written to.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import get_ident
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import OutputInvalid
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.predictors import Scorer
from nightjar.inference.predictors.batches import own_table
from nightjar.inference.stopwatch import Stopwatch

ScoreRows = Callable[[pa.Table], dict[str, pa.Array]]
"""A function from n rows to exactly n values of each declared output; it may raise. `RowsRaised` costs single rows."""

_SLICED = 2
"""A table whose buffers have at least so many times its own bytes is copied before it is sent."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch as the preprocess left it."""

    rows: Sequence[int]
    """The indices of its rows in the shard's table, ascending."""
    content: Any


class Pickled:
    """The content of a batch, pickled. It is unpickled with its parcel, as what it was. size: in bytes."""

    def __init__(self, content: Any) -> None:
        """Raises OutputInvalid: It cannot be pickled."""
        buffers: list[pickle.PickleBuffer] = []
        try:
            lean = _lean(content) if isinstance(content, pa.Table) else content
            head = pickle.dumps(lean, protocol=5, buffer_callback=buffers.append)
        except MemoryError:
            raise
        except Exception as error:  # pickle raises whatever the object's own code raises
            raise OutputInvalid(
                f"preprocess: what it returns cannot be pickled ({type(error).__name__}: {error}), so that no worker "
                "of the CPU stage can hand it over to the model's actors. Return arrays, tensors, DataFrames or Tables "
                "of plain values, or write placement: fused"
            ) from error
        self._parts = pickle.PickleBuffer(head), *buffers
        self.size = sum(part.raw().nbytes for part in self._parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _content, self._parts


def _content(head: Any, *buffers: Any) -> Any:
    return pickle.loads(head, buffers=buffers)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A shard that was read and prepared."""

    reads: tuple[RowsRead, ...]
    """The rows of each piece."""
    batches: Mapping[str, Sequence[Batch]]
    """For each model by its name the micro-batches that could be prepared. The actor prepares the others itself, so
    that what the user's code raises is charged to a row as ever."""
    started_at: float
    """As wall time."""
    retries: int
    """The storage requests that were repeated."""

    def packed(self) -> pa.Array:
        """The parcel as one row, of type list<large_binary>: the pickle, then its buffers."""
        buffers: list[pickle.PickleBuffer] = []
        lean = replace(self, reads=tuple(map(_lean_rows, self.reads)))
        head = pickle.dumps(lean, protocol=5, buffer_callback=buffers.append)
        parts = [memoryview(head), *(buffer.raw() for buffer in buffers)]
        offsets = np.cumsum([0, *(part.nbytes for part in parts)])
        data = pa.allocate_buffer(int(offsets[-1]))
        into = np.frombuffer(data, np.uint8)
        for part, low, high in zip(parts, offsets[:-1], offsets[1:], strict=True):
            into[low:high] = np.frombuffer(part, np.uint8)
        cells = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(parts), [None, pa.py_buffer(offsets), data])
        return pa.ListArray.from_arrays([0, len(parts)], cells)


def _lean_rows(read: RowsRead) -> RowsRead:
    kept = None if read.kept is None else _lean(pa.table({"": read.kept}))[""].combine_chunks()
    return replace(read, table=_lean(read.table), kept=kept)


def _lean(table: pa.Table) -> pa.Table:
    """The table without what lies beside it: with a few rows of a row group Arrow would pickle all of its buffers."""
    return own_table(table) if table.get_total_buffer_size() >= _SLICED * max(1, table.nbytes) else table


PACKED = pa.list_(pa.large_binary())
"""The type of a packed parcel."""


def unpacked(packed: pa.ListScalar) -> Parcel:
    """The inverse of `Parcel.packed`."""
    head, *rest = (cell.as_buffer() for cell in packed.values)
    parcel: Parcel = pickle.loads(head, buffers=[_own(buffer) for buffer in rest])
    return parcel


def _own(buffer: pa.Buffer) -> np.ndarray[Any, Any]:
    """A copy that may be written to, made by numpy, because it leaves Python to the thread that calls the model: while
    `bytearray` copies, that thread waits for 5 ms (`sys.getswitchinterval`) each time it needs Python, as it does
    hundreds of times in a call that starts kernels on a GPU.
    """
    mine = np.empty(buffer.size, np.uint8)
    mine[:] = np.frombuffer(buffer, np.uint8)
    return mine


def found(shipped: Sequence[Batch], rows: Sequence[int]) -> Any:
    """The content for these rows, which may be a part of one batch; None if no batch has all of them, side by side."""
    first = rows[0]
    for batch in shipped:
        if batch.rows[0] <= first <= batch.rows[-1]:
            low = int(np.searchsorted(np.asarray(batch.rows), first))
            high = low + len(rows)
            if list(batch.rows[low:high]) != list(rows):
                return None
            return batch.content if len(rows) == len(batch.rows) else part(batch.content, low, high)
    return None


def part(batch: Any, low: int, high: int) -> Any:
    """Rows [low, high) of a batch that `check_rows` accepts, or of a column."""
    if isinstance(batch, pa.Table):
        return batch.slice(low, high - low)
    if isinstance(batch, Mapping):
        return {name: part(values, low, high) for name, values in batch.items()}
    if hasattr(batch, "iloc"):  # of pandas: its labels are those of the smaller batch
        return batch.iloc[low:high].reset_index(drop=True)
    return batch[low:high]


class PreparingThread:
    """One thread that does one step after the other."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "nightjar-prepare")
        self._thread = self._pool.submit(get_ident).result()
        self._awaited = False

    def submit(self, step: Callable[[], Any]) -> Future[Any]:
        """Do this when all that was submitted before is done."""
        return self._pool.submit(step)

    def result(self, step: Future[Any]) -> Any:
        """Wait for a step. Raises what it raised."""
        self._awaited = True
        try:
            return step.result()
        finally:
            self._awaited = False

    def frame(self) -> FrameType | None:
        """What the thread is doing, if somebody waits for it."""
        return sys._current_frames().get(self._thread) if self._awaited else None


class Preparer:
    """Has at most one micro-batch prepared ahead, which bounds memory.

    With a thread, this thread prepares all batches, also those that are tried again: the user's code is never called
    by two threads at once. What preparing raises is raised when the batch is scored.
    """

    def __init__(self, scorer: Scorer, thread: PreparingThread | None, watch: Stopwatch | None = None) -> None:
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

    def take(self, table: pa.Table, rows: Sequence[int]) -> ScoreRows:
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
