"""What a worker is sent: the run's side of it once, and one assignment for each attempt at a shard."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from nightjar.inference.errors import JobError, NightjarError
from nightjar.inference.gates import budget_rows
from nightjar.inference.job import Job
from nightjar.inference.models import fetch_model
from nightjar.inference.predictors import Scorer, input_columns, load_scorer
from nightjar.inference.predictors.source import code_fingerprint, folder_fingerprint
from nightjar.inference.predictors.user import folder_of
from nightjar.inference.request import RunRequest
from nightjar.inference.scoring import auto_batch_rows
from nightjar.inference.shards import Shard, clip
from nightjar.inference.storage import Storage
from nightjar.inference.suspects import Attempt


@dataclass(frozen=True)
class WorkerSpec:
    """Everything a worker needs, sent once.

    run: its name, and its place if that must be said, as `nightjar replay` takes them.
    schema: the columns to read, in order, as most files have them. code, folder_code: as in `RunRequest`. epoch,
    segment: the writer's tenure, and the newest ledger segment it knew. budget: rows the whole run may lose.
    """

    job: Job
    job_path: str
    run: tuple[str, ...]
    revision: str
    storage: Storage
    schema: pa.Schema
    epoch: int
    segment: int
    budget: int
    code: str
    folder_code: str
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
        run=(request.run_id, *request.place),
        revision=revision,
        storage=request.storage,
        schema=read_schema(request.job, schema),
        epoch=epoch,
        segment=segment,
        budget=budget_rows(request.job.retry.max_quarantined, rows),
        code=request.code,
        folder_code=request.folder_code,
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
    """Fetch the model to this node if it is remote, and load it with the code that the run began with.

    Raises:
        JobError: model or code are no more what they were, or cannot be loaded; names the key.
        StorageError: the model cannot be fetched.
    """
    job = _with_code(spec)
    path = fetch_model(spec.storage, job.model.path, spec.model_hash, Path(spec.model_cache))
    try:
        return load_scorer(job, path)
    except NightjarError:
        raise
    except Exception as error:
        said = f"loading {job.model.uses} failed with {type(error).__name__}: {error}"
        raise JobError(clip(f"{job.model.loaded_by}: {said}")) from error


def _with_code(spec: WorkerSpec) -> Job:
    """The job with the folder of this node that holds the run's own code.

    Results are kept under its fingerprint: code that was edited meanwhile, or another copy of it on this node, must
    not add to them.
    """
    job = _in_folder(spec) if spec.folder_code else spec.job
    if spec.code != spec.folder_code and code_fingerprint(job) != spec.code:
        raise JobError(
            f"model.uses: the installed package on {socket.gethostname()} is not the one the run began with: it was "
            "changed meanwhile, or that node has another release. Install the same on each node and start the run again"
        )
    return job


def _in_folder(spec: WorkerSpec) -> Job:
    """A cluster's workers are sent the folder, and stand in it."""
    for folder in (folder_of(spec.job), Path.cwd()):
        job = spec.job.model_copy(update={"folder": str(folder)})
        with suppress(JobError):
            if folder_fingerprint(job) == spec.folder_code:
                return job
    raise JobError(
        f"model.uses: the code in {folder_of(spec.job)} on {socket.gethostname()} is not what the run began with: it "
        "was changed meanwhile, or that node has another copy. Start the run again to score with what is there now"
    )


def batch_rows(spec: WorkerSpec) -> int:
    """Rows per micro-batch, a pure function of job and schema."""
    size = spec.job.model.batch_size
    if isinstance(size, int):
        return size
    columns = input_columns(spec.job, spec.schema)
    features = pa.schema([spec.schema.field(name) for name in columns])
    return auto_batch_rows(features, spec.job.resources.gpus > 0)
