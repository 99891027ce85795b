"""Predictors: which columns a model sees, whether its keys fit, and its scorer, which is loaded once per actor."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job import options
from nightjar.inference.job.model import ALL, Job
from nightjar.inference.job.modeljob import ModelJob, model_jobs
from nightjar.inference.job.seams import OWN
from nightjar.inference.messages import nearest_or_all
from nightjar.inference.predictors.adapter import adapter_of, missing, naming
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.language.requests import Requests, StreamingScorer
from nightjar.inference.predictors.scorer import Preprocessor, Scorer
from nightjar.inference.process import seldom_collected

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
            raise JobError(f"{key}: {name!r} is not a column of the input{nearest_or_all(name, schema.names)}")
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
    uses = [each.model.uses for each in model_jobs(job) if adapter_of(each).cpu_only]
    if job.resources.gpus > 0 and len(uses) == len(job.models):
        raise JobError(f"resources.gpus: the {uses[0]} adapter computes on the CPU; write gpus: 0")


def _check_keys(job: ModelJob) -> None:
    adapter, given = adapter_of(job), job.model.options
    known = adapter.options
    if known is None:  # the user's code knows the others
        known, given = (BATCH_FORMAT,), {name: given[name] for name in given if name == BATCH_FORMAT.name}
    options.check(job.model.uses, given, known, job.model.options_key)
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
        JobError: The model, the user's code or the options are wrong, or the framework is not installed. Names the key.
    """
    _check_keys(job)
    preprocessor = Preprocessor(job)
    adapter = adapter_of(job)
    _warm_arrow()
    # The user's own class may leave much garbage while it is constructed.
    with nullcontext() if job.model.framework is OWN else seldom_collected():
        try:
            adapter.warm()
        except ModuleNotFoundError as error:
            raise missing(job.model.uses, (error.name or str(error)).partition(".")[0]) from error
        except ImportError as error:
            raise JobError(f"model.uses: {job.model.uses} cannot be loaded: {error}") from error
        predictor = adapter.load(job, model_path or "")
    made = StreamingScorer if isinstance(predictor, Requests) else Scorer
    return made(job, preprocessor, predictor, adapter.reads_arrow)
