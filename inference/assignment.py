"""What a worker is sent: the run's side of it once, and one assignment for each attempt at a shard."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from nightjar.inference.gates import budget_rows
from nightjar.inference.job import Job
from nightjar.inference.models import fetch_model
from nightjar.inference.predictors import Scorer, input_columns, load_scorer
from nightjar.inference.request import RunRequest
from nightjar.inference.scoring import auto_batch_rows
from nightjar.inference.shards import Shard
from nightjar.inference.storage import Storage
from nightjar.inference.suspects import Attempt


@dataclass(frozen=True)
class WorkerSpec:
    """Everything a worker needs, sent once.

    schema: the columns to read, in order, as most files have them. epoch, segment: the writer's
    tenure, and the newest ledger segment it knew. budget: rows the whole run may lose.
    """

    job: Job
    job_path: str
    run_id: str
    revision: str
    storage: Storage
    schema: pa.Schema
    epoch: int
    segment: int
    budget: int
    model_hash: str
    model_cache: str


def worker_spec(
    request: RunRequest,
    schema: pa.Schema,
    model_hash: str,
    *,
    revision: str = "",
    epoch: int = 0,
    segment: int = 0,
    rows: int = 0,
) -> WorkerSpec:
    """What a request's workers are sent. Without a revision nothing can be written, only scored.

    schema: all columns of the input. rows: of the whole run, from which its budget of lost rows follows.
    """
    return WorkerSpec(
        job=request.job,
        job_path=request.job_path,
        run_id=request.run_id,
        revision=revision,
        storage=request.storage,
        schema=read_schema(request.job, schema),
        epoch=epoch,
        segment=segment,
        budget=budget_rows(request.job.retry.max_quarantined, rows),
        model_hash=model_hash,
        model_cache=request.model_cache,
    )


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at one shard."""

    shard: Shard
    attempt: Attempt = field(default_factory=Attempt)


def read_schema(job: Job, schema: pa.Schema) -> pa.Schema:
    """The columns a worker reads: what the model sees, what is carried, the label; in file order."""
    wanted = {*input_columns(job, schema), *job.carry, *([job.label] if job.label else [])}
    return pa.schema([item for item in schema if item.name in wanted])


def load(spec: WorkerSpec) -> Scorer:
    """Fetch the model to this node if it is remote, and load it."""
    path = fetch_model(spec.storage, spec.job.model.path, spec.model_hash, Path(spec.model_cache))
    return load_scorer(spec.job, path)


def batch_rows(spec: WorkerSpec) -> int:
    """Rows per micro-batch, a pure function of job and schema."""
    size = spec.job.model.batch_size
    if isinstance(size, int):
        return size
    columns = input_columns(spec.job, spec.schema)
    features = pa.schema([spec.schema.field(name) for name in columns])
    return auto_batch_rows(features, spec.job.resources.gpus > 0)
