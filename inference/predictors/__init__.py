"""Predictors: a model is loaded once per actor, and a scorer converts from and to Arrow around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.garbage import seldom_collected
from nightjar.inference.job import options
from nightjar.inference.job.model import ALL, Job
from nightjar.inference.job.modeljob import ModelJob, model_jobs
from nightjar.inference.job.seams import OWN
from nightjar.inference.messages import nearest
from nightjar.inference.predictors import batches, outputs, user
from nightjar.inference.predictors.adapter import adapter_of, naming
from nightjar.inference.predictors.arrays import joined
from nightjar.inference.predictors.batches import Copier, own_batch
from nightjar.inference.predictors.language.answers import Answer
from nightjar.inference.predictors.language.requests import NOTHING, Answered, Known, Requests
from nightjar.inference.predictors.outputs import aligned
from nightjar.inference.records import Usage

__all__ = [
    "Preprocessor",
    "Scorer",
    "StreamingScorer",
    "check_keys",
    "input_columns",
    "load_scorer",
    "model_columns",
    "warm",
]


class Preprocessor:
    """Arrow → batch → the user's preprocess → features. The user's code may write into its batch, which is a copy."""

    def __init__(self, job: ModelJob) -> None:
        """Raises JobError: The user's code cannot be found or made. Names the key."""
        self._form = batches.batch_format(job.model.options)
        self._features = job.model.features
        self._preprocess = user.load_preprocess(job)
        self._copy = Copier()

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
        given = self._copy(table)
        batch = batches.to_batch(given.table, self._form, given.memory)
        if self._preprocess is None:
            return batch
        batch = self._preprocess(batch)
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


def input_columns(job: Job, schema: pa.Schema) -> tuple[str, ...]:
    """The columns that must be read for any of the job's models. Raises as `model_columns`."""
    found: dict[str, None] = {}
    for each in model_jobs(job):
        with naming(each):
            found |= dict.fromkeys(model_columns(each, schema))
    return tuple(found)


def model_columns(job: ModelJob, schema: pa.Schema) -> tuple[str, ...]:
    """The columns that must be read for the model and its preprocess.

    Without preprocess these are the features: by default all columns except carried ones and the label, in the schema's
    order. With preprocess these are its `columns`, else all columns except carried ones and the label, and every column
    that features names. With `carry: all` only the label is excepted.

    Raises:
        JobError: A column that the job names is not in the schema, or no column is left.
    """
    features = job.model.features or ()
    key, named = "model.features", features
    if job.preprocess:
        key, named = "preprocess.columns", job.preprocess.columns or ()
    elif not features:
        key, named = adapter_of(job).named(job)
    for name in named:
        if name not in schema.names:
            raise JobError(
                f"{key}: {name!r} is not a column of the input"
                + (nearest(name, set(schema.names)) or f"; it has {', '.join(schema.names)}")
            )
    if named:
        return named
    # Where every column is carried, that says nothing about which ones the model is to see.
    carried = () if ALL in job.whole.carry else job.whole.carried(schema.names)
    aside = {*carried, job.whole.label} - set(features)
    if names := tuple(name for name in schema.names if name not in aside):
        return names
    raise JobError(
        f"{key}: every column of the input is carried or is the label; name the columns that are to be scored"
    )


def check_keys(job: Job) -> None:
    """Check the keys of each model of the job with its adapter, without reading a file or importing a framework.

    Raises:
        JobError: A key or option is wrong. Names the key.
    """
    for each in model_jobs(job):
        with naming(each):
            _check_keys(each)


def _check_keys(job: ModelJob) -> None:
    batches.batch_format(job.model.options)
    adapter = adapter_of(job)
    if adapter.options is not None:
        options.check(job.model.uses, job.model.options, adapter.options, job.model.options_key)
    adapter.check_keys(job)


def warm(job: Job) -> None:
    """Import the framework modules that loading the model needs. A process that waits anyway calls this to save
    time.
    """
    # `load_scorer` says what is missing, and names the key.
    with suppress(ImportError), seldom_collected():
        _warm_arrow()
        for each in model_jobs(job):
            adapter_of(each).warm()


def _warm_arrow() -> None:
    """Let Arrow import what it needs for Python's and numpy's values: pandas, which takes half a second, and more on a
    busy machine. It would do so at the first rows that are scored, whose time is limited and measured.
    """
    pa.array([None])


def load_scorer(job: ModelJob, model_path: str | None) -> Scorer:
    """Load the model of a job with one from a local file or folder. Runs in the worker, once per actor.

    The user's modules are imported with the job's folder (or the working directory) first on the path.

    Raises:
        JobError: The model, the user's code or the options are wrong. Names the key.
    """
    _check_keys(job)
    preprocessor = Preprocessor(job)
    adapter = adapter_of(job)
    _warm_arrow()
    # The user's own class may leave much garbage while it is constructed.
    with nullcontext() if job.model.framework is OWN else seldom_collected():
        predictor = adapter.load(job, model_path)
    if job.model.staged:
        return _StagedScorer(job, preprocessor, predictor, adapter.reads_arrow)
    made = StreamingScorer if isinstance(predictor, Requests) else Scorer
    return made(job, preprocessor, predictor, adapter.reads_arrow)


AHEAD = 2
"""A further batch is begun while fewer rows are underway than so many times those that are asked at once."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The model's input for so many rows."""

    rows: int
    content: Any


class Scorer:
    """A loaded model: Arrow → batch → preprocess → features → predictor → the declared outputs."""

    device: str
    """Where the model really is: 'cpu', 'cuda:0' …"""

    def __init__(self, job: ModelJob, preprocessor: Preprocessor, predictor: Any, reads_arrow: bool) -> None:
        self.device = predictor.device
        self._features = job.model.features
        self._types = job.model.output_types()
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
        return outputs.normalise(self._predict(prepared.content), self._types, prepared.rows)

    def _predict(self, content: Any) -> Any:
        return self._predictor.predict(content)


class Journal(Protocol):
    """Keeps answers that were paid for."""

    def known(self, requests: Sequence[Any]) -> Known:
        """The answers to these requests that were paid for before, by row."""

    def keep(self, request: Any, answer: Answer, usage: Usage) -> None:
        """Keep an answer."""


class StreamingScorer(Scorer):
    """The scorer of a predictor that takes several batches at once."""

    _predictor: Requests
    journal: Journal | None = None
    """Of the shard that is scored batch by batch, if its answers are kept."""
    alive: Callable[[], None] | None = None
    """Called when rows of its batch are done."""

    @property
    def hungry(self) -> bool:
        """Whether there are places that the rows underway will leave free before another batch is prepared."""
        return self._predictor.waiting < AHEAD * self._predictor.most

    @property
    def most(self) -> int:
        """The most rows that are underway at once."""
        return self._predictor.most

    @property
    def done(self) -> int:
        """The number of rows that are done, since the model was loaded."""
        return self._predictor.done

    @property
    def elsewhere(self) -> bool:
        """As in `Requests`."""
        return self._predictor.elsewhere

    def submit(self, prepared: Any, journal: Journal | None) -> Future[Answered]:
        """Begin what `prepare` returned, and do not wait for it. What the journal knows is not asked for."""
        if journal is None:
            return self._predictor.submit(prepared.content)
        return self._predictor.submit(prepared.content, journal.known(prepared.content), journal.keep)

    def _predict(self, content: Any) -> Any:
        known, keep = (NOTHING, None) if self.journal is None else (self.journal.known(content), self.journal.keep)
        return self._predictor.predict(content, known, keep, self.alive)

    def collected(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
        """The declared outputs of rows that were answered. Raises as `__call__`."""
        return outputs.normalise({name: [row[name] for row in rows] for name in self._types}, self._types, len(rows))

    def claimed(self) -> Usage:
        """The usage of the batches that were waited for, since this was last asked."""
        return self._predictor.claimed()


class _StagedScorer(Scorer):
    """The scorer of a model that scores in the CPU stage, which hands over the outputs as a table."""

    def preprocess(self, table: pa.Table) -> pa.Table:
        return pa.table(self(table))

    def accept(self, batch: Any, rows: int) -> Any:
        return batch

    def score(self, prepared: Any) -> dict[str, pa.Array]:
        if isinstance(prepared, pa.Table):
            return {name: joined(prepared[name]) for name in prepared.column_names}
        return super().score(prepared)
