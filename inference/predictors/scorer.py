"""The scorer around a loaded model: from Arrow to the model, and from what it returns to the declared outputs."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.predictors import batches, outputs, user
from nightjar.inference.predictors.arrays import joined
from nightjar.inference.predictors.batches import own_batch, own_table
from nightjar.inference.predictors.outputs import aligned


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all of the user's code, in a thread of its own, as in Ray Data's actors: what that started in it, as an
    engine that schedules requests, goes on between two batches.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="nightjar-async").start()
    return loop


def awaited(raw: Any) -> Any:
    """What the user's code returned; of a coroutine its result, of an async generator its pieces."""
    if inspect.isasyncgen(raw):
        return _pieces(raw)
    return _result(raw) if inspect.iscoroutine(raw) else raw


def _result(running: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(running, _loop()).result()


def _pieces(pieces: AsyncIterator[Any]) -> Generator[Any, None, None]:
    end = object()

    async def following() -> Any:
        return await anext(pieces, end)

    while (piece := _result(following())) is not end:
        yield piece


class Preprocessor:
    """Arrow → batch → the user's preprocess → features. The user's code may write into its batch, which is a copy."""

    def __init__(self, job: ModelJob) -> None:
        """Raises JobError: The user's code cannot be found or made. Names the key."""
        self._form = batches.batch_format(job.model.options)
        self._features = job.model.features
        self._preprocess = user.load_preprocess(job)

    @property
    def own(self) -> bool:
        """Whether there is code of the user's; else a batch is only converted."""
        return self._preprocess is not None

    def preprocess(self, table: pa.Table) -> Any:
        """The batch for the predictor, with the rows of the table. The user's code has no memory of the table, and
        holds none of the batch: it may be kept while the next batch is made.

        Raises:
            Unaligned: The user's code returned another number of rows, or an index that is not the batch's.
            OutputInvalid: It returned no batch, or left out a feature.
        """
        batch = batches.to_batch(own_table(table), self._form)
        if self._preprocess is None:
            return batch
        batch = awaited(self._preprocess(batch))
        if isinstance(batch, pa.RecordBatch):
            batch = pa.Table.from_batches([batch])
        batches.check_rows(batch, table.num_rows)
        batch = batch if self._features is None else batches.select(batch, self._features)
        return own_batch(aligned(batch, "preprocess"))


class Panicked(Exception):
    """A library that is written in Rust, as polars and tokenizers are, panicked; its own words."""


@contextmanager
def panics_are_errors() -> Iterator[None]:
    """Raise Panicked where a library panics: for Python that is no `Exception`, and would not be taken for an error of
    the rows.
    """
    try:
        yield
    except BaseException as error:
        # Each library has a class of its own, which has nothing but its name in common with the others'.
        if (type(error).__module__, type(error).__name__) == ("pyo3_runtime", "PanicException"):
            raise Panicked(str(error)) from error
        raise


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The model's input for so many rows."""

    rows: int
    content: Any


class Scorer:
    """A loaded model: Arrow → batch → preprocess → features → predictor → the declared outputs."""

    device: str
    """Where the model really is: 'cpu', 'cuda:0' …"""
    types: Mapping[str, pa.DataType]
    """The declared outputs."""

    def __init__(self, job: ModelJob, preprocessor: Preprocessor, predictor: Any, reads_arrow: bool) -> None:
        self.device = predictor.device
        self._features = job.model.features
        self.types = job.model.output_types()
        self._preprocessor = preprocessor
        self._predictor = predictor
        self._reads_arrow = reads_arrow

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        """Both steps: score the columns named by `model_columns`. The user's code gets copies of them, never the table.

        Returns exactly the declared outputs, each with `table.num_rows` values of its declared type. Errors of the
        user's own code pass through unchanged.

        Raises:
            OutputInvalid: An output is missing, has the wrong length, or does not fit its type; or the model cannot
                take what the preprocess returned for these rows.
            RowsRaised: Some of several rows have an exception as their output.
        """
        return self.score(self.prepare(table))

    @panics_are_errors()
    def prepare(self, table: pa.Table) -> Any:
        """The first step, on the CPU: make the model's input from the columns named by `model_columns`."""
        if not self._preprocessor.own and self._features is not None:
            table = table.select(list(self._features))
        if not self._preprocessor.own and self._reads_arrow:
            return _Prepared(table.num_rows, self._input(table))
        return _Prepared(table.num_rows, self._input(self._preprocessor.preprocess(table)))

    @panics_are_errors()
    def preprocess(self, table: pa.Table) -> Any:
        """The CPU stage's work for the model: the user's own part of `prepare`, or all of it for a staged model."""
        return self._preprocessor.preprocess(table)

    @panics_are_errors()
    def accept(self, batch: Any, rows: int) -> Any:
        """The first step for rows that `preprocess` has returned. The batch stays as it is, and may be given again."""
        return _Prepared(rows, self._input(batch if self._reads_arrow else own_batch(batch)))

    def _input(self, batch: Any) -> Any:
        """The model's input.

        The types of the job's columns hold for every row, so what does not fit them is an error of the job. The types
        of what a preprocess returns may depend on the rows: with a null among them, whole numbers are floats in numpy.
        """
        try:
            return self._predictor.prepare(batch)
        except JobError as error:
            if not self._preprocessor.own:
                raise
            raise OutputInvalid(f"the model cannot take what preprocess returned: {error}") from error

    @panics_are_errors()
    def score(self, prepared: Any) -> dict[str, pa.Array]:
        """The second step: call the model with what `prepare` returned. Another thread may prepare meanwhile."""
        return outputs.normalise(awaited(self._predict(prepared.content)), self.types, prepared.rows)

    def _predict(self, content: Any) -> Any:
        return self._predictor.predict(content)


class StagedScorer(Scorer):
    """The scorer of a model that scores in the CPU stage, which hands over the outputs as a table."""

    def preprocess(self, table: pa.Table) -> pa.Table:
        return pa.table(self(table))

    def accept(self, batch: Any, rows: int) -> Any:
        return batch

    def score(self, prepared: Any) -> dict[str, pa.Array]:
        if isinstance(prepared, pa.Table):
            return {name: joined(prepared[name]) for name in prepared.column_names}
        return super().score(prepared)
