"""Predictors that ask for one row at a time: requests of several batches are underway at once, under one bound.

All requests run in one event loop, which has a thread of its own: the user's async code would hold them up where it
computes. A batch is done when its last row is; meanwhile the rows of the next batch take the places that are free. So
no batch waits for the slowest row of the one before.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import holds_list_view
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.input.schemas import inside
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.predictors.arrays import to_array
from nightjar.inference.predictors.language.answers import CUT, STOPPED, Answer
from nightjar.inference.predictors.language.languagemodel import Prompt
from nightjar.inference.predictors.scorer import Scorer, normalise
from nightjar.inference.predictors.tabular import features
from nightjar.inference.usage import NO_USAGE, Usage

_LOOK_S = 0.5
"""Seconds between two looks whether rows of a batch were done."""


AHEAD = 2
"""A further batch is begun while fewer rows are underway than so many times those that are asked at once."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a batch.

    outputs: of each declared output a list, in which a row without outputs has its exception. usage: what all its
    requests took, those of rows without outputs, too.
    """

    outputs: dict[str, list[Any]]
    usage: Usage


class Requests(ABC):
    """Base of these predictors. Subclasses say how one row is asked, and what its answer gives."""

    device = "cpu"
    elsewhere = False
    """Whether the model is in a process that is none of ours, so that this one works on if it hangs."""
    most: int
    """The most rows that are underway at once."""
    waiting: int
    """The rows of batches underway that are not done."""
    done: int
    """The rows that are done, since the model was loaded."""
    alive: Callable[[], None] | None = None
    """Called by `predict` when further rows of its batch are done."""

    def __init__(self, job: ModelJob, most: int, prompt: Prompt | None = None) -> None:
        """prompt: whose columns a row is asked with; None for all that the model gets."""
        self.most = most
        self.waiting = 0
        self.done = 0
        self._unclaimed = NO_USAGE
        self._columns, self._key = (prompt.columns, prompt.key) if prompt else ((), "")
        self._outputs = tuple(job.model.outputs)
        self._slots = asyncio.Semaphore(most)  # in order: who came first is asked first
        self._loop = asyncio.new_event_loop()
        self.at_end: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """What is done in the loop when this predictor is not used any more. It must not refer to it."""
        threading.Thread(target=_run, args=(self._loop, self.at_end), daemon=True, name="nightjar-requests").start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    @abstractmethod
    def request(self, row: dict[str, Any]) -> Any:
        """What is asked for one row.

        Raises:
            OutputInvalid: The row cannot be asked for; it costs the row.
        """

    @abstractmethod
    async def answer(self, request: Any) -> Answer:
        """Ask for one row, in the loop.

        Raises:
            OutputInvalid: This row has no answer. Anything else costs the batch.
        """

    @abstractmethod
    def read(self, request: Any, answer: Answer) -> dict[str, Any]:
        """The job's outputs in the answer to a request."""

    @property
    def hungry(self) -> bool:
        """Whether there are places that the rows underway will leave free before another batch is prepared."""
        return self.waiting < AHEAD * self.most

    def prepare(self, batch: Any) -> list[Any]:
        """A request for each row, or the exception of a row that has none."""
        held = features.named(batch)
        if gone := [name for name in self._columns if name not in held]:
            raise JobError(f"model.{self._key}: {gone[0]!r} is not a column that the model gets: {', '.join(held)}")
        columns = {name: _values(held[name]) for name in self._columns or held}
        rows = len(next(iter(held.values())))
        return self.requests([{name: values[row] for name, values in columns.items()} for row in range(rows)])

    def requests(self, rows: Sequence[dict[str, Any]]) -> list[Any]:
        """What is asked for each row, or the exception of a row that cannot be asked for."""
        found: list[Any] = []
        for row in rows:
            try:
                found.append(self.request(row))
            except OutputInvalid as error:
                found.append(error)
        return found

    def order(self, prepared: Sequence[Any]) -> Sequence[int]:
        """The rows of a batch, in the order in which they are asked. What comes of them keeps its place."""
        return range(len(prepared))

    def predict(self, prepared: list[Any]) -> dict[str, Any]:
        """Ask for a batch, and wait for it. Its usage is added to what `claimed` returns."""
        begun, done = self.submit(prepared), self.done
        while not wait([begun], _LOOK_S).done:
            if self.alive is not None and self.done != done:
                done = self.done
                self.alive()
        answered = begun.result()
        self._unclaimed = self._unclaimed.plus(answered.usage)
        return answered.outputs

    def claimed(self) -> Usage:
        """The usage of the batches that were waited for, since this was last asked."""
        usage, self._unclaimed = self._unclaimed, NO_USAGE
        return usage

    def submit(self, prepared: list[Any]) -> Future[Answered]:
        """Begin a batch, and do not wait for it. Cancelling it cancels its requests."""
        return asyncio.run_coroutine_threadsafe(self._batch(prepared), self._loop)

    async def _batch(self, prepared: Sequence[Any]) -> Answered:
        """All rows of a batch. The first error that is not about a row cancels the others."""
        left = len(prepared)
        self.waiting += left
        tasks = {row: asyncio.create_task(self._row(prepared[row])) for row in self.order(prepared)}
        try:
            for task in asyncio.as_completed(tasks.values()):
                await task
                self.done, self.waiting, left = self.done + 1, self.waiting - 1, left - 1
        finally:
            self.waiting -= left
            for each in tasks.values():
                each.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        found = [tasks[row].result() for row in range(len(prepared))]
        usage = NO_USAGE.plus(*(used for _, used in found))
        outputs = {
            name: [row if isinstance(row, Exception) else row[name] for row, _ in found] for name in self._outputs
        }
        return Answered(outputs, usage)

    async def _row(self, request: Any) -> tuple[dict[str, Any] | Exception, Usage]:
        """The outputs of a row, or why it has none; and what it took."""
        if isinstance(request, Exception):
            return request, replace(NO_USAGE, failed=1)
        try:
            async with self._slots:
                answer = await self.answer(request)
        except OutputInvalid as error:
            return error, replace(NO_USAGE, requests=1, failed=1)
        try:
            return self.read(request, answer), _usage_of(answer)
        except OutputInvalid as error:
            return error, replace(_usage_of(answer), failed=1)


def _run(loop: asyncio.AbstractEventLoop, closing: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run the loop until it is stopped, and leave nothing open."""
    loop.run_forever()
    for close in closing:
        loop.run_until_complete(close())
    loop.close()


class StreamingScorer(Scorer):
    """The scorer of a predictor that takes several batches at once."""

    _predictor: Requests

    @property
    def requests(self) -> Requests:
        """The model."""
        return self._predictor

    def submit(self, prepared: Any) -> Future[Answered]:
        """Begin what `prepare` returned, and do not wait for it."""
        return self._predictor.submit(prepared.content)

    def collected(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
        """The declared outputs of rows that were answered. Raises as `__call__`."""
        return normalise({name: [row[name] for row in rows] for name in self.types}, self.types, len(rows))


def _usage_of(answer: Answer) -> Usage:
    reason = answer.finish_reason
    return Usage(
        requests=1 + answer.retries,
        retries=answer.retries,
        prompt_tokens=answer.prompt_tokens or 0,
        output_tokens=answer.output_tokens or 0,
        cached_tokens=answer.cached_tokens or 0,
        cut=int(reason == CUT),
        stopped=int(reason == STOPPED),
        ended_otherwise=int(answer.vector is None and reason not in (STOPPED, CUT)),
        longest_prompt=answer.prompt_tokens or 0,
        answering_ms=round(answer.seconds * 1000),
    )


def _values(column: Any) -> list[Any]:
    """A column's values as Python's own; a null is None, or what numpy or pandas has for it. A float of 32 bits has the
    fewest digits that give it: 0.1, not 0.10000000149011612.
    """
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        return list(_plain(to_array(column)))
    texts, floats = (_of_float32(column.type, each) for each in (pa.string(), pa.float64()))
    return list((column.cast(texts).cast(floats) if texts != column.type else column).to_pylist())


def _of_float32(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type with another one in place of float32, at any depth."""
    if pa.types.is_float32(kind):
        return other
    if holds_list_view(kind):
        return kind
    return inside(kind, lambda field: field.with_type(_of_float32(field.type, other)))


def _plain(value: Any) -> Any:
    """A column or a value of it. A list of Arrow's is an array in numpy and pandas, and so is each list in it."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype == np.float32:
            value = value.astype(str).astype(float)
        # `tolist` makes integers of times in ns.
        value = pa.array(value).to_pylist() if value.dtype.kind in "mM" else value.tolist()
    return [_plain(each) for each in value] if isinstance(value, list) else value
