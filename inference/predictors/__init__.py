"""Predictors: a model is loaded once per actor, and a scorer converts from and to Arrow around it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.messages import nearest
from nightjar.inference.predictors import batches, outputs, user
from nightjar.inference.predictors.adapter import Predictor, adapter_of
from nightjar.inference.predictors.private import Copier, OwnCopy

__all__ = ["Scorer", "check_keys", "input_columns", "load_scorer", "warm"]


class Scorer(Protocol):
    """A loaded model: takes features and returns the declared outputs.

    device: where the model really is: 'cpu', 'cuda:0' …. wrote: whether the user's code wrote into the first batch.
    """

    device: str
    wrote: bool

    def prepare(self, table: pa.Table) -> Any:
        """The first step, on the CPU: make the model's input from the columns named by `input_columns`."""

    def score(self, prepared: Any) -> dict[str, pa.Array]:
        """The second step: call the model with what `prepare` returned. Another thread may prepare meanwhile."""

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        """Both steps: score the columns named by `input_columns`. The user's code gets copies of them, never the table.

        Returns exactly the declared outputs, each with `table.num_rows` values of its declared type. Errors of the
        user's own code pass through unchanged.

        Raises:
            OutputInvalid: An output is missing, has the wrong length, or does not fit its type.
        """


def input_columns(job: Job, schema: pa.Schema) -> tuple[str, ...]:
    """The columns that must be read for the model and the preprocess.

    Without preprocess these are the features: by default all columns except carried ones and the label, in the schema's
    order. With preprocess these are all columns except carried ones and the label, and every column that features
    names.

    Raises:
        JobError: A feature is not in the schema, or no column is left.
    """
    features = job.model.features or ()
    if features and job.preprocess is None:
        for name in features:
            if name not in schema.names:
                raise JobError(
                    f"model.features: {name!r} is not a column of the input"
                    + (nearest(name, set(schema.names)) or f"; it has {', '.join(schema.names)}")
                )
        return features
    aside = {*job.carry, job.label} - set(features)
    if names := tuple(name for name in schema.names if name not in aside):
        return names
    raise JobError(
        "model.features: every column of the input is carried or is the label; list the columns of the model"
    )


def check_keys(job: Job) -> None:
    """Check the job's model keys with the model's adapter, without reading a file or importing a framework.

    Raises:
        JobError: A key or option is wrong. Names the key.
    """
    batches.batch_format(job.model.options)
    adapter_of(job).check_keys(job)


def warm(job: Job) -> None:
    """Import the framework modules that loading the model needs. A process that waits anyway calls this to save
    time.
    """
    with suppress(ImportError):  # `load_scorer` says what is missing, and names the key
        adapter_of(job).warm()


def load_scorer(job: Job, model_path: str | None) -> Scorer:
    """Load the job's model from a local file or folder. Runs in the worker, once per actor.

    The user's modules are imported with the job's folder (or the working directory) first on the path.

    Raises:
        JobError: The model, the user's code or the options are wrong. Names the key.
    """
    check_keys(job)
    form = batches.batch_format(job.model.options)
    preprocess = user.load_preprocess(job)
    adapter = adapter_of(job)
    return _Scorer(job, form, preprocess, adapter.load(job, model_path), adapter.reads_arrow)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The model's input for so many rows. given: the copy that the user's code got, with its digest from before, if it
    is watched.
    """

    rows: int
    content: Any
    given: OwnCopy | None = None
    before: bytes | None = None


class _Scorer:
    """Arrow → batch → preprocess → features → predictor → Arrow."""

    def __init__(
        self,
        job: Job,
        form: str,
        preprocess: user.BatchFunction | None,
        predictor: Predictor,
        reads_arrow: bool,
    ) -> None:
        self.device = predictor.device
        self.wrote = False
        self._watched = False
        self._copy = Copier()
        self._form = form
        self._features = job.model.features
        self._types = job.model.output_types()
        self._preprocess = preprocess
        self._predictor = predictor
        self._reads_arrow = reads_arrow

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        return self.score(self.prepare(table))

    def prepare(self, table: pa.Table) -> _Prepared:
        if self._preprocess is None and self._features is not None:
            table = table.select(list(self._features))
        if self._preprocess is None and self._reads_arrow:
            return _Prepared(table.num_rows, self._predictor.prepare(table))
        given = self._copy(table)
        before = None if self._watched else given.digest()
        return _Prepared(table.num_rows, self._predictor.prepare(self._batch(given.table)), given, before)

    def score(self, prepared: _Prepared) -> dict[str, pa.Array]:
        raw = self._predictor.predict(prepared.content)
        scored = outputs.normalise(raw, self._types, prepared.rows)
        if not self._watched and prepared.given is not None:
            self._watched, self.wrote = True, prepared.given.digest() != prepared.before
        return scored

    def _batch(self, table: pa.Table) -> Any:
        batch = batches.to_batch(table, self._form)
        if self._preprocess is None:
            return batch
        batch = self._preprocess(batch)
        batches.check_rows(batch, table.num_rows)
        return batch if self._features is None else batches.select(batch, self._features)
